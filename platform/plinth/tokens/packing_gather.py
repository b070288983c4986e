"""Lay the pieces of sequences into arrays: one compiled pass over the mapped shards, without the GIL.

B  sequences    S  targets of a sequence
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from plinth.tokens.packing_fit import Pieces
from plinth.tokens.pointers import pointer
from plinth.tokens.reader import ShardReader, Tokens

BLOCK = 64


class Source:
    """The shards of one stream, for kernels: mapped when first needed, then known by address.

    Raises:
        MissingError, IntegrityError: on first touch: a shard is absent, torn, or (with `verify`) changed.
    """

    def __init__(self, reader: ShardReader) -> None:
        self._reader = reader
        self._bounds = np.array([*reader.shard_starts, reader.tokens], np.int64)
        self._addresses = np.zeros(len(self._bounds) - 1, np.int64)
        self._mapped: dict[int, Tokens] = {}  # keeps what the addresses point to
        self._like = np.empty(0, reader.dtype)

    def lay(
        self,
        rows: NDArray[np.int64],
        pieces: Pieces,
        many: bool,
        tokens: NDArray[np.int32],
        segments: NDArray[np.int32],
        scored: NDArray[np.bool_],
    ) -> None:
        """Fill rows of arrays with sequences.

        Args:
            rows: [n] where each sequence goes.
            pieces: of the n sequences.
            many: a piece may hold several documents.
            tokens, segments: [B, S + 1], written.
            scored: [B, S], all True; what is not to be scored becomes False. It may be empty where all pieces
                fill their sequences.
        """
        starts, shards = pieces.starts, (self._addresses, self._bounds, self._like)
        if self._reader.mapped:
            self._touch(pieces)
        else:
            held, starts = self._reader.gather(pieces.starts, pieces.tokens.astype(np.int64))
            shards = (np.array([held.ctypes.data]), np.array([0, len(held)]), self._like)
        columns = (pieces.offsets, starts, pieces.tokens, pieces.context)
        _lay(*shards, rows, *columns, self._reader.end_of_text, many, tokens, segments, scored)

    def _touch(self, pieces: Pieces) -> None:
        """Map the shards that hold the pieces."""
        first = np.searchsorted(self._bounds, pieces.starts, side="right") - 1
        last = np.searchsorted(self._bounds, pieces.starts + pieces.tokens - 1, side="right") - 1
        if self._addresses[first].all() and self._addresses[last].all() and (last - first <= 1).all():
            return
        for begin, end in {*zip(first.tolist(), last.tolist(), strict=True)}:
            for shard in range(begin, end + 1):
                if shard not in self._mapped:
                    start, stop = self._bounds[shard : shard + 2].tolist()
                    self._mapped[shard] = np.ascontiguousarray(self._reader.read(start, stop - start))
                    self._addresses[shard] = self._mapped[shard].ctypes.data


@njit(nogil=True, cache=True)
def _lay(  # type: ignore[no-untyped-def]
    addresses, bounds, like, rows, offsets, starts, lengths, context, end_of_text, many, tokens, segments, scored
):
    for i in range(len(rows)):
        out, numbers = tokens[rows[i]], segments[rows[i]]
        first, stop = offsets[i], offsets[i + 1]
        place = number = 0
        if first == stop or lengths[first] < len(out):
            out[0], numbers[0] = end_of_text, 0
            place = number = 1
        for piece in range(first, stop):
            if place and context[piece]:
                scored[rows[i], place - 1] = False
            end = place + lengths[piece]
            _copy(addresses, bounds, like, starts[piece], out[place:end])
            if many:
                number = _number(out[place:end], np.int32(end_of_text), number, numbers[place:end])
            else:
                numbers[place:end] = number
                number += 1
            place = end
        for at in range(place, len(out)):
            out[at], numbers[at], scored[rows[i], at - 1] = end_of_text, number, False


@njit(nogil=True, cache=True)
def _number(tokens, end_of_text, number, numbers):  # type: ignore[no-untyped-def]
    """Number the documents of a piece; most stretches of 64 tokens hold no end, and are done 16 at a time.

    Stretches are slices and counts are int32, so that the compiler sees no negative index and no wider number.
    """
    for begin in range(0, len(tokens), BLOCK):
        block, own = tokens[begin : begin + BLOCK], numbers[begin : begin + BLOCK]
        ends = np.int32(0)
        for at in range(len(block)):
            ends += np.int32(block[at] == end_of_text)
        own[:] = np.int32(number)
        if ends:
            for at in range(len(block)):
                own[at] = number
                number += block[at] == end_of_text
    return number


@njit(nogil=True, cache=True)
def _copy(addresses, bounds, like, start, out):  # type: ignore[no-untyped-def]
    """Tokens of the stream from `start` on, across shards."""
    shard = np.searchsorted(bounds, start, side="right") - 1
    done = 0
    while done < len(out):
        count = min(len(out) - done, bounds[shard + 1] - start)
        source = carray(pointer(addresses[shard] + (start - bounds[shard]) * like.itemsize, like), (count,))
        for i in range(count):
            out[done + i] = source[i]
        done += count
        start += count
        shard += 1
