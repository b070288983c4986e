"""Softmax attention: rotary positions, document masks, and kernels by device.

    B  sequences    S  tokens per sequence    H  query heads    K  key/value heads    E  head width

Attention paths for training, which a recipe may set (`AttentionPath`):

    auto   `sdpa` on CPUs, and on GPUs if no document ends within a sequence; otherwise `flex`
    sdpa   PyTorch's `scaled_dot_product_attention`, which picks a fused kernel; a document mask is dense, [B, 1, S, S]
    flex   FlexAttention (arXiv:2412.05496): its block mask of S x S / 128^2 bits skips whole blocks outside a
           document. It is compiled once per shape on GPUs; on CPUs torch 2.13 cannot compute its gradient
    flash  `sdpa` restricted to the FlashAttention kernel (arXiv:2307.08691); fails if the kernel is unsupported, and
           accepts no mask

A layer with a sliding window of W keys attends to the key of the token itself and the W - 1 keys before it, within the
token's document. A window needs a mask: dense with `sdpa`; `flex` skips the blocks outside of the window.

Attention sinks are one logit per query head in the denominator of the softmax, without a value. FlexAttention returns
the denominator, so its output is scaled; `sdpa` computes the whole matrix of scores instead, because PyTorch's fused
kernels do not return the denominator with a gradient. `auto` is therefore `flex` on GPUs, and `flash` has no sinks.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from plinth.model.division import SequenceRanks
from plinth.model.parameters import AttentionPath, Model, RopeScaling, repeats


class LayerKeyValues(NamedTuple):
    """Key/value cache slots of one layer, for one forward pass over all prompt tokens or over one new token per
    sequence."""

    keys: Tensor  # [B, K, T, E]
    values: Tensor  # [B, K, T, E]
    sequences: Tensor  # 0, 1, … [B]
    positions: Tensor  # [B, S]
    mask: Tensor | None  # additive [B, 1, S, seen slots]; in the pass over prompts None unless the layer has a window

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, sinks: Tensor | None = None) -> Tensor:
        """Return attention outputs [B, H, S, E] for rotated queries q [B, H, S, E], and cache the keys and values.

        The arguments k and v [B, K, S, E] are the keys and values of this forward pass. See `attended` for the others.
        """
        length = q.shape[2]
        if self.mask is None or length > 1:
            self.keys[:, :, :length], self.values[:, :, :length] = k, v
            return attended(q, k, v, self.mask, scale, sinks)
        slots = self.positions[:, 0]
        self.keys[self.sequences, :, slots], self.values[self.sequences, :, slots] = k[:, :, 0], v[:, :, 0]
        seen = self.mask.shape[-1]
        if sinks is not None:
            return attended(q, self.keys[:, :, :seen], self.values[:, :, :seen], self.mask, scale, sinks)
        # query heads that share a key head are folded into the query dimension, without a copy
        grouped_q = q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1])
        found = functional.scaled_dot_product_attention(
            grouped_q, self.keys[:, :, :seen], self.values[:, :, :seen], attn_mask=self.mask, scale=scale
        )
        return found.reshape(q.shape)


#: Mask within documents and windows: additive [B, 1, S, S] or [1, 1, S, S], FlexAttention's, or None for plainly causal
#: attention. In generation, the keys and values of earlier tokens.
Mask = Tensor | BlockMask | LayerKeyValues | None

Rotation = tuple[Tensor, Tensor]


class CoreAttention(nn.Module):
    """Softmax attention without parameters, over heads whose queries and keys are already rotated."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.flash = False  # FlashAttention's kernel or an error

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask = None, sinks: Tensor | None = None) -> Tensor:
        """Return attention outputs [B, H, S, E] for q [B, H, S, E] and k, v [B, K, S, E].

        Attention is causal; with a mask, it stays within each document or window. See `attended` for `sinks`.
        """
        if isinstance(mask, LayerKeyValues):
            return mask.attend(q, k, v, self.scale, sinks)
        if isinstance(mask, BlockMask):
            attend = _flex() if q.is_cuda else flex_attention
            options = {"block_mask": mask, "scale": self.scale, "enable_gqa": q.shape[1] != k.shape[1]}
            if sinks is None:
                return cast(Tensor, attend(q, k, v, **options))
            output, found = attend(q, k, v, **options, return_aux=AuxRequest(lse=True))
            share = (found.lse - sinks.float()[:, None]).sigmoid()  # of the keys in the denominator
            return cast(Tensor, output * share.unsqueeze(-1).to(output.dtype))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if self.flash and mask is None else nullcontext():
            return attended(q, k, v, mask, self.scale, sinks)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, sinks: Tensor | None) -> Tensor:
    """Return attention outputs [B, H, S, E] for q [B, H, S, E] and k, v [B, K, T, E].

    Args:
        mask: additive [B, 1, S, T], or None for causal attention with T = S.
        sinks: logit of each query head that is added to the softmax's denominator [H] (gpt-oss, arXiv:2508.10925).
    """
    groups = q.shape[1] // k.shape[1]
    if sinks is None:
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=groups > 1
        )
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if mask is None:
        mask = additive(~band(q.shape[2], None, q.device), q.dtype)
    scores = (q @ k.transpose(-2, -1)).float() * scale + mask
    total = torch.logaddexp(scores.logsumexp(-1, keepdim=True), sinks.float()[:, None, None])
    return (scores - total).exp().to(v.dtype) @ v


