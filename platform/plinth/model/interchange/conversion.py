"""Conversion of weights between DCP folders of other trainers and safetensors in Hugging Face's layout.

    DcpWeights     weights of a model in a DCP folder, in any layout, one tensor at a time
    hf_files       safetensors files with the same bits
    write_dcp      DCP folder from a Hugging Face folder; the only function here that imports torch

A converted file depends only on the weights and the layout: the same weights give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plinth.errors import CheckpointError
from plinth.model.hugging_face import INDEX, index_text, weight_files
from plinth.model.interchange.dcp import BITS, Bits, DcpFolder
from plinth.model.interchange.layouts import LAYOUTS, LayoutTensor, hf_shapes, recognized
from plinth.model.parameters import Model
from plinth.storage import tensor_file

#: Top-level groups of a trainer's checkpoint that hold other state; their tensors are not weights.
OTHER_STATE = ("optim", "optimizer", "lr_scheduler", "dataloader", "train_state", "rng_state", "rerun_state_machine")

#: Maximum bytes of tensors per written safetensors file.
FILE_BYTES = 5 * 10**9


class _Piece(NamedTuple):
    """Part of a Hugging Face tensor: its place there, and its place in a tensor of the checkpoint."""

    first: int
    elements: int
    tensor: str
    at: int


class DcpWeights:
    """Weights of a model in a DCP folder. At most one tensor is in memory at a time.

    Args:
        dcp: folder of the checkpoint.
        model: model that the weights belong to.
        rows: number of rows of the embeddings.

    Raises:
        CheckpointError: tensors are missing, unexpected, or have another shape or type; the error lists all of them.
    """

    def __init__(self, dcp: DcpFolder, model: Model, rows: int) -> None:
        self._dcp, self.shapes = dcp, hf_shapes(model, rows)
        own = {name: one for name, one in dcp.tensors.items() if name.partition(".")[0] not in OTHER_STATE}
        self.layout, prefix = recognized(own)
        wanted = {f"{prefix}{name}": one for name, one in LAYOUTS[self.layout].tensors(model, rows).items()}
        found = {name: one for name, one in own.items() if name.startswith(prefix)}
        head = self._tied_head(model, rows, prefix) if model.tied_embeddings else ""
        self._require(wanted, {name: one for name, one in found.items() if name != head})
        self.sources = sorted(wanted)
        self._pieces: dict[str, list[_Piece]] = {name: [] for name in self.shapes}
        for name, one in wanted.items():
            at = 0
            for part in one.ranges:
                self._pieces[part.tensor].append(_Piece(part.first, part.elements, name, at))
                at += part.elements
        if head in found:
            self._require_tied(f"{prefix}{LAYOUTS[self.layout].embedding}", head, math.prod(self._embedding))

    def dtype(self, name: str) -> str:
        """Return the type of a tensor by its Hugging Face name."""
        return self._dcp.tensors[self._pieces[name][0].tensor].dtype

    def bits(self, name: str) -> Iterator[Bits]:
        """Yield the elements of a tensor by its Hugging Face name, in row-major order."""
        for piece in sorted(self._pieces[name]):
            yield self._dcp.flat(piece.tensor, piece.at, piece.elements)

    @property
    def _embedding(self) -> tuple[int, ...]:
        return self.shapes["model.embed_tokens.weight"]

    def _tied_head(self, model: Model, rows: int, prefix: str) -> str:
        """Return the name of the output projection, which a state dict may contain although it is the embedding."""
        tensors = LAYOUTS[self.layout].tensors
        (head,) = tensors(model.model_copy(update={"tied_embeddings": False}), rows).keys() - tensors(model, rows)
        return f"{prefix}{head}"

    def _require_tied(self, embedding: str, head: str, count: int) -> None:
        step = self._embedding[1] * 4096
        for at in range(0, count, step):
            size = min(step, count - at)
            if not np.array_equal(self._dcp.flat(head, at, size), self._dcp.flat(embedding, at, size)):
                raise CheckpointError(
                    f"{head} differs from {embedding}, but the model has tied embeddings",
                    remedy="set `tie_word_embeddings: false` in the model's config.json",
                )

    def _require(self, wanted: Mapping[str, LayoutTensor], found: Mapping[str, Any]) -> None:
        problems = [f"{name} missing" for name in sorted(wanted.keys() - found.keys())]
        problems += [f"{name} unexpected" for name in sorted(found.keys() - wanted.keys())]
        for name in sorted(wanted.keys() & found.keys()):
            shape, expected = found[name].shape, wanted[name]
            rows = expected.padded and shape[1:] == expected.shape[1:] and shape[:1] > expected.shape[:1]
            if shape != expected.shape and not rows:
                problems.append(f"{name} has shape {shape}, expected {expected.shape}")
            elif found[name].dtype not in BITS:
                problems.append(f"{name} has type {found[name].dtype}, expected one of {', '.join(BITS)}")
        if problems:
            raise CheckpointError(
                f"the tensors in {self._dcp.folder} do not match the model's configuration (layout {self.layout})",
                found="; ".join(problems),
            )


def hf_files(weights: DcpWeights, file_bytes: int = FILE_BYTES) -> Iterator[tuple[str, Iterator[memoryview]]]:
    """Yield the name and the bytes of each file that holds the weights in Hugging Face's layout: safetensors files,
    and an index if there are several. Values keep their bits."""
    elements = {name: math.prod(shape) for name, shape in weights.shapes.items()}
    sizes = {name: count * np.dtype(BITS[weights.dtype(name)]).itemsize for name, count in elements.items()}
    files = weight_files(sizes, file_bytes)
    for file, group in files.items():
        yield file, _safetensors(weights, group, sizes)
    if len(files) > 1:
        yield INDEX, iter([memoryview(index_text(files, sizes).encode())])


def _safetensors(weights: DcpWeights, group: list[str], sizes: Mapping[str, int]) -> Iterator[memoryview]:
    described = {name: (tensor_file.DTYPES[weights.dtype(name)], weights.shapes[name], sizes[name]) for name in group}
    yield memoryview(tensor_file.header(described, {"format": "pt"}))
    for name in group:
        for piece in weights.bits(name):
            yield np.ascontiguousarray(piece).data


def write_dcp(source: Path, layout: str, folder: Path) -> int:
    """Write the weights of a Hugging Face folder as a DCP folder in a trainer's layout, with torch's own writer.

    Returns:
        Number of bytes of the tensors.

    Raises:
        CheckpointError: the trainer has no such model, or the folder is broken.
    """
    from plinth.model.folder import SavedWeights, read_config
    from plinth.model.hugging_face import model_of
    from plinth.model.interchange.torch_writer import write

    config = read_config(source)
    model, kind = model_of(config), LAYOUTS[layout]
    tensors = kind.tensors(model, int(config["vocab_size"]))
    with SavedWeights(source) as saved:
        return write(saved, tensors, kind, model, folder)
