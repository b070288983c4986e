"""Cross-entropy over the vocabulary, and distillation, without storing all logits.

    N  tokens    D  model width    V  vocabulary

The logits [N, V] in FP32 are the largest tensor of a training step: 4.2 GB for 8,192 tokens and a vocabulary of
128,256, and another 4.2 GB for their gradient. Here rows are processed in chunks, and each chunk's gradient is computed
with its logits, as in Liger Kernel (arXiv:2410.10989). Nothing is recomputed, so the FLOPs are those of the plain loss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

#: Number of logits in memory at once: 512 MiB in FP32. Smaller chunks would underuse a GPU.
CHUNK_ELEMENTS = 2**27

#: A target that is not scored.
IGNORED = -100


def chunk_rows(vocab_size: int) -> int:
    """Return the number of rows of logits per chunk."""
    return max(1, CHUNK_ELEMENTS // vocab_size)


def cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, scale: float = 1.0, z_loss: float = 0.0, rows: int | None = None
) -> Tensor:
    """Return the mean cross-entropy in nats, as an FP32 scalar, of logits `scale * hidden @ weight.T`.

    The result is 0 if no target is scored.

    Args:
        hidden: [N, D].
        weight: output embeddings [V, D].
        targets: ids [N]; targets equal to `IGNORED` are not scored.
        z_loss: adds z_loss * mean(log Z ^ 2), which keeps the softmax's normalizer near 1 (PaLM, arXiv:2204.02311).
        rows: chunk size; by default `chunk_rows`.
    """
    rows = rows or chunk_rows(weight.shape[0])
    if len(hidden) <= rows:
        return _summed(hidden, weight, targets, scale, z_loss) / scored(targets)
    if torch.is_grad_enabled():
        loss: Tensor = _Chunked.apply(hidden, weight, targets, scale, z_loss, rows)  # type: ignore[no-untyped-call]
        return loss
    total = hidden.new_zeros((), dtype=torch.float32)
    for start in range(0, len(hidden), rows):
        total += _summed(hidden[start : start + rows], weight, targets[start : start + rows], scale, z_loss)
    return total / scored(targets)


def logits_of(hidden: Tensor, weight: Tensor, scale: float) -> Tensor:
    """Return the logits [n, V] in FP32."""
    logits = functional.linear(hidden, weight).float()
    return logits if scale == 1.0 else logits * scale


def _summed(hidden: Tensor, weight: Tensor, targets: Tensor, scale: float, z_loss: float) -> Tensor:
    logits = logits_of(hidden, weight, scale)
    total = functional.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)
    if z_loss:
        total = total + z_loss * (logits.logsumexp(-1).square() * (targets != IGNORED)).sum()
    return total


def scored(targets: Tensor) -> Tensor:
    """Return the number of scored targets, or 1 if no target is scored."""
    return (targets != IGNORED).sum().clamp(min=1)


class _Chunked(torch.autograd.Function):
    """Cross-entropy computed in chunks, with its gradients in the same pass; the gradient of `weight` is summed in
    FP32."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, scale: float, z_loss: float, rows: int
    ) -> Tensor:
        count = scored(targets)
        total = hidden.new_zeros((), dtype=torch.float32)
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if weight.requires_grad else None
        for start in range(0, len(hidden), rows):
            part, wanted = hidden[start : start + rows], targets[start : start + rows]
            loss, gradient = with_gradient(logits_of(part, weight, scale), wanted, z_loss)
            total += loss
            gradient = gradient.mul_(scale / count).to(hidden.dtype)
            torch.mm(gradient, weight, out=to_hidden[start : start + rows])
            if to_weight is not None:
                to_weight += gradient.T @ part
        ctx.save_for_backward(to_hidden, None if to_weight is None else to_weight.to(weight.dtype))
        return total / count

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        to_hidden, to_weight = ctx.saved_tensors
        given = outer[0]
        return (
            to_hidden * given.to(to_hidden.dtype),
            None if to_weight is None else to_weight * given.to(to_weight.dtype),
            *(None,) * 4,
        )


