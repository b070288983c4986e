"""A model folder as a checkpoint has it, written by the safetensors library and not by ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from plinth.model.hugging_face import CONFIG, WEIGHTS, hf_name


def save_model(folder: Path, parameters: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write whole parameters, by their name in `Decoder`, and the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {hf_name(name): tensor.detach().contiguous() for name, tensor in parameters.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(dict(config)))
