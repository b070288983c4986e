"""Llama's block: each sublayer after a norm of its input. With `qkv_bias` it is Qwen2's (arXiv:2407.10671), with
`qk_norm` Qwen3's (arXiv:2505.09388), which normalises queries and keys per head before rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from plinth.model.attention import Rotation
from plinth.model.blocks import Attention, Block, FeedForward, Heads, taken
from plinth.model.division import GAIN, HEAD_GAIN, Declaration, Division
from plinth.model.parameters import Model


class LlamaAttention(Attention):
    """Attention with or without a norm of each head's queries and keys."""

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
    """Pre-norm: x + attention(norm(x)), then x + feed-forward(norm(x))."""

    DECLARED: ClassVar[Mapping[str, Declaration]] = {
        "input_layernorm.weight": GAIN,
        "post_attention_layernorm.weight": GAIN,
    }

    def __init__(self, config: Model, index: int, division: Division) -> None:
        super().__init__(index)
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.self_attn = LlamaAttention(config, division)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = FeedForward(config, division)

    def before(self, x: Tensor, rotation: Rotation) -> Heads:
        return self.self_attn.heads(self.input_layernorm(x), rotation)

    def after(self, x: Tensor, heads: Tensor, outputs: Tensor | None) -> Tensor:
        x = taken(x, outputs) + self.self_attn.joined(heads, outputs)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]
