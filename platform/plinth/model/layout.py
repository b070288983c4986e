"""How tokens stand in a forward pass that is not plain training: which outputs are asked of it, and the keys and values
of tokens seen before.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from plinth.model.parameters import Model

# Keys and values of tokens seen before, so that a next token costs one token's work.
#
#     B  sequences    K  key/value heads    E  head width    T  slots    G  query heads that share a key/value head
#
# A token's slot is its position. Sequences of a batch may have different lengths: each writes where it is, and a mask
# keeps it from slots that it has not reached. Works for every architecture: it stands where attention takes its mask.


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


# How tokens stand in a forward pass that is not plain training, and which outputs are asked of it.
#
#     B  sequences    S  tokens of a sequence given    K  keys that may be seen    N  targets    U  outputs asked
#
# A row of likelihoods may hold a prefix and several continuations of it, each at the positions that follow the prefix
# and blind to the others.


class Layout(NamedTuple):
    """A forward pass of whole sequences."""

    positions: Tensor  # [B, S]
    mask: Tensor | None = None  # additive [B, 1, S, K]; None: causal over the sequence
    outputs: Tensor | None = None  # flat indices into [B x S], ascending [U]; None: all
    which: Tensor | None = None  # the output that predicts each target, ascending indices into `outputs` [N]
    targets: Tensor | None = None  # ids [N]; None: logits are wanted
    cache: KeyValues | None = None  # where keys and values are kept; a mask is then over its slots

    def seen(self, layer: int) -> Tensor | LayerKeyValues | None:
        """What attention of a layer takes as its mask."""
        return self.mask if self.cache is None else self.cache.layer(layer, self.positions, self.mask)

    def of_slice(self, index: int, ranks: int) -> SliceTargets:
        """Of the targets those that are predicted in slice `index` of sequences which so many ranks share."""
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
    """Outputs and targets of one slice of the sequences."""

    outputs: Tensor | None  # flat indices into [B x S/n], ascending [u]; None: all
    which: Tensor | None  # indices into `outputs` [n]; None: logits are wanted
    kept: Tensor | slice  # which of the whole's targets they are [N], bool


def branch_mask(branches: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask [B, 1, S, S]: a token sees earlier ones of the prefix (branch 0) and of its own branch.

    Args:
        branches: of each token [B, S]; the tokens of a branch come after the prefix.
        dtype: of the queries.
    """
    query, key = branches[:, :, None], branches[:, None, :]
    seen = ((key == 0) | (key == query)).tril()
    mask = torch.zeros(seen.shape, dtype=dtype, device=branches.device)
    return mask.masked_fill_(~seen, -torch.inf).unsqueeze(1)
