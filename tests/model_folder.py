"""A model folder as a checkpoint has it, written by the safetensors library and not by ours, and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from plinth.model.decoder import Decoder
from plinth.model.hugging_face import CONFIG, TOKENIZER, WEIGHTS, hf_config, hf_name
from plinth.model.parameters import Model

END = "<|endoftext|>"


def save_model(folder: Path, parameters: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write whole parameters, by their name in `Decoder`, and the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {hf_name(name): tensor.detach().contiguous() for name, tensor in parameters.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(dict(config)))


def save_folder(folder: Path, model: Decoder, config: Model, tokenizer: Tokenizer, sequence_tokens: int) -> None:
    """Write a model with its tokenizer, whose token 0 begins documents."""
    published = hf_config(config, tokenizer.get_vocab_size(), sequence_tokens, "float32", 0)
    save_model(folder, dict(model.named_parameters()), published)
    tokenizer.save(str(folder / TOKENIZER))


def byte_level(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level tokenizer as the pipeline's are, with `END` as token 0."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made
