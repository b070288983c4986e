"""DCP folders, written by `torch.distributed.checkpoint` itself. Each tensor is built when it is written."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from plinth.model.folder import SavedWeights
from plinth.model.interchange.layouts import LAYOUTS, TensorRange, Tensors, TrainerLayout
from plinth.model.parameters import Model

#: Files that Megatron's reader needs next to a DCP folder: the formats, and the state without tensors.
_MEGATRON_FORMATS = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


def write(saved: SavedWeights, tensors: Tensors, layout: TrainerLayout, model: Model, folder: Path) -> int:
    """Write tensors to a DCP folder, and the objects of the layout as lists of None; return the bytes of the tensors.

    Args:
        saved: weights in Hugging Face's layout.
        tensors: tensors to write, as ranges of the weights.
    """
    group = layout.group
    dtypes = {name: saved.rows(one.ranges[0].tensor)[:0].dtype for name, one in tensors.items()}
    state: dict[str, Any] = {
        name: torch.empty(one.shape, dtype=dtypes[name], device="meta") for name, one in tensors.items()
    }
    whole = state | {name: [None] for name in layout.objects(model)}
    state_dict_saver.save(
        {group: whole} if group else whole,
        storage_writer=_Writer(folder, single_file_per_rank=True, thread_count=1),
        planner=_LazyPlanner(saved, {f"{group}.{name}" if group else name: one for name, one in tensors.items()}),
        no_dist=True,
    )
    if layout is LAYOUTS["megatron"]:
        (folder / "metadata.json").write_text(json.dumps(_MEGATRON_FORMATS))
        torch.save({}, folder / "common.pt")
    return sum(one.numel() * one.element_size() for one in state.values())


class _LazyPlanner(DefaultSavePlanner):
    """Planner that reads each tensor only when it is written, and writes stacked tensors layer by layer."""

    def __init__(self, saved: SavedWeights, tensors: Tensors) -> None:
        super().__init__()
        self._saved, self._tensors = saved, tensors

    def create_local_plan(self) -> SavePlan:
        """Return the plan with one item per layer of each stacked tensor."""
        plan = super().create_local_plan()
        self.plan = dataclasses.replace(plan, items=[piece for item in plan.items for piece in self._layers(item)])
        return self.plan

    def _layers(self, item: WriteItem) -> Iterator[WriteItem]:
        one = self._tensors.get(item.index.fqn)
        if one is None or not one.stacked or item.tensor_data is None:
            yield item
            return
        for layer in range(one.shape[0]):
            offsets = torch.Size((layer, *(0 for _ in one.shape[1:])))
            chunk = ChunkStorageMetadata(offsets, torch.Size((1, *one.shape[1:])))
            index = MetadataIndex(item.index.fqn, offsets)
            yield WriteItem(index, WriteItemType.SHARD, tensor_data=dataclasses.replace(item.tensor_data, chunk=chunk))

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        """Return the data of one item of the plan."""
        if write_item.type == WriteItemType.BYTE_IO:
            return cast(io.BytesIO, super().resolve_data(write_item))
        one, data = self._tensors[write_item.index.fqn], write_item.tensor_data
        assert data is not None
        parts = [self._part(part) for part in _within(one.ranges, data.chunk)]
        return (parts[0].clone() if len(parts) == 1 else torch.cat(parts)).reshape(data.chunk.sizes)

    def _part(self, part: TensorRange) -> Tensor:
        return self._saved.tensor(part.tensor).reshape(-1)[part.first : part.first + part.elements]


def _within(ranges: Sequence[TensorRange], chunk: ChunkStorageMetadata) -> Iterator[TensorRange]:
    """Yield the ranges of a tensor that are in a chunk: a whole tensor, or one layer of a stacked tensor."""
    size = math.prod(chunk.sizes)
    first, at = chunk.offsets[0] * size, 0
    for one in ranges:
        if first <= at < first + size:
            yield one
        at += one.elements


class _Writer(FileSystemWriter):
    """Writer whose metadata has no random identifier and no path, so that equal weights give equal files."""

    def storage_meta(self) -> None:
        """Return no metadata about the place and time of writing."""