class UlyssesAttention(nn.Module):
    """`CoreAttention` for sequences whose tokens are divided over n ranks (DeepSpeed-Ulysses, arXiv:2309.14509).

    Two all-to-alls turn [B, H, S/n, E] into [B, H/n, S, E] and back. Each rank computes some heads over whole
    sequences, so causal and document masks are the same as on a single rank.

    DeepSpeed's `DistributedAttention` (0.19) is unsuitable: it needs at least as many key/value heads as ranks and
    keeps the process group in global state. In this class, key/value heads that cannot be divided evenly over the ranks
    are repeated first, as in grouped-query attention; autograd adds up the gradients of the copies.
    """

    def __init__(self, scale: float, ranks: SequenceRanks) -> None:
        super().__init__()
        self.core, self.ranks = CoreAttention(scale), ranks

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask = None, sinks: Tensor | None = None) -> Tensor:
        """Return attention outputs [B, H, S/n, E] for q [B, H, S/n, E] and k, v [B, K, S/n, E].

        The argument `mask` covers whole sequences of S tokens, and `sinks` [H] all heads of the slice.
        """
        times = repeats(q.shape[1], k.shape[1], self.ranks.size)
        if times > 1:
            k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
        q, k, v = (self.ranks.scatter_heads(x) for x in (q, k, v))
        if sinks is not None:
            sinks = sinks.chunk(self.ranks.size)[self.ranks.index]
        return self.ranks.gather_heads(cast(Tensor, self.core(q, k, v, mask, sinks)))


@cache
def _flex() -> Any:
    """Return FlexAttention, compiled once per process because it is slow without compilation."""
    return torch.compile(flex_attention, dynamic=False)


@cache
def _block_mask() -> Any:
    return torch.compile(create_block_mask, dynamic=False)


def attention_mask(
    tokens: Tensor,
    segments: Tensor | None,
    dtype: torch.dtype,
    *,
    whole: bool | None = None,
    path: AttentionPath = "auto",
    window: int | None = None,
) -> Mask:
    """Return the mask that keeps attention within each document and window, or None if attention is plainly causal.

    Args:
        tokens: ids of whole sequences [B, S]; only shape and device are used.
        segments: document number of each token [B, S], or None.
        dtype: dtype of the queries.
        whole: True if no document ends within a sequence. If None, `segments` is checked, but only on CPUs, where the
            check does not wait for a device.
        path: attention path that uses the mask.
        window: keys that a token attends to, including itself, or None without a limit.
    """
    length, device = tokens.shape[1], tokens.device
    blocks = path == "flex" or (path == "auto" and tokens.is_cuda)
    if window is not None and window >= length:
        window = None
    if whole or (segments is not None and whole is None and not blocks and _all_whole(segments)):
        segments = None
    if segments is not None:
        return flex_mask(segments, window) if blocks else document_mask(segments, dtype, window)
    if path == "flex" or (blocks and window is not None):
        return causal_mask(length, device, window)
    return None if window is None else additive(~band(length, window, device)[None, None], dtype)


def _all_whole(segments: Tensor) -> bool:
    """Return True if no document ends within a sequence. Return False on GPUs, without waiting for the device."""
    return not segments.is_cuda and bool((segments == segments[:, :1]).all())


