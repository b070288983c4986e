"""Export of a checkpoint as a folder that other programs load: `transformers`, vLLM, llama.cpp's converter.

    config.json                         the published architecture's configuration, with the pad token's id
    model-00001-of-00003.safetensors    tensors in the order of the model, up to a maximum size per file;
    model.safetensors.index.json        file of each tensor (a single tensor file is `model.safetensors`, no index)
    tokenizer.json                      prepends the start-of-document token of training
    tokenizer_config.json, generation_config.json

muP's multipliers are folded into the weights. Tensors are processed in blocks of rows, so any model fits into memory.
If the export fails, no folder is left behind.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plinth.errors import CheckpointError, IntegrityError, WorkspaceError
from plinth.model.architectures import architecture
from plinth.model.decoder import Decoder
from plinth.model.division import file_tensors, state
from plinth.model.experts import BIAS
from plinth.model.folder import SavedWeights, described_model, read_config, read_text
from plinth.model.hugging_face import (
    CONFIG,
    INDEX,
    TOKENIZER,
    config_text,
    hf_config,
    hf_name,
    index_text,
    plain_factor,
    weight_files,
)
from plinth.model.packed import packed_name
from plinth.storage import tensor_file
from plinth.storage.atomic import named_failures, sync_directory
from plinth.tokens.tokenizer import template

#: Bytes of a tensor in memory at once.
BLOCK_BYTES = 1 << 26

#: Maximum file size of Hugging Face's own writer, since version 5.
FILE_BYTES = 5 * 10**9


class Exported(NamedTuple):
    """Files of an export, and sizes of its tensors."""

    files: list[str]  # tensor files
    tensors: int
    parameters: int
    bytes: int  # bytes of the tensors
    dtype: str


class _Tensor(NamedTuple):
    """One parameter of the model: name in a checkpoint, shape, and the factor that an export multiplies it by."""

    name: str
    shape: tuple[int, ...]
    factor: float

    @property
    def elements(self) -> int:
        return torch.Size(self.shape).numel()

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of the tensor in an export with this dtype. The balancing state of experts stays in FP32."""
        return torch.float32 if self.name.endswith(BIAS) else dtype


