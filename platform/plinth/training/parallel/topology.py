"""Coordinates of a rank along the data, pipeline, sequence and tensor axes; process groups; and the gradient path."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from plinth.records import Frozen
from plinth.training.parameters.parallel import Parallel

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


# Coordinates of a rank among data, pipeline, sequence and tensor ranks, and its process groups.
#
# Tensor is the fastest index, then sequence, pipeline and data: neighbors, which share a machine's fast links, exchange
# most (as in Megatron-LM, arXiv:2104.04473).
#
#     ranks = 8, tensor 2, sequence 2, data 2:    rank   0 1 2 3 4 5 6 7
#                                                 data   0 0 0 0 1 1 1 1
#                                                 seq.   0 0 1 1 0 0 1 1
#                                                 tensor 0 1 0 1 0 1 0 1
#
# `place_of` and `ranks_of` are torch-free.

Axis = Literal["data", "pipeline", "sequence", "tensor"]

#: Axes, slowest first.
AXES: tuple[Axis, ...] = ("data", "pipeline", "sequence", "tensor")


class RankPlace(NamedTuple):
    """Coordinates of a rank along each axis. The class is also used for the sizes of the axes."""

    data: int
    pipeline: int
    sequence: int
    tensor: int

    @property
    def leads(self) -> bool:
        """True if this rank is the first of its replica. A replica is the ranks that see the same sequences."""
        return self.pipeline == self.sequence == self.tensor == 0


def shape_of(parallel: Parallel, ranks: int) -> RankPlace:
    """Return the number of ranks along each axis."""
    return RankPlace(parallel.data_ranks(ranks), parallel.pipeline, parallel.sequence, parallel.tensor)


def place_of(parallel: Parallel, ranks: int, rank: int) -> RankPlace:
    """Return the coordinates of a rank."""
    coordinates, rest = [], rank
    for size in reversed(shape_of(parallel, ranks)):
        rest, coordinate = divmod(rest, size)
        coordinates.append(coordinate)
    return RankPlace(*reversed(coordinates))


def ranks_of(parallel: Parallel, ranks: int, axes: tuple[Axis, ...]) -> list[list[int]]:
    """Return the groups of ranks that differ along `axes` only, in rank order. Every rank is in exactly one group."""
    shape = shape_of(parallel, ranks)
    fixed = [range(1) if axis in axes else range(size) for axis, size in zip(AXES, shape, strict=True)]
    free = [range(size) if axis in axes else range(1) for axis, size in zip(AXES, shape, strict=True)]
    return [
        sorted(_number(shape, tuple(a + b for a, b in zip(base, step, strict=True))) for step in product(*free))
        for base in product(*fixed)
    ]


def _number(shape: RankPlace, place: tuple[int, ...]) -> int:
    number = 0
    for size, coordinate in zip(shape, place, strict=True):
        number = number * size + coordinate
    return number


def expert_groups(parallel: Parallel, ranks: int) -> list[list[int]]:
    """Return the groups of ranks that divide the experts: neighbors along the data axis."""
    groups, size = ranks_of(parallel, ranks, ("data",)), parallel.expert
    return [group[first : first + size] for group in groups for first in range(0, len(group), size)]


def expert_replicas(parallel: Parallel, ranks: int) -> list[list[int]]:
    """Return the groups of ranks that have the same experts of the same layers."""
    return [
        [rank for rank in replicas if place_of(parallel, ranks, rank).data % parallel.expert == index]
        for replicas in ranks_of(parallel, ranks, ("data", "sequence"))
        for index in range(parallel.expert)
    ]


#: Name of the expert-parallel groups in DeepSpeed. Every run has one degree.
EXPERT_GROUP = "experts"


def has_own_experts(parameter: Any) -> bool:
    """Return True if a parameter has experts that some replicas do not have. DeepSpeed reads the same mark."""
    return not getattr(parameter, "allreduce", True)


class Topology:
    """The process groups of this rank. All ranks must create it together, once, after they have joined.

    A group with a single rank is None, because such a group sends nothing.
    """

    def __init__(self, parallel: Parallel, ranks: int, rank: int) -> None:
        self.parallel, self.ranks, self.rank = parallel, ranks, rank
        self.shape, self.place = shape_of(parallel, ranks), place_of(parallel, ranks, rank)
        self.tensor = self.group_of(("tensor",))
        self.sequence = self.group_of(("sequence",))
        self.pipeline = self.group_of(("pipeline",))
        self.data = self.group_of(("data",))
        #: Ranks with the same parameters and different gradients. Gradients are averaged, and ZeRO divides state, among
        #: these.
        self.replicas = self.data if self.sequence is None else self.group_of(("data", "sequence"))
        #: Ranks that divide the experts; None if every rank has all of them.
        self.experts: ProcessGroup | None = None
        if parallel.expert > 1:
            self.experts, self.expert_members = self._own(expert_groups(parallel, ranks))
            #: Ranks with the same experts.
            self.expert_replicas, self.expert_replica_ranks = self._own(expert_replicas(parallel, ranks))

    @property
    def replica_ranks(self) -> list[int]:
        """Ranks of the group `replicas`."""
        return self.members(("data", "sequence"))

    def members(self, axes: tuple[Axis, ...]) -> list[int]:
        """Return the ranks that differ from this rank along `axes` only, including this rank."""
        return next(group for group in ranks_of(self.parallel, self.ranks, axes) if self.rank in group)

    def _own(self, groups: list[list[int]]) -> tuple[ProcessGroup, list[int]]:
        """Create all groups, and return this rank's own with its members, also if it is the only one."""
        import torch.distributed as dist

        made = [(dist.new_group(members), members) for members in groups]
        return next((group, members) for group, members in made if self.rank in members)

    def group_of(self, axes: tuple[Axis, ...]) -> ProcessGroup | None:
        """Return the group of the ranks that differ from this rank along `axes` only. All ranks must call this."""
        import torch.distributed as dist

        mine = None
        for members in ranks_of(self.parallel, self.ranks, axes):
            if len(members) == 1:
                continue
            group = dist.group.WORLD if len(members) == self.ranks else dist.new_group(members)
            if self.rank in members:
                mine = group
        return mine


