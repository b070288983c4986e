"""Conversion of a Hugging Face model folder to a compressed form, and back to a folder for the evaluation."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from plinth.errors import CheckpointError, IntegrityError
from plinth.extensions import require
from plinth.model.division import file_tensors, state
from plinth.model.folder import SavedWeights, described_model, read_config
from plinth.model.hugging_face import CONFIG, TOKENIZER, WEIGHTS, config_text, hf_name, model_of
from plinth.storage import tensor_file
from plinth_extras.compressed import gguf_file

# Weight-only integers as `torchao` makes them, in safetensors that transformers and vLLM load with it.
#
#     int8   one scale for each row of a matrix
#     int4   one scale and zero for each 32 weights of a row; in the file every weight has a byte of its own
#
# Matrices of the blocks are quantized; embeddings, output and gains stay as they are. `torchao` packs two int4 weights
# into a byte only on the device that will compute with them, so an int4 file is no smaller than an int8 one.

#: Weights with one scale in int4.
GROUP: Final = 32

_OTHER_TEXTS: Final = (TOKENIZER, "tokenizer_config.json", "generation_config.json")


def write_integers(plain: Path, folder: Path, form: str) -> list[str]:
    """Write a model folder with int8 or int4 weights from a Hugging Face folder; return the name of the weights file.

    Raises:
        CheckpointError: the row length of a matrix is not a multiple of the group size.
        IntegrityError: the written file differs from the quantized tensors.
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


