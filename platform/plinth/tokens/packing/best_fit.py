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

from plinth.compiled import njit


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


@njit(nogil=True, cache=True)
def _items(starts, lengths, capacity):  # type: ignore[no-untyped-def]
    """Start (context included) and size of the items to pack; and how many pieces fill a sequence alone."""
    item_starts = np.empty(len(lengths), np.int64)
    sizes = np.empty(len(lengths), np.int32)
    found = full = 0
    for i in range(len(lengths)):
        length = lengths[i]
        if length > capacity:
            full += length // capacity
            rest = length % capacity
            if rest:
                item_starts[found], sizes[found] = starts[i] + length - rest - 1, rest + 1
                found += 1
        elif length:
            item_starts[found], sizes[found] = starts[i], length
            found += 1
    return item_starts[:found], sizes[:found], full


@njit(nogil=True, cache=True)
def _by_size(sizes, capacity):  # type: ignore[no-untyped-def]
    """Numbers of the items, largest first, equal ones in order: a counting sort."""
    places = np.zeros(capacity + 2, np.int64)
    for size in sizes:
        places[capacity - size + 1] += 1
    for i in range(1, len(places)):
        places[i] += places[i - 1]
    order = np.empty(len(sizes), np.int64)
    for i in range(len(sizes)):
        at = capacity - sizes[i]
        order[places[at]] = i
        places[at] += 1
    return order


@njit(nogil=True, cache=True)
def _best_fit(sizes, capacity, leaves):  # type: ignore[no-untyped-def]
    """The bin of every item, and how many were opened. Among bins with equal space the youngest is filled.

    `leaves` is a power of two above `capacity`.
    """
    held = np.zeros(2 * leaves, np.bool_)  # node: whether a bin has any of the spaces below it
    head = np.full(capacity + 1, -1, np.int64)  # space: the youngest bin that has it
    older = np.empty(len(sizes), np.int64)
    bins = np.empty(len(sizes), np.int64)
    opened = 0
    for item in _by_size(sizes, capacity):
        size = sizes[item]
        space = _least(held, leaves, size)
        if not space:
            own, space = opened, capacity
            opened += 1
        else:
            own = head[space]
            head[space] = older[own]
            if head[space] < 0:
                _clear(held, leaves + space)
        bins[item] = own
        left = space - size
        if left:
            older[own] = head[left]
            _set(held, leaves + left)
            head[left] = own
    return bins, opened


@njit(nogil=True, cache=True)
def _least(held, leaves, size):  # type: ignore[no-untyped-def]
    """The least space of at least `size` that some bin has, or 0."""
    node = leaves + size
    if held[node]:
        return size
    while node > 1:
        if node % 2 == 0 and held[node + 1]:
            node += 1
            while node < leaves:
                node *= 2
                if not held[node]:
                    node += 1
            return node - leaves
        node //= 2
    return 0


@njit(nogil=True, cache=True)
def _set(held, node):  # type: ignore[no-untyped-def]
    while node and not held[node]:
        held[node] = True
        node //= 2


@njit(nogil=True, cache=True)
def _clear(held, node):  # type: ignore[no-untyped-def]
    held[node] = False
    node //= 2
    while node and not (held[2 * node] or held[2 * node + 1]):
        held[node] = False
        node //= 2


@njit(nogil=True, cache=True)
def _columns(starts, lengths, item_starts, sizes, bins, opened, full, capacity):  # type: ignore[no-untyped-def]
    """The columns of `PackedPieces`."""
    offsets = np.zeros(full + opened + 1, np.int32)
    for i in range(full):
        offsets[i + 1] = i + 1
    for own in bins:
        offsets[full + own + 1] += 1
    for i in range(full, full + opened):
        offsets[i + 1] += offsets[i]
    pieces = full + len(sizes)
    begins, tokens = np.empty(pieces, np.int64), np.empty(pieces, np.int32)
    context = np.zeros(pieces, np.int8)
    free = offsets[full : full + opened].copy()
    alone = item = 0
    for i in range(len(lengths)):
        cut = lengths[i] > capacity
        for number in range(lengths[i] // capacity if cut else 0):
            follows = number > 0
            begins[alone] = starts[i] + number * capacity - follows
            tokens[alone] = capacity + follows
            context[alone] = follows
            alone += 1
        if lengths[i] % capacity if cut else lengths[i]:
            at = free[bins[item]]
            free[bins[item]] += 1
            begins[at], tokens[at], context[at] = item_starts[item], sizes[item], cut
            item += 1
    return offsets, begins, tokens, context