class ModelParallelUnit:
    """DeepSpeed's interface to the process groups, called `mpu` as in Megatron: the ranks with the same parameters, and
    the ranks that divide them.

    DeepSpeed treats sequence ranks as data ranks, because they have the same parameters and different gradients.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._replicas = topology.replicas or _alone(topology)

    def get_data_parallel_group(self) -> Any:
        return self._replicas

    def get_data_parallel_group_ranks(self) -> list[int]:
        return self._topology.replica_ranks

    def get_data_parallel_world_size(self) -> int:
        return len(self._topology.replica_ranks)

    def get_data_parallel_rank(self) -> int:
        return self._topology.replica_ranks.index(self._topology.rank)

    def get_model_parallel_group(self) -> Any:
        return self._topology.tensor

    def get_model_parallel_world_size(self) -> int:
        return self._topology.shape.tensor

    def get_model_parallel_rank(self) -> int:
        return self._topology.place.tensor

    def get_model_parallel_src_rank(self) -> int:
        return self._topology.members(("tensor",))[0]

    get_tensor_model_parallel_group = get_model_parallel_group
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_src_rank = get_model_parallel_src_rank


def _alone(topology: Topology) -> Any:
    """Return a process group with only this rank. DeepSpeed would take None for the group of all ranks. All ranks must
    call this."""
    import torch.distributed as dist

    return [dist.new_group([rank]) for rank in range(topology.ranks)][topology.rank]


# Path of a gradient from the backward pass to the optimizer, by ZeRO stage and precision; no torch.
#
#     stage   accumulated                    reduced over replicas                     while backward goes on
#     0       whole, FP32                    once a step, all-reduce                   no
#     1       whole, FP32                    once a step, all-reduce in buckets        yes, in the last micro batch
#     2       this rank's part, FP32         each micro batch, all-reduce in buckets   yes
#     3       this rank's part, FP32         each micro batch, reduce-scatter          yes
#
# Gradients are accumulated in FP32 in every stage and precision: with eight bits of mantissa, a sum of 256 equal BF16
# numbers stops growing. They are sent in FP32 too unless `communication_dtype` is a smaller dtype. Stage 1 sends the
# fewest bytes with gradient accumulation; stages 2 and 3 store the fewest bytes.
#
# Does not belong here: bytes (plinth.operation.memory), or the configuration of DeepSpeed (training.engine).


class GradientPath(Frozen):
    """Dtypes and time of the accumulation and reduction of gradients, as `plinth run plan` prints them."""

    accumulation_dtype: str
    communication_dtype: str
    reduced: str  # when
    overlapped: bool  # with the backward pass

    def text(self) -> str:
        """Return a one-line summary for `plinth run plan`."""
        dtypes = f"accumulated in {self.accumulation_dtype}, sent in {self.communication_dtype}"
        when = "during the backward pass" if self.overlapped else "after the backward pass"
        return f"{dtypes}, reduced {self.reduced}, {when}"


def gradient_path(parallel: Parallel, *, gpu: bool) -> GradientPath:
    """Return the gradient path for a valid `parallel:` block, on a GPU or a CPU."""
    return GradientPath(
        accumulation_dtype="fp32",
        communication_dtype=communication_dtype(parallel),
        reduced="once a step" if parallel.zero_stage < 2 else "each micro batch",
        overlapped=overlaps(parallel, gpu=gpu),
    )


def communication_dtype(parallel: Parallel) -> str:
    """Return the dtype in which ranks send gradients."""
    return "fp32" if parallel.communication_dtype == "auto" else parallel.communication_dtype


def overlaps(parallel: Parallel, *, gpu: bool) -> bool:
    """Return True if gradients are reduced during the backward pass. By default this is so if it saves time."""
    if parallel.overlap_communication is not None:
        return parallel.overlap_communication
    return gpu and can_overlap(parallel) and parallel.offload == "none"


def can_overlap(parallel: Parallel) -> bool:
    """Return True if the reduction of gradients can overlap with the backward pass.

    ZeRO-0 reduces with one call at the end. A pipeline does the same, because its stages add to gradients until the
    end.
    """
    return parallel.zero_stage > 0 and parallel.pipeline == 1
