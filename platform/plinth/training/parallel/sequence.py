"""Sequence parallelism: every rank of a group holds a slice of each sequence (DeepSpeed-Ulysses, arXiv:2309.14509).

    B  sequences    S  tokens of a sequence    n  ranks of the group    H, K, E  heads, key/value heads, head width

Everything but attention works token by token. For attention two all-to-alls turn [B, H, S/n, E] into
[B, H/n, S, E] and back: each rank attends with some heads over whole sequences, so that causal and document
masks are those of one process.

Our own rather than DeepSpeed's `DistributedAttention`: that one (0.19) wants at least as many key/value heads
as ranks and keeps the group in process-wide state. Here key/value heads that do not divide over the ranks are
repeated first, as grouped-query attention would do anyway; their gradients add up by themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from plinth.model.attention import Mask
from plinth.model.loss import IGNORED
from plinth.training.parallel.collectives import gather_heads, scatter_heads


@dataclass(frozen=True)
class Slice:
    """Which tokens of every sequence this rank holds: part `index` of `size`; 0 of 1 is all."""

    index: int
    size: int

    def of(self, x: Tensor) -> Tensor:
        """This rank's slice of [B, S, …]."""
        length = x.shape[1] // self.size
        return x.narrow(1, self.index * length, length)

    def positions(self, x: Tensor) -> Tensor:
        """Positions within the whole sequence of x [B, S/n, …]: [S/n]."""
        length = x.shape[1]
        return torch.arange(self.index * length, (self.index + 1) * length, device=x.device)

    def share(self, targets: Tensor) -> Tensor | int:
        """What to multiply the mean loss of this slice by, so that the mean over the group is that of all targets
        [B, S] that are scored."""
        if self.size == 1:
            return 1
        return self.size * (self.of(targets) != IGNORED).sum() / (targets != IGNORED).sum().clamp(min=1)


def repeats(heads: int, kv_heads: int, size: int) -> int:
    """How often each key/value head is repeated so that the heads of each rank belong together.

    The smallest number that divides `heads / kv_heads` and makes key/value heads divide over `size` ranks; it
    exists when heads do.
    """
    shared = heads // kv_heads
    least = size // math.gcd(kv_heads, size)
    return next(times for times in range(least, shared + 1) if shared % times == 0 and kv_heads * times % size == 0)


class UlyssesCore(nn.Module):
    """Softmax attention of heads whose tokens are divided over a group; the mask is of the whole sequence."""

    def __init__(self, core: nn.Module, group: ProcessGroup) -> None:
        super().__init__()
        self.core, self.group = core, group

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask = None) -> Tensor:
        """[B, H, S/n, E] from q [B, H, S/n, E] and k, v [B, K, S/n, E]."""
        times = repeats(q.shape[1], k.shape[1], dist.get_world_size(self.group))
        if times > 1:
            k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
        q, k, v = (scatter_heads(x, self.group) for x in (q, k, v))
        return gather_heads(cast(Tensor, self.core(q, k, v, mask)), self.group)
