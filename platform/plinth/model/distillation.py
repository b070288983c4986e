"""Distillation: cross-entropy mixed with the forward KL from a teacher, without holding all logits of either.

    N  tokens    D, E  widths of student and teacher    V  vocabulary

The loss of a token is (1 - w) CE + w T^2 KL(p || q), with p and q the teacher's and the student's distributions at
temperature T (Hinton, Vinyals, Dean, arXiv:1503.02531, section 2; T^2 keeps gradients of one size). KL is the whole of
it, with the teacher's entropy: of a teacher with itself it is 0, and so is the gradient. As in `loss`, rows are taken
in chunks, and a chunk's gradient is computed while both sides' logits of it are there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from plinth.model.loss import IGNORED, chunk_rows, logits_of, scored, with_gradient


class Teacher(NamedTuple):
    """What a teacher says of a batch, and how much it counts.

    Attributes:
        hidden: its states after the last norm [N, E].
        weight: its output embeddings [V, E].
        scale: of its logits.
        share: w.
        temperature: T.
    """

    hidden: Tensor
    weight: Tensor
    scale: float
    share: float
    temperature: float


def distilled_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    teacher: Teacher,
    *,
    scale: float = 1.0,
    z_loss: float = 0.0,
    rows: int | None = None,
) -> Tensor:
    """Mean loss in nats, FP32 scalar, over the scored targets; 0 where none is scored. No wait for the device.

    Args:
        hidden: the student's states [N, D]; `weight` its output embeddings [V, D].
        targets: ids [N]; `IGNORED` is not scored, neither by cross-entropy nor by the teacher.
        z_loss: as of `loss.cross_entropy`, with the weight of the cross-entropy.
        rows: chunk size.
    """
    rows = rows or chunk_rows(weight.shape[0])
    loss: Tensor = _Distilled.apply(hidden, weight, targets, teacher, scale, z_loss, rows)  # type: ignore[no-untyped-call]
    return loss


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """T^2 KL(teacher || student) of each row of logits [n, V], and its gradient by the student's logits [n, V]."""
    ours, theirs = ((side / temperature).log_softmax(-1) for side in (student, teacher))
    given = theirs.exp()
    gap = (given * (theirs - ours)).sum(-1)
    return gap * temperature**2, (ours.exp() - given) * temperature


class _Distilled(torch.autograd.Function):
    """The loss by chunks, and in the same pass its gradients, summed over chunks in FP32."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        teacher: Teacher,
        scale: float,
        z_loss: float,
        rows: int,
    ) -> Tensor:
        count = scored(targets)
        total = hidden.new_zeros((), dtype=torch.float32)
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(hidden), rows):
            part, wanted = hidden[start : start + rows], targets[start : start + rows]
            logits = logits_of(part, weight, scale)
            says = logits_of(teacher.hidden[start : start + rows], teacher.weight, teacher.scale)
            loss, gradient = _mixed(logits, says, wanted, teacher, z_loss)
            total += loss
            gradient = gradient.mul_(scale / count).to(hidden.dtype)
            torch.mm(gradient, weight, out=to_hidden[start : start + rows])
            to_weight += gradient.T @ part
        ctx.save_for_backward(to_hidden, to_weight.to(weight.dtype))
        return total / count

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        to_hidden, to_weight = ctx.saved_tensors
        given = outer[0]
        return to_hidden * given.to(to_hidden.dtype), to_weight * given.to(to_weight.dtype), *(None,) * 5


def _mixed(logits: Tensor, says: Tensor, targets: Tensor, teacher: Teacher, z_loss: float) -> tuple[Tensor, Tensor]:
    """Summed loss of a chunk, and its gradient by the student's logits."""
    kept = targets != IGNORED
    gaps, gradient = divergence(logits, says, teacher.temperature)
    gaps, gradient = gaps.masked_fill(~kept, 0), gradient * kept[:, None]
    share = teacher.share
    if share == 1.0:
        return gaps.sum(), gradient
    loss, plain = with_gradient(logits, targets, z_loss)
    return (1 - share) * loss + share * gaps.sum(), plain.mul_(1 - share).add_(gradient, alpha=share)
