"""Embedding and loss over a vocabulary whose rows tensor ranks divide (Megatron-LM, arXiv:1909.08053, section 3).

    B  sequences    S  tokens of a sequence    N  tokens    D  model width

The loss is computed without ever holding whole logits. The vocabulary need not divide evenly.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from plinth.model.division import TensorRanks
from plinth.model.loss import IGNORED


def divided_embedding(tokens: Tensor, weight: Tensor, start: int, ranks: TensorRanks) -> Tensor:
    """Ids [B, S] to [B, S, D], from rows `start` … of the embedding matrix on this rank."""
    local = tokens - start
    foreign = (local < 0) | (local >= weight.shape[0])
    found = functional.embedding(local.masked_fill(foreign, 0), weight)
    return ranks.leave_region(found.masked_fill(foreign.unsqueeze(-1), 0))


def divided_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, start: int, ranks: TensorRanks, *, scale: float, z_loss: float
) -> Tensor:
    """`plinth.model.loss.cross_entropy` over a divided vocabulary: the same mean, FP32 scalar, on every rank.

    Args:
        hidden: [N, D], the same on every rank.
        weight: this rank's rows of the output embeddings, beginning with id `start`.
        targets: ids of the whole vocabulary [N]; `IGNORED` is not scored.
        scale, z_loss: as there.
    """
    logits = functional.linear(ranks.enter_region(hidden), weight)
    losses: Tensor = _CrossEntropy.apply(logits, targets, start, ranks, scale, z_loss)  # type: ignore[no-untyped-call]
    return losses.sum() / (targets != IGNORED).sum().clamp(min=1)


class _CrossEntropy(torch.autograd.Function):
    """log Z - logits[target] + z_loss (log Z)^2 of each token [N]; three numbers per token are exchanged.

    Logits are scaled in FP32, as `plinth.model.loss` scales them.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, start: int, ranks: TensorRanks, scale: float, z_loss: float
    ) -> Tensor:
        values = logits.float() if scale == 1.0 else logits.float() * scale
        highest = ranks.maximum(values.max(dim=-1).values)
        exponents = (values - highest.unsqueeze(-1)).exp()
        local = targets - start
        ours = (local >= 0) & (local < logits.shape[-1])
        index = local.masked_fill(~ours, 0).unsqueeze(-1)
        picked = (values.gather(-1, index).squeeze(-1) - highest).masked_fill(~ours, 0)
        sums = ranks.total(torch.stack((exponents.sum(-1), picked)))
        scored, normaliser = targets != IGNORED, sums[0].log() + highest
        ctx.save_for_backward(exponents.div_(sums[0].unsqueeze(-1)), index, ours, scored, normaliser)
        ctx.dtype, ctx.scale, ctx.z_loss = logits.dtype, scale, z_loss
        return (sums[0].log() - sums[1] + z_loss * normaliser.square()).masked_fill(~scored, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        chances, index, ours, scored, normaliser = ctx.saved_tensors
        slope = chances * (1 + 2 * ctx.z_loss * normaliser).unsqueeze(-1) if ctx.z_loss else chances.clone()
        slope.scatter_add_(-1, index, -ours.to(slope.dtype).unsqueeze(-1))
        slope *= (gradients[0] * scored * ctx.scale).unsqueeze(-1)
        return slope.to(ctx.dtype), None, None, None, None, None


# The loss of every single target, and whether the model would have chosen it: what scoring needs.
#
#     U  outputs    N  targets    D  model width    V  vocabulary
#
# Several targets may be asked of one output (the answers to one question). Logits are held for some outputs at a time;
# the vocabulary may be divided over tensor ranks.

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
