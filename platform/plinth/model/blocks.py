"""The parts of a decoder block.

    B  sequences    S  tokens of a sequence    D  model width    H  query heads    K  key/value heads
    E  head width (D / H unless given)         F  width of the feed-forward

Pre-norm blocks of grouped-query attention (Ainslie et al., arXiv:2305.13245) and SwiGLU (Shazeer,
arXiv:2002.05202) with RMSNorm (arXiv:1910.07467), as in Llama (arXiv:2302.13971). With `qk_norm`, queries
and keys are normalised per head before rotation, as in Qwen3 (arXiv:2505.09388).
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from plinth.model.attention import Core, Mask, Rotation, rotate
from plinth.model.parameters import Model


class Attention(nn.Module):
    """Grouped-query attention over [B, S, D]."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_width
        self.q_proj = nn.Linear(config.dim, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.dim, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.dim, bias=False)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)
        self.qk_norm = config.qk_norm
        self.scale = config.attention_scale
        self.core: nn.Module = Core(self.scale)

    def forward(self, x: Tensor, rotation: Rotation, mask: Mask) -> Tensor:
        """[B, S, D] to [B, S, D]. Without a mask attention is causal over the whole sequence."""
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q.transpose(1, 2), rotation), rotate(k.transpose(1, 2), rotation)
        out = self.core(q, k, v.transpose(1, 2), mask)
        return cast(Tensor, self.o_proj(out.transpose(1, 2).reshape(batch, length, -1)))


class FeedForward(nn.Module):
    """SwiGLU over [B, S, D]."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x)))


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and added to what came in."""

    def __init__(self, config: Model, index: int) -> None:
        super().__init__()
        self.index = index  # within the whole model, wherever this block lies
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, rotation: Rotation, mask: Mask) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, mask)
        return cast(Tensor, x + self.mlp(self.post_attention_layernorm(x)))
