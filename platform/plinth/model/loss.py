"""Cross-entropy over the vocabulary without holding all logits.

    N  tokens    D  model width    V  vocabulary

[N, V] in FP32 is the largest thing of a training step (8,192 tokens of a 128,256 vocabulary: 4.2 GB, and again
for its gradient). Here rows are taken in chunks; each chunk's gradient is computed while its logits are there, as
in Liger Kernel (arXiv:2410.10989), so nothing is computed twice: the work is that of the plain loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

#: Logits held at once; in FP32 512 MiB. Fewer rows than this at once would starve a GPU.
CHUNK_ELEMENTS = 2**27

#: A target that is not scored.
IGNORED = -100


def chunk_rows(vocab_size: int) -> int:
    """Rows of one chunk."""
    return max(1, CHUNK_ELEMENTS // vocab_size)


def cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, scale: float = 1.0, z_loss: float = 0.0, rows: int | None = None
) -> Tensor:
    """Mean cross-entropy in nats, FP32 scalar, of logits `scale * hidden @ weight.T`; 0 when nothing is scored.

    Args:
        hidden: [N, D].
        weight: output embeddings [V, D].
        targets: ids [N]; `IGNORED` is not scored.
        z_loss: adds z_loss * mean(log Z ^ 2), which keeps the softmax's normaliser near 1 (PaLM, arXiv:2204.02311).
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
    """Logits [n, V] in FP32."""
    logits = functional.linear(hidden, weight).float()
    return logits if scale == 1.0 else logits * scale


def _summed(hidden: Tensor, weight: Tensor, targets: Tensor, scale: float, z_loss: float) -> Tensor:
    logits = logits_of(hidden, weight, scale)
    total = functional.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)
    if z_loss:
        total = total + z_loss * (logits.logsumexp(-1).square() * (targets != IGNORED)).sum()
    return total


def scored(targets: Tensor) -> Tensor:
    """How many targets count, at least 1."""
    return (targets != IGNORED).sum().clamp(min=1)


class _Chunked(torch.autograd.Function):
    """The loss by chunks, and in the same pass its gradients, summed over chunks in FP32."""

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
    """Summed loss of [n, V] and its gradient, which takes the place of the logits."""
    kept = targets != IGNORED
    at = targets.clamp(min=0)[:, None]
    normaliser = logits.logsumexp(-1)
    losses = (normaliser - logits.gather(1, at).squeeze(1)) + z_loss * normaliser.square()
    loss = losses.masked_fill(~kept, 0).sum()  # to pick the kept ones, the host would wait for their number
    gradient = logits.sub_(normaliser[:, None]).exp_()
    gradient *= (1 + 2 * z_loss * normaliser)[:, None]
    gradient.scatter_add_(1, at, torch.full_like(at, -1, dtype=gradient.dtype))
    gradient *= kept[:, None]
    return loss, gradient
