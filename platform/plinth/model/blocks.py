"""Decoder blocks: shared parts, and the block of each architecture (`architectures`).

    B  sequences    S  tokens per sequence     D  model width    H  query heads    K  key/value heads
    E  head width (D / H by default)           F  feed-forward width
    U  requested outputs

Blocks use grouped-query attention (Ainslie et al., arXiv:2305.13245) and SwiGLU (Shazeer, arXiv:2002.05202).

Tensor parallelism divides the query, key, value, gate and up matrices by rows (whole heads), and the projections back
into the residual stream by columns. The forward pass has one all-reduce after attention and one after the feed-forward;
the backward pass has two as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from plinth.model.attention import CoreAttention, Mask, Rotation, UlyssesAttention, rotate
from plinth.model.division import (
    COLUMNS,
    DIVIDED_BIAS,
    DIVIDED_GAIN,
    GAIN,
    HEAD_GAIN,
    ROWS,
    Declaration,
    Division,
    TensorRanks,
)
from plinth.model.experts import SparseFeedForward
from plinth.model.parameters import Model

#: Queries [B, H, S, E], keys and values [B, K, S, E].
Heads = tuple[Tensor, Tensor, Tensor]


class Attention(nn.Module, ABC):
    """Grouped-query attention over [B, S, D]. Each architecture's subclass defines the norms of queries and keys."""

    DECLARED: ClassVar[Mapping[str, Declaration]] = {
        "q_proj.weight": ROWS,
        "k_proj.weight": ROWS,
        "v_proj.weight": ROWS,
        "o_proj.weight": COLUMNS,
        "q_proj.bias": DIVIDED_BIAS,
        "k_proj.bias": DIVIDED_BIAS,
        "v_proj.bias": DIVIDED_BIAS,
        "sinks": DIVIDED_BIAS,
    }

    def __init__(self, config: Model, division: Division) -> None:
        super().__init__()
        biased = config.qkv_bias
        self.ranks, self.head_dim, self.scale = division.tensor, config.head_width, config.attention_scale
        self.q_proj = nn.Linear(config.dim, config.heads * self.head_dim, bias=biased)
        self.k_proj = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=biased)
        self.v_proj = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=biased)
        self.o_proj = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)
        self.sinks = nn.Parameter(torch.zeros(config.heads)) if config.sinks else None
        divided = division.sequence.size > 1
        self.core = UlyssesAttention(self.scale, division.sequence) if divided else CoreAttention(self.scale)

    def heads(self, x: Tensor, rotation: Rotation) -> Heads:
        """Return the inputs of the attention kernel `core` for x [B, S, D].

        The inputs are rotated queries [B, H, S, E], rotated keys [B, K, S, E] and values [B, K, S, E].
        """
        x = self.ranks.enter_region(x)
        q, k, v = self.q_proj(x), self.k_proj(x), self.split(self.v_proj(x))
        q, k = self.normalise(q, k)
        return rotate(q.transpose(1, 2), rotation), rotate(k.transpose(1, 2), rotation), v.transpose(1, 2)

    def joined(self, heads: Tensor, outputs: Tensor | None) -> Tensor:
        """Project the attention outputs [B, H, S, E] of `core` to [B, S, D], or to [U, D] if only some outputs are
        requested."""
        return self.ranks.leave_region(self.o_proj(taken(heads.transpose(1, 2).flatten(2), outputs)))

    @abstractmethod
    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Split queries [B, S, H x E] and keys [B, S, K x E] into this rank's heads, and normalize them.

        The results are [B, S, H, E] and [B, S, K, E].
        """

    def split(self, x: Tensor) -> Tensor:
        """Split the last axis into heads: [B, S, H x E] becomes [B, S, H, E]."""
        return x.view(*x.shape[:-1], -1, self.head_dim)


class FeedForward(nn.Module):
    """SwiGLU feed-forward layer over [B, S, D]."""

    DECLARED: ClassVar[Mapping[str, Declaration]] = {
        "gate_proj.weight": ROWS,
        "up_proj.weight": ROWS,
        "down_proj.weight": COLUMNS,
    }

    def __init__(self, dim: int, width: int, division: Division) -> None:
        super().__init__()
        self.ranks = division.tensor
        self.gate_proj = nn.Linear(dim, width, bias=False)
        self.up_proj = nn.Linear(dim, width, bias=False)
        self.down_proj = nn.Linear(width, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map activations [B, S, D] to the feed-forward's output [B, S, D]."""
        x = self.ranks.enter_region(x)
        return self.ranks.leave_region(self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x)))


def feed_forward(config: Model, index: int, division: Division) -> nn.Module:
    """Return the feed-forward of a layer, dense or sparse."""
    experts = config.experts
    if experts is None or not experts.at(index):
        return FeedForward(config.dim, config.ffn_dim, division)
    shared = FeedForward(config.dim, experts.shared * experts.ffn_dim, division) if experts.shared else None
    return SparseFeedForward(config, division, shared)


