"""Weight-only integers as `torchao` makes them, in safetensors that transformers and vLLM load with it.

    int8   one scale for each row of a matrix
    int4   one scale and zero for each 32 weights of a row; in the file every weight has a byte of its own

Matrices of the blocks are quantised; embeddings, output and gains stay as they are. `torchao` packs two int4 weights
into a byte only on the device that will compute with them, so an int4 file is no smaller than an int8 one.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from plinth.errors import CheckpointError, IntegrityError
from plinth.extensions import require
from plinth.model.folder import SavedWeights, read_config
from plinth.model.hugging_face import CONFIG, TOKENIZER, WEIGHTS, config_text

#: Weights with one scale in int4.
GROUP: Final = 32

_OTHER_TEXTS: Final = (TOKENIZER, "tokenizer_config.json", "generation_config.json")


def write(plain: Path, folder: Path, form: str) -> list[str]:
    """Write weights, configuration and tokenizer from a folder in Hugging Face's layout; returns the file of weights.

    Raises:
        CheckpointError: a matrix has rows that do not divide into groups.
        IntegrityError: the file, read back, is not what was quantised.
    """
    support = _library("torchao.prototype.safetensors.safetensors_support")
    scheme = _scheme(form)
    with SavedWeights(plain) as saved:
        tensors = {name: _made(saved.tensor(name), name, scheme, form) for name in saved}
    flat, described = support.flatten_tensor_state_dict(tensors)
    save_file(flat, folder / WEIGHTS, metadata={"format": "pt", **described})
    _write_config(plain, folder, scheme)
    for name in _OTHER_TEXTS:
        if (plain / name).exists():
            shutil.copyfile(plain / name, folder / name)
    _require_same(folder, flat, described)
    return [WEIGHTS]


def read(plain: Path, folder: Path, form: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the file by published name, quantised ones as the numbers that they stand for."""
    support = _library("torchao.prototype.safetensors.safetensors_support")
    tensors, described = _file(folder)
    found, left = support.unflatten_tensor_state_dict(tensors, described)
    if left:
        raise IntegrityError(f"{folder / WEIGHTS} holds tensors that nothing describes", found=", ".join(sorted(left)))
    for name, tensor in found.items():
        yield name, tensor.dequantize() if type(tensor) is not Tensor else tensor


def is_quantised(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a matrix of a block."""
    return len(shape) == 2 and name.startswith("model.layers.")


def _library(module: str) -> Any:
    """A module of torchao without its warnings of kernels for devices that are not here: a file needs none of them.

    Raises:
        MissingError: torchao is not installed.
    """
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return require(module, "quantised")


def _scheme(form: str) -> Any:
    quantization = _library("torchao.quantization")
    if form == "int8":
        return quantization.Int8WeightOnlyConfig(set_inductor_config=False)
    int4: torch.dtype = torch.int4  # type: ignore[attr-defined]
    return quantization.IntxWeightOnlyConfig(weight_dtype=int4, granularity=quantization.PerGroup(GROUP))


def _made(tensor: Tensor, name: str, scheme: Any, form: str) -> Tensor:
    """The tensor as it is stored: torchao's own class, or as it was."""
    if not is_quantised(name, tuple(tensor.shape)):
        return tensor
    if form == "int4" and tensor.shape[1] % GROUP:
        raise CheckpointError(
            f"{name} cannot be int4", found=f"rows of {tensor.shape[1]} weights", expected=f"a multiple of {GROUP}"
        )
    linear = nn.Linear(tensor.shape[1], tensor.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(tensor, requires_grad=False)
    _library("torchao.quantization").quantize_(linear, scheme)
    return linear.weight.data


def _write_config(plain: Path, folder: Path, scheme: Any) -> None:
    described = {
        "quant_method": "torchao",
        "quant_type": {"default": _library("torchao.core.config").config_to_dict(scheme)},
        "include_input_output_embeddings": False,
        "modules_to_not_convert": ["lm_head"],
    }
    (folder / CONFIG).write_text(config_text({**read_config(plain), "quantization_config": described}))


def _file(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Stored tensors and what describes them."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        described = {key: value for key, value in (file.metadata() or {}).items() if key != "format"}
        return {name: file.get_tensor(name) for name in file.keys()}, described  # noqa: SIM118 - it is no mapping


def _require_same(folder: Path, flat: Mapping[str, Tensor], described: Mapping[str, str]) -> None:
    found, read_described = _file(folder)
    wrong = [name for name in flat if name not in found or not torch.equal(found[name], flat[name])]
    if wrong or set(found) != set(flat) or read_described != dict(described):
        raise IntegrityError(
            f"{folder / WEIGHTS} is not what was quantised",
            found=", ".join(wrong) or "other names or descriptions",
            remedy="export again",
        )
