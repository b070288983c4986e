"""Keys and values of tokens seen before, so that a next token costs one token's work.

    B  sequences    K  key/value heads    E  head width    T  slots    G  query heads that share a key/value head

A token's slot is its position. Sequences of a batch may have different lengths: each writes where it is, and a mask
keeps it from slots that it has not reached. Works for every architecture: it stands where attention takes its mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from plinth.model.parameters import Model


class KeyValues:
    """Slots of every layer: [B, K, T, E] each for keys and values."""

    def __init__(self, config: Model, sequences: int, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (2, config.layers, sequences, config.kv_heads, slots, config.head_width)
        self._held = torch.zeros(shape, device=device, dtype=dtype)
        self._sequences = torch.arange(sequences, device=device)

    def layer(self, index: int, positions: Tensor, mask: Tensor | None) -> LayerKeyValues:
        """What layer `index` sees in a pass over tokens at `positions` [B, S]."""
        return LayerKeyValues(self._held[0, index], self._held[1, index], self._sequences, positions, mask)

    def keep(self, sequences: Tensor) -> None:
        """Leave only some of the sequences, by index."""
        self._held = self._held.index_select(2, sequences)
        self._sequences = self._sequences[: len(sequences)]


class LayerKeyValues(NamedTuple):
    """The slots of one layer. Tokens of a pass are all of the prompts, or one of each sequence."""

    keys: Tensor  # [B, K, T, E]
    values: Tensor  # [B, K, T, E]
    sequences: Tensor  # 0, 1, … [B]
    positions: Tensor  # [B, S]
    mask: Tensor | None  # additive [B, 1, 1, seen slots]; None in the pass over prompts

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[B, H, S, E] from rotated q [B, H, S, E] and k, v [B, K, S, E] of this pass, which are kept."""
        length = q.shape[2]
        if self.mask is None:
            self.keys[:, :, :length], self.values[:, :, :length] = k, v
            grouped = q.shape[1] != k.shape[1]
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        slots = self.positions[:, 0]
        self.keys[self.sequences, :, slots], self.values[self.sequences, :, slots] = k[:, :, 0], v[:, :, 0]
        seen = self.mask.shape[-1]
        # query heads that share keys stand where queries do: nothing is copied for them
        grouped_q = q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1])
        found = functional.scaled_dot_product_attention(
            grouped_q, self.keys[:, :, :seen], self.values[:, :, :seen], attn_mask=self.mask, scale=scale
        )
        return found.reshape(q.shape)
