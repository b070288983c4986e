"""Which rank holds which part of a matrix, and how the parts come together and go back.

    ZeRO-0       every rank holds every matrix: nothing travels
    ZeRO-1, -2   all parameters of a group end to end, divided evenly: most matrices lie on one rank, and one across a
                 border goes to the rank with the largest part
    ZeRO-3       every matrix divided evenly over all ranks: as many matrices as ranks travel at once, each to another

A rank computes the matrices that it owns and no other, so that the work is divided as the memory is. Parts are copied,
never summed: the result does not depend on the number of ranks.

Read in DeepSpeed 0.19: `stage_1_and_2.py` (`round_robin_bit16_offsets`), `stage3.py` (`grad_position`). Its own Muon is
not used: it takes the gradient into the momentum before the guard has judged it, gathers momentum and gradient in FP32,
and computes in FP32 or FP16 by the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class HeldRange(NamedTuple):
    """Elements of a flattened matrix that a rank holds."""

    rank: int  # in the group
    first: int
    size: int


class HeldMatrix(NamedTuple):
    """A matrix and the ranks that hold it."""

    shape: tuple[int, int]
    held: slice  # of this rank's flat tensor; empty where the rank holds nothing of it
    ranges: tuple[HeldRange, ...]  # ascending

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


class Wave(NamedTuple):
    """Matrices whose parts travel at once."""

    matrices: tuple[HeldMatrix, ...]
    owners: tuple[int, ...]  # rank in the group that has each whole
    rank: int
    group: Any  # None: nothing travels

    def gather(self, parts: Sequence[Tensor]) -> dict[int, Tensor]:
        """The whole matrices that this rank owns, by index, from every rank's parts [elements] of all; a collective."""
        whole, transfers = dict[int, Tensor](), list[dist.P2POp]()
        for index, (one, owner) in enumerate(zip(self.matrices, self.owners, strict=True)):
            if owner == self.rank:
                whole[index] = torch.empty(one.size, dtype=parts[index].dtype, device=parts[index].device)
            for span in one.ranges:
                if owner == self.rank:
                    target = whole[index][span.first : span.first + span.size]
                    if span.rank == self.rank:
                        target.copy_(parts[index])
                    else:
                        transfers.append(self._transfer(dist.irecv, target, span.rank))
                elif span.rank == self.rank:
                    transfers.append(self._transfer(dist.isend, parts[index], owner))
        _complete(transfers)
        return {index: flat.view(self.matrices[index].shape) for index, flat in whole.items()}

    def scatter(self, whole: dict[int, Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """This rank's part of every matrix, from those that each owns [elements]; a collective."""
        parts, transfers = [torch.empty_like(part) for part in like], list[dist.P2POp]()
        for index, (one, owner) in enumerate(zip(self.matrices, self.owners, strict=True)):
            for span in one.ranges:
                if owner == self.rank:
                    source = whole[index][span.first : span.first + span.size]
                    if span.rank == self.rank:
                        parts[index] = source
                    else:
                        transfers.append(self._transfer(dist.isend, source, span.rank))
                elif span.rank == self.rank:
                    transfers.append(self._transfer(dist.irecv, parts[index], owner))
        _complete(transfers)
        return parts

    def _transfer(self, act: Any, tensor: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(act, tensor.contiguous(), dist.get_global_rank(self.group, peer), self.group)


class MatrixDivision:
    """The waves of every flat tensor; a tensor that is no flat one is a whole matrix."""

    def __init__(self) -> None:
        self._waves: dict[Tensor, list[Wave]] = {}

    def waves(self, flat: Tensor) -> list[Wave]:
        """The matrices of a tensor that the optimizer steps, in an order that all ranks share."""
        if flat not in self._waves:
            rows, columns = flat.shape  # without ZeRO
            whole = HeldRange(0, 0, flat.numel())
            self._waves[flat] = [_alone(HeldMatrix((rows, columns), slice(0, flat.numel()), (whole,)), 0)]
        return self._waves[flat]

    def follow(self, outer: Any, groups: Sequence[dict[str, Any]]) -> None:
        """Learn where DeepSpeed's optimizer has put the matrices of the groups with `hidden_matrices`."""
        hidden = [index for index, group in enumerate(groups) if group.get("hidden_matrices")]
        if hasattr(outer, "fp32_partitioned_groups_flat"):
            self._waves = dict(_divided_each(outer, hidden))
        elif hasattr(outer, "round_robin_bit16_offsets"):
            for index in hidden:
                flat, group = outer.single_partition_of_fp32_groups[index], outer.real_dp_process_group[index]
                members, offsets = outer.round_robin_bit16_groups[index], outer.round_robin_bit16_offsets[index]
                self._waves[flat] = _end_to_end(members, offsets, flat.numel(), group)


def _alone(one: HeldMatrix, rank: int) -> Wave:
    return Wave((one,), (rank,), rank, None)


def _end_to_end(members: Sequence[Tensor], offsets: Sequence[int], share: int, group: Any) -> list[Wave]:
    """ZeRO-1 and ZeRO-2: rank r holds the elements from r x share on."""
    rank = dist.get_rank(group)
    waves, across = list[Wave](), list[HeldMatrix]()
    for member, offset in zip(members, offsets, strict=True):
        rows, columns = member.shape
        ranges = []
        for holder in range(offset // share, (offset + member.numel() - 1) // share + 1):
            first, last = max(offset, holder * share), min(offset + member.numel(), (holder + 1) * share)
            ranges.append(HeldRange(holder, first - offset, last - first))
        mine = next((span for span in ranges if span.rank == rank), None)
        if mine is None:
            continue
        start = offset + mine.first - rank * share
        one = HeldMatrix((rows, columns), slice(start, start + mine.size), tuple(ranges))
        if len(ranges) == 1:
            waves.append(_alone(one, rank))
        else:
            across.append(one)
    owners = tuple(max(one.ranges, key=lambda span: (span.size, -span.rank)).rank for one in across)
    return [Wave(tuple(across), owners, rank, group), *waves] if across else waves


def _divided_each(outer: Any, hidden: Sequence[int]) -> Iterator[tuple[Tensor, list[Wave]]]:
    """ZeRO-3: rank r holds the elements of each matrix from r x its share on, the last share padded."""
    group = outer.dp_process_group
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    for sub_group, members in enumerate(outer.fp16_groups):
        if outer.sub_group_to_group_id[sub_group] not in hidden:
            continue
        matrices = []
        for member in members:
            _, offset, share = outer.grad_position[outer.get_param_id(member)]
            whole = int(member.ds_numel)
            spans = (HeldRange(holder, holder * share, min(share, whole - holder * share)) for holder in range(world))
            ranges = tuple(span for span in spans if span.size > 0)
            mine = max(0, min(share, whole - rank * share))
            rows, columns = member.ds_shape
            matrices.append(HeldMatrix((rows, columns), slice(offset, offset + mine), ranges))
        waves = []
        for begin in range(0, len(matrices), world):
            some = tuple(matrices[begin : begin + world])
            owners = tuple(one.ranges[index % len(one.ranges)].rank for index, one in enumerate(some))
            waves.append(Wave(some, owners, rank, group))
        yield outer.fp32_partitioned_groups_flat[sub_group], waves


def _complete(transfers: list[dist.P2POp]) -> None:
    if transfers:
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
