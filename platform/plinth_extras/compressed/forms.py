"""The forms by name; from a folder in Hugging Face's layout to a form, and back to one that the evaluation loads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from plinth.errors import IntegrityError
from plinth.model.folder import described_model, read_config
from plinth.model.hugging_face import CONFIG, TOKENIZER, WEIGHTS, config_text, hf_name
from plinth.storage import tensor_file

#: Module of each form. It has `write(plain, folder, form)`, which gives the files of tensors, and
#: `read(plain, folder, form)`, which gives the tensors of those files by published name, in any order.
FORMS: Final = MappingProxyType(
    {
        "gguf-q8_0": "gguf_file",
        "gguf-q4_0": "gguf_file",
        "int8": "torchao_file",
        "int4": "torchao_file",
        "pruned-50": "pruned_file",
        "pruned-2:4": "pruned_file",
    }
)

#: Precision of the folder that a form is made of: `saved` where it keeps that of the checkpoint for the rest.
SOURCE_DTYPES: Final = MappingProxyType({"gguf_file": "float32", "torchao_file": "saved", "pruned_file": "saved"})


class WrittenForm(NamedTuple):
    """The files of tensors of a form, and their bytes."""

    files: list[str]
    bytes: int


def source_dtype(form: str) -> str:
    """The precision in which a model is exported to be made into a form."""
    return SOURCE_DTYPES[FORMS[form]]


def write(form: str, plain: Path, folder: Path) -> WrittenForm:
    """Write a form into a new folder.

    Args:
        form: one of `FORMS`.
        plain: the model in Hugging Face's layout.
        folder: it must not exist.

    Raises:
        CheckpointError: the form cannot hold this model or its tokenizer.
        IntegrityError: the file is not what was written.
        MissingError: the library that makes this form is not installed.
    """
    folder.mkdir(parents=True)
    files = _module(form).write(plain, folder, form)
    return WrittenForm(files, sum((folder / name).stat().st_size for name in files))


def restore(form: str, plain: Path, folder: Path, to: Path) -> None:
    """Write a model folder with the numbers that a form holds, as its file is read.

    Args:
        form: that `folder` has.
        plain: what it was made of; only configuration and tokenizer are read.
        to: a folder that must not exist.

    Raises:
        IntegrityError: the form lacks a tensor of the model, or has another.
    """
    config = read_config(plain)
    shapes = {hf_name(name): tuple(one.shape) for name, one in described_model(config, plain).named_parameters()}
    found = dict(_checked(_module(form).read(plain, folder, form), shapes, folder))
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
    """Write a file of tensors on the CPU, in their order."""
    entries = {
        name: tensor_file.TensorEntry(
            tensor_file.DTYPES[str(one.dtype).removeprefix("torch.")],
            tuple(one.shape),
            one.contiguous().view(-1).view(torch.uint8).numpy().data,
        )
        for name, one in tensors.items()
    }
    tensor_file.write(path, entries, {"format": "pt"})


def _module(form: str) -> Any:
    return import_module(f"plinth_extras.compressed.{FORMS[form]}")


def _checked(
    tensors: Iterator[tuple[str, Tensor]], shapes: dict[str, tuple[int, ...]], folder: Path
) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        if tuple(tensor.shape) != shapes.get(name):
            raise IntegrityError(
                f"{folder} holds a tensor that its model does not have",
                found=f"{name} of shape {tuple(tensor.shape)}",
                expected=shapes.get(name, "no such tensor"),
            )
        yield name, tensor