class Block(nn.Module, ABC):
    """Base class of decoder layers, which map [B, S, D] to [B, S, D].

    The attention kernel runs between `before` and `after`, each of which is compiled as one graph. The kernel is chosen
    by mask and device. It runs outside the compiled graphs, where activation statistics can read its inputs.
    The number of rows of an expert varies, so `after` is not compiled in a sparse layer.
    """

    self_attn: Attention
    mlp: nn.Module

    def __init__(self, config: Model, index: int) -> None:
        super().__init__()
        self.index = index  # index within the whole model
        self.window = config.window_at(index)  # keys that a token attends to, or None without a limit

    def forward(self, x: Tensor, rotation: Rotation, mask: Mask, outputs: Tensor | None = None) -> Tensor:
        """Add attention, then feed-forward, to the residual stream. Without a mask, attention is causal.

        If `outputs` (flat indices into [B x S]) is given, only the activations [U, D] of these tokens are returned. In
        the last layer, this saves work, because only the keys and values of the other tokens are needed.
        """
        q, k, v = self.before(x, rotation)
        return self.after(x, self.self_attn.core(q, k, v, mask, self.self_attn.sinks), outputs)

    @property
    def graphs(self) -> tuple[str, ...]:
        """Names of the methods that can be compiled as one graph each."""
        return ("before",) if isinstance(self.mlp, SparseFeedForward) else ("before", "after")

    @abstractmethod
    def before(self, x: Tensor, rotation: Rotation) -> Heads:
        """Return the queries, keys and values of the attention for the block's input [B, S, D]."""

    @abstractmethod
    def after(self, x: Tensor, heads: Tensor, outputs: Tensor | None) -> Tensor:
        """Return the block's output from its input [B, S, D] and the attention result [B, H, S, E]."""


def taken(x: Tensor, outputs: Tensor | None) -> Tensor:
    """Return the rows of `x` [B, S, D] at the flat indices `outputs`, as [U, D]. If `outputs` is None, return `x`."""
    return x if outputs is None else x.flatten(0, 1)[outputs]


# Llama's block: each sublayer after a norm of its input. With `qkv_bias` it is Qwen2's (arXiv:2407.10671), with
# `qk_norm` Qwen3's (arXiv:2505.09388), which normalizes queries and keys per head before rotation. With `sinks` it is
# Granite's with sliding windows, whose sinks are gpt-oss's (arXiv:2508.10925).


class LlamaAttention(Attention):
    """Llama's attention, with an optional norm on each head's queries and keys."""

    DECLARED: ClassVar[Mapping[str, Declaration]] = {
        **Attention.DECLARED,
        "q_norm.weight": HEAD_GAIN,
        "k_norm.weight": HEAD_GAIN,
    }

    def __init__(self, config: Model, division: Division) -> None:
        super().__init__(config, division)
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.split(q), self.split(k)
        return (self.q_norm(q), self.k_norm(k)) if self.qk_norm else (q, k)


class LlamaBlock(Block):
    """Pre-norm block: x + attention(norm(x)), then x + feed-forward(norm(x))."""

    attention: ClassVar[type[Attention]] = LlamaAttention

    DECLARED: ClassVar[Mapping[str, Declaration]] = {
        "input_layernorm.weight": GAIN,
        "post_attention_layernorm.weight": GAIN,
    }

    def __init__(self, config: Model, index: int, division: Division) -> None:
        super().__init__(config, index)
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.self_attn = self.attention(config, division)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = feed_forward(config, index, division)

    def before(self, x: Tensor, rotation: Rotation) -> Heads:
        return self.self_attn.heads(self.input_layernorm(x), rotation)

    def after(self, x: Tensor, heads: Tensor, outputs: Tensor | None) -> Tensor:
        x = taken(x, outputs) + self.self_attn.joined(heads, outputs)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


# OLMo 2's block: each sublayer's output is normalized before it is added to the residual stream, and queries and
# keys are normalized over the whole width of their projection, before it is split into heads.


class ProjectionNorm(nn.Module):
    """RMSNorm over [B, S, width], whose columns are divided over tensor ranks. The mean square covers all ranks.

    The sum of squares passes through `leave_region` and `enter_region`. The gradient of this sum is therefore summed
    over the ranks too, because the columns of every rank depend on the sum.
    """

    DECLARED: ClassVar[Mapping[str, Declaration]] = {"weight": DIVIDED_GAIN}

    def __init__(self, width: int, eps: float, ranks: TensorRanks) -> None:
        super().__init__()
        self.width, self.eps, self.ranks = width, eps, ranks
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x [B, S, width / ranks] in FP32, and return it in the precision of `x`."""
        if self.ranks.size == 1:
            return functional.rms_norm(x, (self.width,), self.weight, self.eps)
        exact = x.float()
        squares = self.ranks.enter_region(self.ranks.leave_region(exact.square().sum(-1, keepdim=True)))
        return (exact * torch.rsqrt(squares / self.width + self.eps) * self.weight).to(x.dtype)


class Olmo2Attention(Attention):
    """OLMo 2's attention: queries and keys are normalized over all heads together."""

    def __init__(self, config: Model, division: Division) -> None:
        super().__init__(config, division)
        self.q_norm = ProjectionNorm(config.heads * self.head_dim, config.norm_eps, self.ranks)
        self.k_norm = ProjectionNorm(config.kv_heads * self.head_dim, config.norm_eps, self.ranks)

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.q_norm(q)), self.split(self.k_norm(k))


class Olmo2Block(Block):
    """Post-norm block: x + norm(attention(x)), then x + norm(feed-forward(x))."""

    DECLARED: ClassVar[Mapping[str, Declaration]] = {
        "post_attention_layernorm.weight": GAIN,
        "post_feedforward_layernorm.weight": GAIN,
    }

    def __init__(self, config: Model, index: int, division: Division) -> None:
        super().__init__(config, index)
        self.self_attn = Olmo2Attention(config, division)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = feed_forward(config, index, division)
        self.post_feedforward_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)

    def before(self, x: Tensor, rotation: Rotation) -> Heads:
        return self.self_attn.heads(x, rotation)

    def after(self, x: Tensor, heads: Tensor, outputs: Tensor | None) -> Tensor:
        x = taken(x, outputs) + self.post_attention_layernorm(self.self_attn.joined(heads, outputs))
        return x + self.post_feedforward_layernorm(self.mlp(x))  # type: ignore[no-any-return]


class OlmoeBlock(LlamaBlock):
    """OLMoE's block: pre-norm, with OLMo 2's attention."""

    attention = Olmo2Attention