def with_gradient(logits: Tensor, targets: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """Return the summed loss of logits [n, V], and its gradient. The gradient overwrites the logits."""
    kept = targets != IGNORED
    at = targets.clamp(min=0)[:, None]
    normaliser = logits.logsumexp(-1)
    losses = (normaliser - logits.gather(1, at).squeeze(1)) + z_loss * normaliser.square()
    loss = losses.masked_fill(~kept, 0).sum()  # selecting the kept ones would make the host wait for their number
    gradient = logits.sub_(normaliser[:, None]).exp_()
    gradient *= (1 + 2 * z_loss * normaliser)[:, None]
    gradient.scatter_add_(1, at, torch.full_like(at, -1, dtype=gradient.dtype))
    gradient *= kept[:, None]
    return loss, gradient


# Distillation: cross-entropy mixed with the forward KL from a teacher.
#
#     N  tokens    D, E  widths of student and teacher    V  vocabulary    k  stored tokens of a position
#
# The loss of a token is (1 - w) CE + w T^2 KL(p || q), with p and q the teacher's and the student's distributions at
# temperature T (Hinton, Vinyals, Dean, arXiv:1503.02531, section 2; T^2 keeps the size of gradients independent of T).
# KL includes the teacher's entropy, so it and its gradient are 0 if student and teacher are equal. As above, rows are
# processed in chunks, and a chunk's gradient is computed with the logits of both sides.
#
# Stored logits contain the k most probable tokens and the total mass of all others, the tail. The KL is then that
# of k + 1 events, which is at most the full KL (the log sum inequality), 0 for equal distributions, and the full KL at
# k = V.


class Teacher(NamedTuple):
    """Outputs of a teacher model for a batch, and their weight in the loss.

    Attributes:
        hidden: the teacher's states after the last norm [N, E].
        weight: the teacher's output embeddings [V, E].
        scale: factor of the teacher's logits.
        share: weight w of the divergence in the loss; cross-entropy has the weight 1 - w.
        temperature: temperature T of both distributions.
    """

    hidden: Tensor
    weight: Tensor
    scale: float
    share: float
    temperature: float

    def divergence(self, rows: slice, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the KL divergence [n] between teacher and student at the tokens `rows`, and its gradient [n, V].

        The gradient is with respect to the student's logits [n, V] of these tokens.
        """
        says = logits_of(self.hidden[rows], self.weight, self.scale)
        return divergence(logits, says, self.temperature)


class TopTokens(NamedTuple):
    """Stored top-k outputs of a teacher model for a batch, and their weight in the loss.

    Attributes:
        ids: ids of the k most probable tokens at each position [N, k], int64.
        log_p: log-probabilities of these tokens at temperature T; the last column is the log-probability of all other
            tokens together [N, k + 1], FP32.
        share: weight w of the divergence in the loss; cross-entropy has the weight 1 - w.
        temperature: temperature T of both distributions.
    """

    ids: Tensor
    log_p: Tensor
    share: float
    temperature: float

    def divergence(self, rows: slice, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the KL divergence [n] between the stored teacher outputs and the student, and its gradient [n, V].

        The gradient is with respect to the student's logits, as in `Teacher.divergence`.
        """
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
    """Return the mean distillation loss in nats over the scored targets, as an FP32 scalar.

    The result is 0 if no target is scored. The function does not wait for the device.

    Args:
        hidden: the student's states [N, D].
        weight: the student's output embeddings [V, D].
        targets: ids [N]; targets equal to `IGNORED` count neither in the cross-entropy nor in the divergence.
        z_loss: coefficient of the z-loss, as in `cross_entropy`; cross-entropy and z-loss have the same weight 1 - w.
        rows: chunk size.
    """
    rows = rows or chunk_rows(weight.shape[0])
    loss: Tensor = _Distilled.apply(hidden, weight, targets, teacher, scale, z_loss, rows)  # type: ignore[no-untyped-call]
    return loss


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return T^2 KL(teacher || student) for each row of logits [n, V], and its gradient [n, V].

    The gradient is with respect to the student's logits.
    """
    ours, theirs = ((side / temperature).log_softmax(-1) for side in (student, teacher))
    given = theirs.exp()
    gap = (given * (theirs - ours)).sum(-1)
    return gap * temperature**2, (ours.exp() - given) * temperature


def top_tokens(logits: Tensor, count: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the top k tokens of each row of logits [n, V], and their `TopTokens.log_p`.

    The token ids [n, k] are in ascending order.
    """
    log_p = (logits / temperature).log_softmax(-1)
    ids = log_p.topk(count).indices.sort(-1).values
    return ids, _events(log_p, ids)


def divergence_of_top(logits: Tensor, ids: Tensor, log_p: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return T^2 KL over the k stored tokens and the tail, for each row of the student's logits [n, V], and its
    gradient.

    The tail is the sum of all other tokens. The gradient [n, V] is q - p for the logit of a stored token, and q (1 - P
    / Q) for the logit of a tail token, where P and Q are the tail's mass under teacher and student.
    """
    ours = (logits / temperature).log_softmax(-1)
    log_q, given = _events(ours, ids), log_p.exp()
    gaps = torch.where(given > 0, given * (log_p - log_q), 0).sum(-1)
    tail = torch.where(given[:, -1:] > 0, log_p[:, -1:] - log_q[:, -1:], -torch.inf)
    gradient = ours.exp() - (ours + tail).exp()
    gradient.scatter_(-1, ids, log_q[:, :-1].exp() - given[:, :-1])
    return gaps * temperature**2, gradient.mul_(temperature)


def _events(log_p: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probabilities of k tokens and of the tail, [n, k + 1]. The tail is all other tokens together.

    `log_p` has the log-probabilities of all tokens [n, V].
    """
    others = log_p.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([log_p.gather(-1, ids), others], -1)


class _Distilled(torch.autograd.Function):
    """Distillation loss computed in chunks, with its gradients in the same pass; the gradient of `weight` is summed in
    FP32."""

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
    """Return the summed loss of a chunk, and its gradient with respect to the student's logits.

    The loss is the weighted sum of the cross-entropy and the teacher's divergence. The argument `taught` contains the
    divergence and its gradient.
    """
    kept = targets != IGNORED
    gaps, gradient = taught[0].masked_fill(~kept, 0), taught[1] * kept[:, None]
    if share == 1.0:
        return gaps.sum(), gradient
    loss, plain = with_gradient(logits, targets, z_loss)
    return (1 - share) * loss + share * gaps.sum(), plain.mul_(1 - share).add_(gradient, alpha=share)