def read_integers(plain: Path, folder: Path, form: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the dequantized tensors of an int8 or int4 file, each with its Hugging Face name."""
    support = _library("torchao.prototype.safetensors.safetensors_support")
    tensors, described = _file(folder)
    found, left = support.unflatten_tensor_state_dict(tensors, described)
    if left:
        raise IntegrityError(f"{folder / WEIGHTS} has tensors without metadata", found=", ".join(sorted(left)))
    for name, tensor in found.items():
        yield name, tensor.dequantize() if type(tensor) is not Tensor else tensor


def is_quantised(name: str, shape: tuple[int, ...]) -> bool:
    """Return True if the tensor is a matrix of a transformer block. Other tensors are not quantized."""
    return len(shape) == 2 and name.startswith("model.layers.")


def _library(module: str) -> Any:
    """Import a torchao module, without its warnings about missing GPU kernels. Writing files needs no kernels.

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
    """Return the tensor to store: quantized by torchao if it is a block's matrix, otherwise unchanged."""
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
    """Return the tensors and the metadata of the weights file in a folder."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        described = {key: value for key, value in (file.metadata() or {}).items() if key != "format"}
        return {name: file.get_tensor(name) for name in file.keys()}, described  # noqa: SIM118 - not a mapping


def _require_same(folder: Path, flat: Mapping[str, Tensor], described: Mapping[str, str]) -> None:
    found, read_described = _file(folder)
    wrong = [name for name in flat if name not in found or not torch.equal(found[name], flat[name])]
    if wrong or set(found) != set(flat) or read_described != dict(described):
        raise IntegrityError(
            f"{folder / WEIGHTS} differs from the quantized tensors",
            found=", ".join(wrong) or "different tensor names or metadata",
            remedy="export again",
        )


# Magnitude pruning without retraining: the smallest weights of every matrix are zero.
#
#     pruned-50    half of every matrix of the blocks, at any position
#     pruned-2:4   two of every four neighbors in a row, the pattern that sparse tensor cores compute
#
# As in the magnitude baseline of SparseGPT (arXiv:2301.00774, section 4) and Wanda (arXiv:2306.11695,
# `prune_magnitude`): each matrix has its own threshold; embeddings, output and gains stay. Layout and file size do not
# change; only the computation can be faster.

#: Number of weights kept of four neighbors.
_KEPT, _OF = 2, 4

_SHARE: Final = 0.5


def write_pruned(plain: Path, folder: Path, form: str) -> list[str]:
    """Write the pruned model to one file. Only the matrices of the transformer blocks are changed.

    Raises:
        CheckpointError: the row length of a matrix is not divisible by four.
    """
    with SavedWeights(plain) as saved:
        tensors = {name: saved.tensor(name) for name in saved}
        for name, tensor in tensors.items():
            if is_quantised(name, tuple(tensor.shape)):
                tensors[name] = _pruned(tensor, name, form)
        write_tensors(folder / WEIGHTS, tensors)
    for path in sorted(plain.glob("*.json")):
        if not path.name.endswith("index.json"):
            shutil.copyfile(path, folder / path.name)
    return [WEIGHTS]


def read_pruned(plain: Path, folder: Path, form: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a pruned model, each with its Hugging Face name."""
    with SavedWeights(folder) as saved:
        for name in saved:
            yield name, saved.tensor(name)


def unstructured(weight: Tensor, share: float = _SHARE) -> Tensor:
    """Return a copy of `weight` in which the fraction `share` of elements with the smallest magnitude is zero.

    Among elements of equal magnitude, the position in the matrix decides.
    """
    count = int(weight.numel() * share)
    smallest = weight.float().abs().flatten().argsort(stable=True)[:count]
    return weight.flatten().index_fill(0, smallest, 0).view_as(weight)


def structured(weight: Tensor) -> Tensor:
    """Return `weight` [rows, columns] with the two smallest of every four neighbors in a row set to zero."""
    fours = weight.reshape(-1, _OF)
    smallest = fours.float().abs().argsort(dim=1, stable=True)[:, : _OF - _KEPT]
    return fours.scatter(1, smallest, 0).view_as(weight)


def _pruned(tensor: Tensor, name: str, form: str) -> Tensor:
    if form == "pruned-50":
        return unstructured(tensor)
    if tensor.shape[1] % _OF:
        found, expected = f"rows of {tensor.shape[1]} weights", f"a multiple of {_OF}"
        raise CheckpointError(f"{name} cannot be pruned 2:4", found=found, expected=expected)
    return structured(tensor)


class _Kind(NamedTuple):
    """Functions that write and read a form.

    Args:
        write: `(plain, folder, form)` -> names of the tensor files.
        read: `(plain, folder, form)` -> tensors of the files by Hugging Face name, in any order.
        dtype: precision of the source folder; `saved` keeps the precision of the checkpoint.
    """

    write: Callable[[Path, Path, str], list[str]]
    read: Callable[[Path, Path, str], Iterator[tuple[str, Tensor]]]
    dtype: str


_GGUF = _Kind(gguf_file.write, gguf_file.read, "float32")
_INTEGERS = _Kind(write_integers, read_integers, "saved")
_PRUNED = _Kind(write_pruned, read_pruned, "saved")
FORMS: Final[Mapping[str, _Kind]] = {
    "gguf-q8_0": _GGUF,
    "gguf-q4_0": _GGUF,
    "int8": _INTEGERS,
    "int4": _INTEGERS,
    "pruned-50": _PRUNED,
    "pruned-2:4": _PRUNED,
}


class WrittenForm(NamedTuple):
    """Names of the tensor files of a form, and their total size in bytes."""

    files: list[str]
    bytes: int


def source_dtype(form: str) -> str:
    """Return the precision of the Hugging Face export from which a form is written."""
    return FORMS[form].dtype


def write(form: str, plain: Path, folder: Path) -> WrittenForm:
    """Write a form to a new folder.

    Args:
        form: name of the form, one of `FORMS`.
        plain: folder of the model in Hugging Face's layout.
        folder: new folder; it must not exist.

    Raises:
        CheckpointError: the form does not support this model or its tokenizer.
        IntegrityError: the file differs from the written tensors.
        MissingError: the library for this form is not installed.
    """
    config = read_config(plain)
    if model_of(config).rotary_fraction < 1:
        kind = config["model_type"]
        raise CheckpointError(
            f"a model of type {kind} cannot be written as {form}",
            found="packed projections",
            expected="one matrix for each projection",
        )
    folder.mkdir(parents=True)
    files = FORMS[form].write(plain, folder, form)
    return WrittenForm(files, sum((folder / name).stat().st_size for name in files))


def restore(form: str, plain: Path, folder: Path, to: Path) -> None:
    """Read the files of a compressed form, and write the weights to a model folder in Hugging Face's layout.

    Args:
        form: name of the form in `folder`.
        plain: source folder; only configuration and tokenizer are read.
        to: new folder; it must not exist.

    Raises:
        IntegrityError: the form lacks a tensor of the model, or has a tensor that the model does not have.
    """
    config = read_config(plain)
    model = described_model(config, plain)
    shapes = {hf_name(name): tuple(one.shape) for name, one in file_tensors(state(model))}
    found = dict(_checked(FORMS[form].read(plain, folder, form), shapes, folder))
    lacking = sorted(set(shapes) - set(found))
    if lacking:
        raise IntegrityError(f"{folder} lacks tensors of its model", found=", ".join(lacking))
    to.mkdir(parents=True)
    write_tensors(to / WEIGHTS, {name: found[name] for name in shapes})
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in found.values()}
    described = {**config, "torch_dtype": dtypes.pop()} if len(dtypes) == 1 else config
    (to / CONFIG).write_text(config_text(described))
    shutil.copyfile(plain / TOKENIZER, to / TOKENIZER)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write CPU tensors to a safetensors file, in the given order."""
    entries = {
        name: tensor_file.TensorEntry(
            tensor_file.DTYPES[str(one.dtype).removeprefix("torch.")],
            tuple(one.shape),
            one.contiguous().view(-1).view(torch.uint8).numpy().data,
        )
        for name, one in tensors.items()
    }
    tensor_file.write(path, entries, {"format": "pt"})


def _checked(
    tensors: Iterator[tuple[str, Tensor]], shapes: dict[str, tuple[int, ...]], folder: Path
) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        if tuple(tensor.shape) != shapes.get(name):
            raise IntegrityError(
                f"{folder} has a tensor that its model does not have",
                found=f"{name} of shape {tuple(tensor.shape)}",
                expected=shapes.get(name, "no such tensor"),
            )
        yield name, tensor
