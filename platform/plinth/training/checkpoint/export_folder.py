"""A checkpoint's model as a folder that other programs load: Hugging Face's, vLLM's, llama.cpp's converter.

    config.json                         Llama's, or Qwen3's where queries and keys are normalised
    model-00001-of-00003.safetensors    in the order of the model, each of at most so many bytes;
    model.safetensors.index.json        which file holds which tensor (one file alone is `model.safetensors`)
    tokenizer.json                      the line's own, unchanged
    tokenizer_config.json, generation_config.json

muP's multipliers are folded into the weights. Tensors go through memory by blocks of rows, so any model may be
written on any machine; the folder appears whole or not at all.

Does not belong here: what the tensors are called and why (export).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from plinth.errors import CheckpointError, WorkspaceError
from plinth.model.decoder import Decoder
from plinth.model.hugging_face import CONFIG, INDEX, WEIGHTS, hf_config, hf_name, plain_factor
from plinth.storage import tensor_file
from plinth.storage.atomic import named_failures, sync_directory
from plinth.training.checkpoint.writer.staging import DTYPES
from plinth.training.config import RunConfig

#: Bytes of a tensor that are in memory at once.
BLOCK_BYTES = 1 << 26

#: `FILE_BYTES` of Hugging Face's own writer since version 5.
FILE_BYTES = 5 * 10**9


class Exported(NamedTuple):
    """What was written."""

    files: list[str]  # of tensors
    tensors: int
    parameters: int
    bytes: int  # of the tensors
    dtype: str


class _Tensor(NamedTuple):
    """One parameter on its way: its published name, its shape, and the factor it is multiplied by."""

    name: str
    shape: tuple[int, ...]
    factor: float


def export_folder(
    weights: Path, tokenizer: Path, config: RunConfig, folder: Path, dtype: str = "saved", file_bytes: int = FILE_BYTES
) -> Exported:
    """Write `folder` from the whole parameters of a verified checkpoint.

    Args:
        weights: directory of the checkpoint's `model.safetensors`.
        tokenizer: the run's `tokenizer.json`.
        config: of the run.
        folder: to be made; it may exist when it is empty.
        dtype: float32, bfloat16 or float16; `saved`: that of the checkpoint.
        file_bytes: of tensors in one file; a larger tensor has a file of its own.

    Raises:
        WorkspaceError: there is something in `folder`, or it cannot be written.
        CheckpointError: the tensors are not those of the run's model.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WorkspaceError(
            f"{folder} is not empty", expected="a new or empty folder", remedy="name another, or delete it first"
        )
    with ExitStack() as stack:
        saved = _Saved(stack, weights)
        tensors = _tensors(config)
        kept = saved.dtype(tensors[0].name) if dtype == "saved" else getattr(torch, dtype)
        saved.require(tensors)
        with named_failures(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        try:
            with named_failures(folder):
                files = _write_weights(staged, saved, tensors, kept, file_bytes)
                _write_texts(staged, tokenizer, config, str(kept).removeprefix("torch."))
                staged.chmod(0o755)
                sync_directory(staged)
                staged.replace(folder)
                sync_directory(folder.parent)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
    elements = sum(_elements(one) for one in tensors)
    return Exported(files, len(tensors), elements, elements * kept.itemsize, str(kept).removeprefix("torch."))


class _Saved:
    """The tensors of a checkpoint's model, mapped; what is not asked for is not read."""

    def __init__(self, stack: ExitStack, weights: Path) -> None:
        self._file: dict[str, Any] = {}
        try:
            for path in sorted(weights.glob("*.safetensors")):
                file = stack.enter_context(safe_open(path, framework="pt"))
                self._file |= dict.fromkeys(file.keys(), file)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{weights} holds no model", found=error, expected=WEIGHTS) from error
        self.weights = weights

    def dtype(self, name: str) -> torch.dtype:
        return self._file[name].get_slice(name)[:0].dtype if name in self._file else torch.float32

    def require(self, tensors: list[_Tensor]) -> None:
        """Refuse other tensors than those of the model, by name."""
        found = {name: tuple(file.get_slice(name).get_shape()) for name, file in self._file.items()}
        wanted = {one.name: one.shape for one in tensors}
        differing = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        if differing:
            raise CheckpointError(
                f"the tensors in {self.weights} are not those of the run's model",
                found={name: found.get(name) for name in differing},
                expected={name: wanted.get(name) for name in differing},
            )

    def blocks(self, one: _Tensor, dtype: torch.dtype) -> Iterator[memoryview]:
        """The tensor's bytes as they are to be written, a block of rows at a time; computed in FP32."""
        rows = self._file[one.name].get_slice(one.name)
        width = _elements(one) // max(one.shape[0], 1)
        step = max(1, BLOCK_BYTES // (4 * max(width, 1)))
        for first in range(0, one.shape[0], step):
            block: Tensor = rows[first : first + step]
            if one.factor != 1.0:
                block = block.float() * one.factor
            yield block.to(dtype).contiguous().view(-1).view(torch.uint8).numpy().data


def _tensors(config: RunConfig) -> list[_Tensor]:
    """In the order of the model; tied matrices are there once."""
    with torch.device("meta"):
        model = Decoder(config.model, config.vocab_size)
    return [
        _Tensor(hf_name(name), tuple(parameter.shape), plain_factor(config.model, name))
        for name, parameter in model.named_parameters()
    ]


def _elements(one: _Tensor) -> int:
    return torch.Size(one.shape).numel()


def _write_weights(
    folder: Path, saved: _Saved, tensors: list[_Tensor], dtype: torch.dtype, file_bytes: int
) -> list[str]:
    """The files of tensors and, of several, their index; returns the names of the former."""
    groups: list[list[_Tensor]] = [[]]
    size = 0
    for one in tensors:
        more = _elements(one) * dtype.itemsize
        if groups[-1] and size + more > file_bytes:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += more
    count = len(groups)
    names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)] if count > 1 else [WEIGHTS]
    for name, group in zip(names, groups, strict=True):
        described = {one.name: (DTYPES[dtype], one.shape, _elements(one) * dtype.itemsize) for one in group}
        tensor_file.write_chunks(folder / name, _bytes(described, saved, group, dtype))
    if count == 1:
        return names
    where = {one.name: name for name, group in zip(names, groups, strict=True) for one in group}
    total = sum(_elements(one) for one in tensors) * dtype.itemsize
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    return names


def _bytes(
    described: Mapping[str, Any], saved: _Saved, group: list[_Tensor], dtype: torch.dtype
) -> Iterator[memoryview]:
    yield memoryview(tensor_file.header(described, {"format": "pt"}))
    for one in group:
        yield from saved.blocks(one, dtype)


def _write_texts(folder: Path, tokenizer: Path, config: RunConfig, dtype: str) -> None:
    """Everything but tensors."""
    from tokenizers import Tokenizer

    model = config.model.model_copy(update={"mup": None})
    length, end = config.sequence_tokens, config.end_of_text
    _write_json(folder / CONFIG, hf_config(model, config.vocab_size, length, dtype, end))
    _write_json(folder / "generation_config.json", {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end})
    tensor_file.write_chunks(folder / "tokenizer.json", [memoryview(tokenizer.read_bytes())])
    token = Tokenizer.from_file(str(tokenizer)).id_to_token(end)
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
        "bos_token": token,
        "eos_token": token,
        "pad_token": token,
    }
    _write_json(folder / "tokenizer_config.json", described)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(dict(value), indent=2, sort_keys=True) + "\n"
    tensor_file.write_chunks(path, [memoryview(text.encode())])
    os.chmod(path, 0o644)
