"""OLMo 2's block: each sublayer's output is normalised before it is added to the residual stream, and queries and
keys are normalised over the whole width of their projection, before it is split into heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from plinth.model.attention import Rotation
from plinth.model.blocks import Attention, Block, FeedForward, Heads, taken
from plinth.model.division import DIVIDED_GAIN, GAIN, Declaration, Division, TensorRanks
from plinth.model.parameters import Model


class ProjectionNorm(nn.Module):
    """RMSNorm of [B, S, width], of which each tensor rank holds some columns: the mean square is one over all ranks.

    The sum leaves the region and enters it again, so that its gradient too is summed: every rank's columns depend on
    the statistic.
    """

    DECLARED: ClassVar[Mapping[str, Declaration]] = {"weight": DIVIDED_GAIN}

    def __init__(self, width: int, eps: float, ranks: TensorRanks) -> None:
        super().__init__()
        self.width, self.eps, self.ranks = width, eps, ranks
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, width / ranks] to the same shape and precision; computed in FP32."""
        if self.ranks.size == 1:
            return functional.rms_norm(x, (self.width,), self.weight, self.eps)
        exact = x.float()
        squares = self.ranks.enter_region(self.ranks.leave_region(exact.square().sum(-1, keepdim=True)))
        return (exact * torch.rsqrt(squares / self.width + self.eps) * self.weight).to(x.dtype)


class Olmo2Attention(Attention):
    """Attention whose queries and keys are normalised over all heads together."""

    def __init__(self, config: Model, division: Division) -> None:
        super().__init__(config, division)
        self.q_norm = ProjectionNorm(config.heads * self.head_dim, config.norm_eps, self.ranks)
        self.k_norm = ProjectionNorm(config.kv_heads * self.head_dim, config.norm_eps, self.ranks)

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.q_norm(q)), self.split(self.k_norm(k))


class Olmo2Block(Block):
    """x + norm(attention(x)), then x + norm(feed-forward(x))."""

    DECLARED: ClassVar[Mapping[str, Declaration]] = {
        "post_attention_layernorm.weight": GAIN,
        "post_feedforward_layernorm.weight": GAIN,
    }

    def __init__(self, config: Model, index: int, division: Division) -> None:
        super().__init__(index)
        self.self_attn = Olmo2Attention(config, division)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = FeedForward(config, division)
        self.post_feedforward_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)

    def before(self, x: Tensor, rotation: Rotation) -> Heads:
        return self.self_attn.heads(x, rotation)

    def after(self, x: Tensor, heads: Tensor, outputs: Tensor | None) -> Tensor:
        x = taken(x, outputs) + self.post_attention_layernorm(self.self_attn.joined(heads, outputs))
        return x + self.post_feedforward_layernorm(self.mlp(x))  # type: ignore[no-any-return]
