"""Tensor and sequence ranks that exchange over process groups."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from plinth.model.division import Division, PipelineStage, SequenceRanks, TensorRanks
from plinth.training.parallel import collectives
from plinth.training.parallel.topology import Topology


class TensorGroup(TensorRanks):
    """The ranks of a process group that share every matrix."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.size, self.index = dist.get_world_size(group), dist.get_rank(group)

    def enter_region(self, x: Tensor) -> Tensor:
        return collectives.enter_region(x, self.group)

    def leave_region(self, x: Tensor) -> Tensor:
        return collectives.leave_region(x, self.group)

    def total(self, x: Tensor) -> Tensor:
        return collectives.summed(x, self.group)

    def maximum(self, x: Tensor) -> Tensor:
        highest = x.clone()
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=self.group)
        return highest


class SequenceGroup(SequenceRanks):
    """The ranks of a process group that share every sequence."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.size, self.index = dist.get_world_size(group), dist.get_rank(group)

    def scatter_heads(self, x: Tensor) -> Tensor:
        return collectives.scatter_heads(x, self.group)

    def gather_heads(self, x: Tensor) -> Tensor:
        return collectives.gather_heads(x, self.group)


def division_of(topology: Topology) -> Division:
    """The part of a decoder that the rank of a topology holds."""
    return Division(
        stage=PipelineStage(topology.place.pipeline, topology.shape.pipeline),
        tensor=TensorRanks() if topology.tensor is None else TensorGroup(topology.tensor),
        sequence=SequenceRanks() if topology.sequence is None else SequenceGroup(topology.sequence),
    )
