"""Best-fit-decreasing: documents to sequences of S targets, no document cut that fits.

After Ding et al., "Fewer Truncations Improve Language Modeling" (arXiv:2404.10830): documents longer than S
are cut into pieces of S; their rests and all shorter documents are packed, longest first, each into the
open sequence with the least space that holds it. Sizes are whole numbers up to S, so open sequences are kept by
their space and found in a tree over 0 … S: O(n log S), whatever the number of sequences.

A *piece* is a span of the stream that is copied into a sequence. A piece that continues a document in its middle
begins with the token before it, which is its context and no target, and takes a place of its own: the rest of a
document of n S + r tokens takes r + 1 places. `packing` defines where a sequence begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plinth_text.compiled import compiled

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PackedPieces:
    """The pieces of some sequences as columns; those of sequence i are `offsets[i]` to `offsets[i + 1]`.

    n  sequences    m  pieces

    Attributes:
        offsets: [n + 1] int32.
        starts: [m] int64, first token of a piece in the stream, its context included.
        tokens: [m] int32, tokens of a piece, context included.
        context: [m] int8, 1 where the first token is only context.
    """

    offsets: NDArray[np.int32]
    starts: NDArray[np.int64]
    tokens: NDArray[np.int32]
    context: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def scored(self) -> NDArray[np.int64]:
        """[n] targets of each sequence that are neither padding nor context."""
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.tokens - self.context, dtype=np.int64)])
        return np.asarray(total[self.offsets[1:]] - total[self.offsets[:-1]])


def pack(starts: NDArray[np.int64], lengths: NDArray[np.int64], sequence_tokens: int) -> PackedPieces:
    """Sequences of whole documents: first those that one piece fills, then the packed ones in the order of opening.

    In a sequence pieces keep the order of the stream. The same documents give the same sequences.

    Args:
        starts, lengths: [documents] spans of the stream, end-of-text included, in stream order.
        sequence_tokens: S.
    """
    item_starts, sizes, full = _items(starts, lengths, sequence_tokens)
    bins, opened = _best_fit(sizes, sequence_tokens, 1 << sequence_tokens.bit_length())
    return PackedPieces(*_columns(starts, lengths, item_starts, sizes, bins, opened, full, sequence_tokens))


def concatenate_pieces(many: Sequence[PackedPieces]) -> PackedPieces:
    """The sequences of several `PackedPieces`, one after another."""
    before = np.cumsum([0, *(len(pieces.starts) for pieces in many)])
    offsets = [pieces.offsets[1:] + before[i] for i, pieces in enumerate(many)]
    return PackedPieces(
        np.concatenate([np.zeros(1, np.int32), *offsets]).astype(np.int32),
        np.concatenate([np.empty(0, np.int64), *(pieces.starts for pieces in many)]),
        np.concatenate([np.empty(0, np.int32), *(pieces.tokens for pieces in many)]),
        np.concatenate([np.empty(0, np.int8), *(pieces.context for pieces in many)]),
    )


def _items(starts: Ints, lengths: Ints, capacity: int) -> tuple[Ints, NDArray[np.int32], int]:
    """Start (context included) and size of the items to pack; and how many pieces fill a sequence alone."""
    item_starts, sizes = np.empty(len(lengths), np.int64), np.empty(len(lengths), np.int32)
    found, full = items(starts, lengths, capacity, item_starts, sizes)
    return item_starts[:found], sizes[:found], full


def _best_fit(sizes: NDArray[np.int32], capacity: int, leaves: int) -> tuple[Ints, int]:
    """The bin of every item, and how many were opened. Among bins with equal space the youngest is filled.

    `leaves` is a power of two above `capacity`.
    """
    older, order, bins = (np.empty(len(sizes), np.int64) for _ in range(3))
    held, head = np.zeros(2 * leaves, np.bool_), np.full(capacity + 1, -1, np.int64)
    opened = best_fit(sizes, capacity, leaves, held, head, older, order, np.zeros(capacity + 2, np.int64), bins)
    return bins, opened


def _columns(
    starts: Ints, lengths: Ints, item_starts: Ints, sizes: NDArray[np.int32], bins: Ints, opened: int, full: int,
    capacity: int,
) -> tuple[NDArray[np.int32], Ints, NDArray[np.int32], NDArray[np.int8]]:  # fmt: skip
    """The columns of `PackedPieces`."""
    pieces = full + len(sizes)
    offsets, begins = np.zeros(full + opened + 1, np.int32), np.empty(pieces, np.int64)
    tokens, context = np.empty(pieces, np.int32), np.zeros(pieces, np.int8)
    free = np.empty(opened, np.int32)
    columns(
        starts, lengths, item_starts, sizes, bins, opened, full, capacity, free, offsets, begins, tokens, context
    )  # fmt: skip
    return offsets, begins, tokens, context


@compiled
def items(starts: Ints, lengths: Ints, capacity: int, item_starts: Ints, sizes: NDArray[np.int32]) -> tuple[int, int]:
    """Fill in the items to pack; returns their number, and the number of pieces that fill a sequence alone."""


@compiled
def best_fit(
    sizes: NDArray[np.int32], capacity: int, leaves: int, held: NDArray[np.bool_], head: Ints, older: Ints,
    order: Ints, places: Ints, bins: Ints,
) -> int:  # fmt: skip
    """Fill in the bin of every item; returns the number of bins. From `held` to `places`: scratch (`packing.c`)."""


@compiled
def columns(
    starts: Ints, lengths: Ints, item_starts: Ints, sizes: NDArray[np.int32], bins: Ints, opened: int, full: int,
    capacity: int, free_places: NDArray[np.int32], offsets: NDArray[np.int32], begins: Ints, tokens: NDArray[np.int32],
    context: NDArray[np.int8],
) -> None:  # fmt: skip
    """Fill in the columns of `PackedPieces`. `free_places`: scratch, [bins]."""
