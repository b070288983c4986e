"""How tokens stand in a forward pass that is not plain training, and which outputs are asked of it.

    B  sequences    S  tokens of a sequence given    K  keys that may be seen    N  targets    U  outputs asked

A row of likelihoods may hold a prefix and several continuations of it, each at the positions that follow the prefix
and blind to the others. Does not belong here: what builds such rows (evaluation.engine).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from plinth.model.key_values import KeyValues, LayerKeyValues


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
