"""Collectives that gradients flow through.

    enter_region    forward: as it is        backward: sum over the group     (Megatron-LM's f, arXiv:1909.08053)
    leave_region    forward: sum             backward: as it is               (its g)
    scatter_heads   [B, H, S/n, E] -> [B, H/n, S, E], backward the reverse    (DeepSpeed-Ulysses, arXiv:2309.14509)
    gather_heads    the reverse

`torch.compile` traces the first two, so that a block is one graph on tensor ranks too. The others lie around the
attention, outside of every graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as functional_collectives


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return summed(gradients[0], ctx.group), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Exchange(torch.autograd.Function):
    """Divide axis `divided` over the group and put together axis `joined`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, divided: int, joined: int) -> Tensor:
        ctx.group, ctx.divided, ctx.joined = group, divided, joined
        return _exchanged(x, group, divided, joined)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradients[0], ctx.group, ctx.joined, ctx.divided), None, None, None


def _exchanged(x: Tensor, group: ProcessGroup, divided: int, joined: int) -> Tensor:
    """One all-to-all; parts are joined in rank order."""
    size = dist.get_world_size(group)
    sent = torch.stack(x.chunk(size, dim=divided)).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(0), dim=joined)


def summed(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the group, in a tensor of its own."""
    if torch.compiler.is_compiling():  # the same collective in the form that graphs have
        total: Tensor = functional_collectives.all_reduce(x, "sum", group)
        return total
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def enter_region(x: Tensor, group: ProcessGroup) -> Tensor:
    """`x` of every rank of the group is the same; each computes a part of what depends on it."""
    entered: Tensor = _Enter.apply(x, group)  # type: ignore[no-untyped-call]
    return entered


def leave_region(x: Tensor, group: ProcessGroup) -> Tensor:
    """The parts of all ranks, added."""
    left: Tensor = _Leave.apply(x, group)  # type: ignore[no-untyped-call]
    return left


def scatter_heads(x: Tensor, group: ProcessGroup) -> Tensor:
    """Some tokens of all heads [B, H, S/n, E] to all tokens of some heads [B, H/n, S, E]."""
    exchanged: Tensor = _Exchange.apply(x, group, 1, 2)  # type: ignore[no-untyped-call]
    return exchanged


def gather_heads(x: Tensor, group: ProcessGroup) -> Tensor:
    """All tokens of some heads [B, H/n, S, E] to some tokens of all heads [B, H, S/n, E]."""
    exchanged: Tensor = _Exchange.apply(x, group, 2, 1)  # type: ignore[no-untyped-call]
    return exchanged
