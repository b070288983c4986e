"""A Llama-style decoder.

    B  sequences            S  tokens of a sequence      V  vocabulary
    D  model width          H  query heads               K  key/value heads
    E  head width (D / H)   F  width of the feed-forward

Pre-norm blocks of grouped-query attention (Ainslie et al., arXiv:2305.13245) with rotary positions
(Su et al., arXiv:2104.09864, the half-rotation layout of Hugging Face) and SwiGLU (Shazeer,
arXiv:2002.05202), RMSNorm (arXiv:1910.07467), as in Llama (arXiv:2302.13971). With `qk_norm`, queries
and keys are normalised per head before rotation, as in Qwen3 (arXiv:2505.09388).
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from plinth.recipe.training import Model


class Attention(nn.Module):
    """Grouped-query attention over [B, S, D]."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.dim // config.heads
        self.q_proj = nn.Linear(config.dim, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.dim, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.dim, bias=False)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)
        self.qk_norm = config.qk_norm

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """[B, S, D] to [B, S, D]. `mask` is additive [B, 1, S, S]; without it attention is causal."""
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return cast(Tensor, self.o_proj(self.attend(q, k, v, rotation, mask).reshape(batch, length, -1)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Queries [B, S, H, E], keys and values [B, S, K, E] to [B, S, H, E]. Sequence parallelism replaces it."""
        out = functional.scaled_dot_product_attention(
            rotate(q.transpose(1, 2), rotation),
            rotate(k.transpose(1, 2), rotation),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=k.shape[2] != q.shape[2],
        )
        return out.transpose(1, 2)


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

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, mask)
        return cast(Tensor, x + self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    """Token ids to logits, or to the loss when targets are given.

    The embedding and output matrices belong to this outermost module: ZeRO-3 then keeps them gathered for
    the whole forward pass, which tied embeddings need.
    """

    def __init__(self, config: Model, vocab_size: int) -> None:
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.embed_tokens = nn.Parameter(torch.empty(vocab_size, config.dim))
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        if not config.tied_embeddings:
            self.lm_head = nn.Parameter(torch.empty(vocab_size, config.dim))

    def forward(self, tokens: Tensor, segments: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        """Logits [B, S, V], or the mean cross-entropy in nats (scalar, FP32) over `targets`.

        Args:
            tokens: ids [B, S].
            segments: document number of each token [B, S]; attention stays within a document.
            targets: next ids [B, S]; -100 is not scored.
        """
        x = self.embed(tokens)
        mask = document_mask(segments, x.dtype) if segments is not None else None
        rotation = self.rotation(x)
        for layer in self.layers:
            x = layer(x, rotation, mask)
        logits = self.logits(self.norm(x))
        return logits if targets is None else self.loss(logits, targets)

    def embed(self, tokens: Tensor) -> Tensor:
        """Ids [B, S] to [B, S, D]."""
        return functional.embedding(tokens, self.embed_tokens)

    def rotation(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [S, E] of the positions in `x` [B, S, D]."""
        return rotary(x.shape[1], self.config.dim // self.config.heads, self.config.rope_theta, x)

    def logits(self, x: Tensor) -> Tensor:
        """[B, S, D] after the last norm to [B, S, V]."""
        return functional.linear(x, self.embed_tokens if self.config.tied_embeddings else self.lm_head)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats (scalar, FP32) over targets [B, S] that are not -100."""
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def rotary(length: int, head_dim: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine [S, E] of positions 0 … S-1, computed in FP32, in the dtype and on the device of `like`."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=like.device, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(length, device=like.device, dtype=torch.float32), frequency).repeat(1, 2)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary positions to [B, H, S, E], pairing dimension i with i + E/2."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def document_mask(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask [B, 1, S, S]: a token sees itself and earlier tokens of its own document."""
    length = segments.shape[1]
    same = segments[:, None, :, None] == segments[:, None, None, :]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    return torch.zeros(same.shape, dtype=dtype, device=segments.device).masked_fill_(~(same & causal), -math.inf)


def initialise(model: Decoder, seed: int) -> None:
    """Normal weights with `init_std`; projections into the residual stream divided by sqrt(2 x layers) (GPT-2).

    Draws from a generator of its own, one parameter after the other by name: the same on every rank and device.
    """
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    residual_std = config.init_std / math.sqrt(2 * config.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("layernorm.weight", "norm.weight")):
                parameter.fill_(1.0)
                continue
            std = residual_std if name.endswith(("o_proj.weight", "down_proj.weight")) else config.init_std
            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))


def build(config: Model, vocab_size: int, seed: int) -> Decoder:
    """A freshly initialised decoder on the CPU, FP32."""
    model = Decoder(config, vocab_size)
    initialise(model, seed)
    return model
