"""Distillation: cross-entropy mixed with the forward KL from a teacher, without holding all logits of either.

    N  tokens    D, E  widths of student and teacher    V  vocabulary    k  stored tokens of a position

The loss of a token is (1 - w) CE + w T^2 KL(p || q), with p and q the teacher's and the student's distributions at
temperature T (Hinton, Vinyals, Dean, arXiv:1503.02531, section 2; T^2 keeps gradients of one size). KL is the whole of
it, with the teacher's entropy: of a teacher with itself it is 0, and so is the gradient. As in `loss`, rows are taken
in chunks, and a chunk's gradient is computed while both sides' logits of it are there.

Of stored logits the k most probable tokens are known and the mass of all others together, the tail. The KL is then that
of k + 1 events, which is at most the whole one (the log sum inequality), 0 for equal distributions, and the whole one
at k = V.
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

    def divergence(self, rows: slice, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Of the student's logits [n, V] of some rows: the KL [n], and its gradient [n, V]."""
        says = logits_of(self.hidden[rows], self.weight, self.scale)
        return divergence(logits, says, self.temperature)


class TopTokens(NamedTuple):
    """What a teacher said of a batch, as it was stored, and how much it counts.

    Attributes:
        ids: the k most probable tokens of each position [N, k], int64.
        log_p: ln of their probabilities at temperature T, and last that of all others together [N, k + 1], FP32.
        share: w.
        temperature: T.
    """

    ids: Tensor
    log_p: Tensor
    share: float
    temperature: float

    def divergence(self, rows: slice, logits: Tensor) -> tuple[Tensor, Tensor]:
        """As of `Teacher`."""
        return divergence_of_top(logits, self.ids[rows], self.log_p[rows], self.temperature)


def distilled_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    teacher: Teacher | TopTokens,
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


def top_tokens(logits: Tensor, count: int, temperature: float) -> tuple[Tensor, Tensor]:
    """The most probable tokens of each row of logits [n, V], ascending by id [n, k], and `TopTokens.log_p` of them."""
    log_p = (logits / temperature).log_softmax(-1)
    ids = log_p.topk(count).indices.sort(-1).values
    return ids, _events(log_p, ids)


def divergence_of_top(logits: Tensor, ids: Tensor, log_p: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """T^2 KL of k tokens and the tail, of each row of the student's logits [n, V], and its gradient [n, V].

    By a token's logit the gradient is q - p; by one of the tail it is q (1 - P / Q), with P and Q the tail's mass on
    either side.
    """
    ours = (logits / temperature).log_softmax(-1)
    log_q, given = _events(ours, ids), log_p.exp()
    gaps = torch.where(given > 0, given * (log_p - log_q), 0).sum(-1)
    tail = torch.where(given[:, -1:] > 0, log_p[:, -1:] - log_q[:, -1:], -torch.inf)
    gradient = ours.exp() - (ours + tail).exp()
    gradient.scatter_(-1, ids, log_q[:, :-1].exp() - given[:, :-1])
    return gaps * temperature**2, gradient.mul_(temperature)


def _events(log_p: Tensor, ids: Tensor) -> Tensor:
    """ln p [n, V] of some tokens [n, k], and of all others together: [n, k + 1]."""
    others = log_p.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([log_p.gather(-1, ids), others], -1)


class _Distilled(torch.autograd.Function):
    """The loss by chunks, and in the same pass its gradients, summed over chunks in FP32."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        teacher: Teacher | TopTokens,
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
            taught = teacher.divergence(slice(start, start + rows), logits)
            loss, gradient = _mixed(logits, taught, wanted, teacher.share, z_loss)
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


def _mixed(
    logits: Tensor, taught: tuple[Tensor, Tensor], targets: Tensor, share: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Summed loss of a chunk, and its gradient by the student's logits."""
    kept = targets != IGNORED
    gaps, gradient = taught[0].masked_fill(~kept, 0), taught[1] * kept[:, None]
    if share == 1.0:
        return gaps.sum(), gradient
    loss, plain = with_gradient(logits, targets, z_loss)
    return (1 - share) * loss + share * gaps.sum(), plain.mul_(1 - share).add_(gradient, alpha=share)
