"""Tensor parallelism: every matrix divided over the ranks of a group (Shoeybi et al., "Megatron-LM", arXiv:1909.08053).

Queries, keys, values, gate and up are divided by rows (whole heads), the projections back into the residual
stream by columns: one sum over the group after attention and one after the feed-forward, and the same in the
backward pass. Embedding and output are divided by vocabulary; the loss is computed without ever holding whole
logits. The vocabulary need not divide evenly. Norms are replicated.

The model is cut while it is hollow. Each rank then makes the part of the initial weights that it holds, so that they
are those of one process and no rank ever holds them whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn import functional

from plinth.model.initialisation import Part
from plinth.model.loss import IGNORED
from plinth.training.parallel.collectives import applied, enter_region, leave_region, summed

#: Axis along which a parameter is divided, by the end of its name. What is not named is replicated.
AXIS: dict[str, int] = {
    "q_proj.weight": 0,
    "k_proj.weight": 0,
    "v_proj.weight": 0,
    "gate_proj.weight": 0,
    "up_proj.weight": 0,
    "o_proj.weight": 1,
    "down_proj.weight": 1,
    "embed_tokens": 0,
    "lm_head": 0,
}

#: Replicated, but used by each rank on its own heads: its gradient is the sum over the group.
PARTIAL = ("q_norm.weight", "k_norm.weight")


def axis_of(name: str) -> int | None:
    """The axis along which a parameter is divided, or None."""
    return next((axis for end, axis in AXIS.items() if name.endswith(end)), None)


def bounds(size: int, parts: int, index: int) -> tuple[int, int]:
    """Half-open range of part `index` of `size` rows, as `torch.chunk` divides: the last part may be smaller."""
    each = -(-size // parts)
    return min(index * each, size), min((index + 1) * each, size)


def divide(model: nn.Module, group: ProcessGroup) -> None:
    """Cut every matrix of the hollow decoder to this rank's part and make its layers sum over the group."""
    size, index = dist.get_world_size(group), dist.get_rank(group)
    for name, parameter in model.named_parameters():
        axis = axis_of(name)
        if axis is not None:
            start, end = bounds(parameter.shape[axis], size, index)
            part = Part(tuple(parameter.shape), *((start, 0) if axis == 0 else (0, start)))
            parameter.data = parameter.data.narrow(axis, start, end - start)
            parameter.part = part  # type: ignore[attr-defined]  # for initial weights
            parameter.shard = (axis, index, size)  # type: ignore[attr-defined]  # for checkpoints of any layout
            # what DeepSpeed asks when it adds up norms: others are counted on the first tensor rank only
            parameter.model_parallel = True  # type: ignore[attr-defined]
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
        elif name.endswith(PARTIAL):
            parameter.register_hook(lambda gradient: summed(gradient, group))  # type: ignore[no-untyped-call]
    for layer in model.layers:  # type: ignore[union-attr]
        attention = layer.self_attn
        attention.heads, attention.kv_heads = attention.heads // size, attention.kv_heads // size
        for part in (attention, layer.mlp):
            part.register_forward_pre_hook(_Region(group).enter)
            part.register_forward_hook(_Region(group).leave)


@dataclass(frozen=True)
class _Region:
    """Hooks around a module that computes with divided matrices."""

    group: ProcessGroup

    def enter(self, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return enter_region(arguments[0], self.group), *arguments[1:]

    def leave(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        return leave_region(output, self.group)


def embed(tokens: Tensor, weight: Tensor, start: int, group: ProcessGroup) -> Tensor:
    """Ids [B, S] to [B, S, D], from rows `start` … of the embedding matrix on this rank."""
    local = tokens - start
    foreign = (local < 0) | (local >= weight.shape[0])
    found = functional.embedding(local.masked_fill(foreign, 0), weight)
    return leave_region(found.masked_fill(foreign.unsqueeze(-1), 0), group)


def cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, start: int, group: ProcessGroup, *, scale: float, z_loss: float
) -> Tensor:
    """`plinth.model.loss.cross_entropy` over a divided vocabulary: the same mean, FP32 scalar, on every rank.

    Args:
        hidden: [N, D], the same on every rank.
        weight: this rank's rows of the output embeddings, beginning with id `start`.
        targets: ids of the whole vocabulary [N]; `IGNORED` is not scored.
        scale, z_loss: as there.
    """
    logits = functional.linear(enter_region(hidden, group), weight)
    logits = logits if scale == 1.0 else logits * scale
    losses: Tensor = applied(_CrossEntropy, logits, targets, start, group, z_loss)
    return losses.sum() / (targets != IGNORED).sum().clamp(min=1)


class _CrossEntropy(torch.autograd.Function):
    """log Z - logits[target] + z_loss (log Z)^2 of each token [N]; three numbers per token are exchanged."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, start: int, group: ProcessGroup, z_loss: float) -> Tensor:
        values = logits.float()
        highest = values.max(dim=-1).values
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        exponents = (values - highest.unsqueeze(-1)).exp()
        local = targets - start
        ours = (local >= 0) & (local < logits.shape[-1])
        index = local.masked_fill(~ours, 0).unsqueeze(-1)
        picked = (values.gather(-1, index).squeeze(-1) - highest).masked_fill(~ours, 0)
        sums = torch.stack((exponents.sum(-1), picked))
        dist.all_reduce(sums, group=group)
        scored, normaliser = targets != IGNORED, sums[0].log() + highest
        ctx.save_for_backward(exponents.div_(sums[0].unsqueeze(-1)), index, ours, scored, normaliser)
        ctx.dtype, ctx.z_loss = logits.dtype, z_loss
        return (sums[0].log() - sums[1] + z_loss * normaliser.square()).masked_fill(~scored, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        chances, index, ours, scored, normaliser = ctx.saved_tensors
        slope = chances * (1 + 2 * ctx.z_loss * normaliser).unsqueeze(-1) if ctx.z_loss else chances.clone()
        slope.scatter_add_(-1, index, -ours.to(slope.dtype).unsqueeze(-1))
        return (slope * (gradients[0] * scored).unsqueeze(-1)).to(ctx.dtype), None, None, None, None


def whole(name: str, parameter: Tensor, group: ProcessGroup) -> Tensor:
    """The undivided parameter; a collective over the group."""
    axis = axis_of(name)
    if axis is None:
        return parameter
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=parameter.device)
    sizes[dist.get_rank(group)] = parameter.shape[axis]
    dist.all_reduce(sizes, group=group)
    widest = int(sizes.max())
    padded = parameter.transpose(0, axis)
    padded = functional.pad(padded, (0, 0) * (padded.dim() - 1) + (0, widest - padded.shape[0])).contiguous()
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    kept = [part[: int(size)] for part, size in zip(parts, sizes, strict=True)]
    return torch.cat(kept).transpose(0, axis).contiguous()


def norm_squared(module: nn.Module, group: ProcessGroup | None) -> Tensor:
    """Sum of squares of all gradients, FP32; replicated parameters count once."""
    counts_all = group is None or dist.get_rank(group) == 0
    kept = [p.grad for p in _with_gradients(module) if counts_all or getattr(p, "model_parallel", False)]
    total = nn.utils.get_total_norm([g for g in kept if g is not None]).square()
    return total if group is None else summed(total, group)


def _with_gradients(module: nn.Module) -> Iterator[nn.Parameter]:
    return (parameter for parameter in module.parameters() if parameter.grad is not None)
