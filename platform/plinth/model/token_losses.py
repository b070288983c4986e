"""The loss of every single target, and whether the model would have chosen it: what scoring needs.

    U  outputs    N  targets    D  model width    V  vocabulary

Several targets may be asked of one output (the answers to one question). Logits are held for some outputs at a time;
the vocabulary may be divided over tensor ranks.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from plinth.model.division import TensorRanks

#: Logits held at once by one thread; in FP32 64 MiB.
CHUNK_ELEMENTS = 2**24


def token_losses(
    hidden: Tensor, weight: Tensor, which: Tensor, targets: Tensor, start: int, ranks: TensorRanks, scale: float
) -> Tensor:
    """[N, 2] in FP32: -ln p of each target, and 1 where it is the most probable token (ties: the lowest id is).

    Args:
        hidden: outputs after the last norm [U, D], the same on every tensor rank.
        weight: this rank's rows of the output embeddings, beginning with id `start`.
        which: the output that predicts each target, ascending [N].
        targets: ids of the whole vocabulary [N].
        start: first id that this rank holds.
        ranks: those that divide the vocabulary.
        scale: factor of the logits.
    """
    hidden, rows = ranks.enter_region(hidden), max(1, CHUNK_ELEMENTS // weight.shape[0])
    edges = torch.searchsorted(which, torch.arange(0, len(hidden) + rows, rows, device=which.device)).tolist()
    found = [torch.empty(0, 2, device=hidden.device)]
    for number, (first, last) in enumerate(pairwise(edges)):
        logits = functional.linear(hidden[number * rows : (number + 1) * rows], weight).float()
        logits = logits if scale == 1.0 else logits * scale
        found.append(_of(logits, which[first:last] - number * rows, targets[first:last], start, ranks))
    return torch.cat(found)


def _of(logits: Tensor, which: Tensor, targets: Tensor, start: int, ranks: TensorRanks) -> Tensor:
    """Of logits [u, V / ranks] of some outputs."""
    local, best = logits.max(dim=-1)
    highest = ranks.maximum(local)
    mass = ranks.total((logits - highest.unsqueeze(-1)).exp().sum(-1)).log()
    chosen = -ranks.maximum(torch.where(local == highest, -(best + start), torch.iinfo(best.dtype).min))
    column = targets - start
    held = (column >= 0) & (column < logits.shape[-1])
    picked = logits[which, column.masked_fill(~held, 0)] - highest[which]
    picked = ranks.total(picked.masked_fill(~held, 0))
    return torch.stack((mass[which] - picked, (chosen[which] == targets).float()), dim=-1)