class _Written(NamedTuple):
    """One tensor of an export, whose rows are those of one or several parameters in order."""

    name: str
    parts: tuple[_Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    @property
    def elements(self) -> int:
        return sum(part.elements for part in self.parts)

    def bytes(self, dtype: torch.dtype) -> int:
        return self.elements * self.parts[0].dtype(dtype).itemsize


def export_model(
    source: Path, tokenizer: Path, folder: Path, dtype: str = "saved", file_bytes: int = FILE_BYTES
) -> Exported:
    """Export a checkpoint's model folder to `folder`, in a layout that other programs load.

    Args:
        source: folder with the verified `config.json` and weights.
        tokenizer: `tokenizer.json` of the run.
        folder: new or empty folder.
        dtype: float32, bfloat16, float16, or `saved` for the checkpoint's dtype.
        file_bytes: maximum bytes of tensors per file; a larger tensor has its own file.

    Raises:
        WorkspaceError: `folder` is not empty, or not writable.
        CheckpointError: the source is not a model, or its tensors do not match its configuration.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WorkspaceError(
            f"{folder} is not empty",
            expected="a new or empty folder",
            remedy="use another folder, or delete this one first",
        )
    config = read_config(source)
    model = described_model(config, source)
    tensors = _tensors(model)
    with SavedWeights(source) as saved:
        saved.require(model)
        kept = saved.rows(tensors[0].name)[:0].dtype if dtype == "saved" else getattr(torch, dtype)
        with _appearing(folder) as staged:
            written = _written(model, tensors)
            files = _write_weights(staged, saved, written, kept, file_bytes)
            for name, text in _texts(tokenizer.read_bytes().decode(), model, config, _name(kept)).items():
                tensor_file.write_chunks(staged / name, [memoryview(text.encode())])
    elements, size = sum(one.elements for one in tensors), sum(one.bytes(kept) for one in written)
    return Exported(files, len(written), elements, size, _name(kept))


def require_same(source: Path, known: Mapping[str, str], folder: Path, written: Mapping[str, str]) -> None:
    """Raise an error unless every tensor and every other file of an export matches its source model folder.

    Args:
        known: SHA-256 of the files of `source`, as signed by the trainer; files are hashed as they are read.
        written: SHA-256 of the files of `folder`; files are hashed as they are read.

    Raises:
        IntegrityError: tensors or files of the export differ from the source, are missing or are not in the source.
        CheckpointError: a file of the source is broken, or has another digest.
    """
    config = read_config(source, known)
    model = described_model(config, source)
    with SavedWeights(source, known) as saved, SavedWeights(folder, written) as found:
        found.require(model)
        tensors = _tensors(model)
        dtype = found.tensor(tensors[0].name).dtype
        wrong = sorted(set(found) ^ {one.name for one in tensors})
        wrong += [one.name for one in tensors if not _same_bytes(found.tensor(one.name), _blocks(saved, one, dtype))]
        weights = found.files
    texts = _texts(read_text(source, TOKENIZER, known), model, config, _name(dtype))
    expected = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in texts.items()}
    others = {name: own for name, own in written.items() if name not in weights}
    wrong += sorted(name for name in others.keys() | expected.keys() if others.get(name) != expected.get(name))
    if wrong:
        raise IntegrityError(f"{folder} differs from {source}", found=", ".join(wrong), remedy="export again")


def _same_bytes(tensor: Tensor, blocks: Iterator[memoryview]) -> bool:
    """Return True if the bytes of a tensor equal those of `blocks`, joined in order."""
    own, at = tensor.contiguous().view(-1).view(torch.uint8).numpy().data, 0
    for block in blocks:
        if own[at : at + block.nbytes] != block:
            return False
        at += block.nbytes
    return at == own.nbytes


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder`. The temporary folder is renamed on success and deleted on failure."""
    with named_failures(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        try:
            yield staged
            staged.chmod(0o755)
            sync_directory(staged)
            staged.replace(folder)
            sync_directory(folder.parent)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise


def _tensors(model: Decoder) -> list[_Tensor]:
    """Return the tensors to export in the model's order: parameters, experts on their own, and buffers."""
    return [
        _Tensor(hf_name(name), tuple(tensor.shape), plain_factor(model.config, name))
        for name, tensor in file_tensors(state(model))
    ]


def _written(model: Decoder, tensors: Sequence[_Tensor]) -> list[_Written]:
    """Return the tensors of an export, in the model's order. The parts of a packed tensor are neighbors there."""
    packed = architecture(model.config.architecture).published_as(model.config).partly_rotated
    found: dict[str, tuple[_Tensor, ...]] = {}
    for one in tensors:
        name = packed_name(one.name) if packed else one.name
        found[name] = (*found.get(name, ()), one)
    return [_Written(name, parts) for name, parts in found.items()]


def _write_weights(
    folder: Path, saved: SavedWeights, tensors: Sequence[_Written], dtype: torch.dtype, file_bytes: int
) -> list[str]:
    """Write the tensor files and, if there are several, their index; return the names of the tensor files."""
    every = {one.name: one for one in tensors}
    sizes = {one.name: one.bytes(dtype) for one in tensors}
    files = weight_files(sizes, file_bytes)
    for name, group in files.items():
        tensor_file.write_chunks(folder / name, _bytes(saved, [every[one] for one in group], dtype))
    if len(files) > 1:
        tensor_file.write_chunks(folder / INDEX, [memoryview(index_text(files, sizes).encode())])
    return list(files)


def _bytes(saved: SavedWeights, group: Sequence[_Written], dtype: torch.dtype) -> Iterator[memoryview]:
    """Yield the bytes of a tensor file: the header, then the tensors."""
    described = {
        one.name: (tensor_file.DTYPES[_name(one.parts[0].dtype(dtype))], one.shape, one.bytes(dtype)) for one in group
    }
    yield memoryview(tensor_file.header(described, {"format": "pt"}))
    for part in (part for one in group for part in one.parts):
        yield from _blocks(saved, part, dtype)


def _blocks(saved: SavedWeights, one: _Tensor, dtype: torch.dtype) -> Iterator[memoryview]:
    """Yield the bytes of one exported tensor, one block of rows at a time. Factors are applied in FP32."""
    rows = saved.rows(one.name)
    width = one.elements // max(one.shape[0], 1)
    step = max(1, BLOCK_BYTES // (4 * max(width, 1)))
    for first in range(0, one.shape[0], step):
        block: Tensor = rows[first : first + step]
        if one.factor != 1.0:
            block = block.float() * one.factor
        yield block.to(one.dtype(dtype)).contiguous().view(-1).view(torch.uint8).numpy().data


def _texts(tokenizer: str, model: Decoder, config: Mapping[str, Any], dtype: str) -> dict[str, str]:
    """Return the text of every file of the export except tensor files, by file name.

    `config` is the configuration of the source.
    """
    from tokenizers import Tokenizer

    plain = model.config.model_copy(update={"mup": None})
    length, end = config["max_position_embeddings"], config["eos_token_id"]
    token = Tokenizer.from_str(tokenizer).id_to_token(end)
    if token is None:
        raise CheckpointError("the tokenizer lacks the end-of-document token", found=f"no token {end}")
    described: dict[str, Any]
    described, ids = {"bos_token": token, "eos_token": token}, {"bos_token_id": end, "eos_token_id": end}
    if pad := template.pad_token(tokenizer, end):
        described, ids = described | {"pad_token": pad[1]}, ids | {"pad_token_id": pad[0]}
    described |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
    }
    return {
        CONFIG: config_text(hf_config(plain, model.vocab_size, length, dtype, end, exported=True) | ids),
        "generation_config.json": config_text(ids),
        TOKENIZER: template.beginning_with(tokenizer, end, token),
        "tokenizer_config.json": config_text(described),
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