@cache
def causal_mask(length: int, device: torch.device, window: int | None = None) -> BlockMask:
    """Return FlexAttention's mask for sequences without document boundaries, cached by length."""

    def within(b: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k if window is None else (q >= k) & (q - k < window)

    return create_block_mask(within, None, None, length, length, device=device)


def flex_mask(segments: Tensor, window: int | None = None) -> BlockMask:
    """Return FlexAttention's document mask for `segments` [B, S], without waiting for the device."""
    batch, length = segments.shape

    def within(b: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (q >= k) & (segments[b, q] == segments[b, k])
        return seen if window is None else seen & (q - k < window)

    make = _block_mask() if segments.is_cuda else create_block_mask
    return cast(BlockMask, make(within, batch, None, length, length, device=segments.device))


def document_mask(segments: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
    """Return the additive mask [B, 1, S, S] that lets each token attend to itself and to earlier tokens of its
    document, within the window if there is one."""
    unseen = segments[:, None, :, None] != segments[:, None, None, :]
    return additive(unseen.logical_or_(~band(segments.shape[1], window, segments.device)), dtype)


def band(length: int, window: int | None, device: torch.device) -> Tensor:
    """Return the keys [S, S] that each query of a sequence sees: its own and those before it, within the window."""
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril_()
    return seen if window is None else seen.triu_(1 - window)


def additive(unseen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask that hides the keys in `unseen`."""
    return torch.zeros(unseen.shape, dtype=dtype, device=unseen.device).masked_fill_(unseen, -math.inf)


def rotary(config: Model, positions: Tensor, dtype: torch.dtype) -> Rotation:
    """Return the cosines and sines of the rotary angles (Su et al., arXiv:2104.09864) in `dtype`, computed in FP32.

    Cosines and sines have the shape [S, R] for positions [S], and [B, 1, S, R] for positions [B, S]. R is the rotated
    width of a head.
    """
    width, device = config.rotary_width, positions.device
    frequency = config.rope_theta ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    factor = 1.0
    if config.rope_scaling is not None:
        frequency, factor = scaled(frequency, config), config.rope_scaling.attention_factor
    angle = positions.to(torch.float32).unsqueeze(-1) * frequency
    angle = torch.cat((angle, angle), dim=-1)
    angle = angle.unsqueeze(1) if positions.dim() == 2 else angle
    cos, sin = angle.cos(), angle.sin()
    return (cos * factor).to(dtype), (sin * factor).to(dtype)


def scaled(frequency: Tensor, config: Model) -> Tensor:
    """Return the rotary frequencies [E / 2], with the model's scaling for long contexts applied."""
    scaling = config.rope_scaling
    if scaling is None:
        return frequency
    return _yarn(frequency, config.rope_theta, scaling) if scaling.kind == "yarn" else _llama3(frequency, scaling)


def _yarn(frequency: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """Return YaRN's rotary frequencies (arXiv:2309.00071, section 3.2).

    As in YaRN's code, the bounds between kept and stretched dimensions are rounded to whole dimensions.
    """
    pairs = len(frequency)

    def dimension(turns: float) -> float:
        """Return the index of the dimension pair that makes `turns` rotations within the original context length."""
        return pairs * math.log(scaling.original_tokens / (turns * 2 * math.pi)) / math.log(theta)

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), 2 * pairs - 1)
    width = high - low or 0.001
    stretched = ((torch.arange(pairs, device=frequency.device, dtype=torch.float32) - low) / width).clamp(0, 1)
    return frequency * (1 - stretched) + frequency / scaling.factor * stretched


def _llama3(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Return Llama 3.1's rotary frequencies (arXiv:2407.21783, section 3.4.2), blended as in the released code."""
    turns = scaling.original_tokens * frequency / (2 * math.pi)  # within the original context
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / scaling.factor)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Apply rotary positions to the first R dimensions of [B, H, S, E], pairing dimension i with i + R/2."""
    cos, sin = rotation
    if (width := cos.shape[-1]) < x.shape[-1]:
        parts = rotate(x[..., :width], rotation), x[..., width:]
        # in the memory order of the projections, or attention's output would be copied
        return torch.cat([part.transpose(1, 2) for part in parts], dim=-1).transpose(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


# Key/value cache: generating one more token costs the work of a single token.
#
#     B  sequences    K  key/value heads    E  head width    T  slots    G  query heads that share a key/value head
#
# A token's slot is its position. Sequences of a batch may have different lengths: each writes at its own positions, and
# a mask hides slots that it has not reached. It works for every architecture, in the place of the attention mask.


class KeyValues:
    """Key/value cache of all layers. The keys and values of a layer are [B, K, T, E] each, with slots for T tokens."""

    def __init__(self, config: Model, sequences: int, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (2, config.layers, sequences, config.kv_heads, slots, config.head_width)
        self._held = torch.zeros(shape, device=device, dtype=dtype)
        self._sequences = torch.arange(sequences, device=device)

    def layer(self, index: int, positions: Tensor, mask: Tensor | None) -> LayerKeyValues:
        """Return the cache slots of layer `index` for a pass over tokens at `positions` [B, S]."""
        return LayerKeyValues(self._held[0, index], self._held[1, index], self._sequences, positions, mask)

    def keep(self, sequences: Tensor) -> None:
        """Keep only the sequences with the indices `sequences` in the cache."""
        self._held = self._held.index_select(2, sequences)
        self._sequences = self._sequences[: len(sequences)]


# Layout of tokens and requested outputs, for forward passes other than plain training.
#
#     B  sequences    S  tokens of a sequence given    K  visible keys    N  targets    U  requested outputs
#
# A row of likelihoods may have a prefix and several continuations, each at the positions after the prefix and masked
# from the others.


class Layout(NamedTuple):
    """Layout of a forward pass that differs from plain training: positions, mask, requested outputs and targets."""

    positions: Tensor  # [B, S]
    mask: Tensor | None = None  # additive [B, 1, S, K]; None: causal over the sequence
    outputs: Tensor | None = None  # flat indices into [B x S], ascending [U]; None: all
    which: Tensor | None = None  # index into `outputs` of the output that predicts each target, ascending [N]
    targets: Tensor | None = None  # ids [N]; None: return logits
    cache: KeyValues | None = None  # key/value cache; a mask then covers its slots

    def mask_within(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Return the mask of layers with this window: None, or additive [B, 1, S, K]."""
        cached = self.cache is not None and self.mask is not None
        keys = self.positions.shape[1] if self.mask is None else self.mask.shape[-1]
        if window is None or window >= keys:
            return self.mask
        slots = torch.arange(keys, device=self.positions.device).unsqueeze(0) if cached else self.positions
        far = (self.positions.unsqueeze(2) - slots.unsqueeze(1) >= window).unsqueeze(1)
        if self.mask is None:
            return additive(far.logical_or_(~band(keys, None, far.device)), dtype)
        return self.mask.masked_fill(far, -math.inf)

    def seen(self, layer: int, mask: Tensor | None) -> Tensor | LayerKeyValues | None:
        """Return the `mask` argument for the attention of a layer: the layer's cache slots if there is a cache, else
        the attention mask `mask`, from `mask_within`."""
        return mask if self.cache is None else self.cache.layer(layer, self.positions, mask)

    def of_slice(self, index: int, ranks: int) -> SliceTargets:
        """Return the requested outputs and the targets in slice `index` of every sequence, cut into `ranks` slices."""
        if ranks == 1:
            return SliceTargets(self.outputs, self.which, slice(None))
        assert self.outputs is not None
        assert self.which is not None
        length = self.positions.shape[1]
        width = length // ranks
        row, column = self.outputs // length, self.outputs % length - index * width
        ours = (column >= 0) & (column < width)
        kept = ours[self.which]
        return SliceTargets((row * width + column)[ours], (ours.cumsum(0) - 1)[self.which[kept]], kept)


class SliceTargets(NamedTuple):
    """Requested outputs and targets on one rank, which has one slice of every sequence."""

    outputs: Tensor | None  # flat indices into [B x S/n], ascending [u]; None: all
    which: Tensor | None  # indices into `outputs` [n]; None: return logits
    kept: Tensor | slice  # mask of these targets among all [N], bool


def branch_mask(branches: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask [B, 1, S, S] for a shared prefix (branch 0) that is followed by several branches.

    A token attends to itself and to earlier tokens in the prefix and in its own branch.

    Args:
        branches: branch of each token [B, S]; the tokens of a branch follow the prefix.
        dtype: dtype of the queries.
    """
    query, key = branches[:, :, None], branches[:, None, :]
    seen = ((key == 0) | (key == query)).tril()
    return additive(~seen, dtype).unsqueeze(1)
