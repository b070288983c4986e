"""Lay the pieces of sequences into rows: one compiled pass over the mapped shards of all streams, without the GIL.

    B  sequences    S  targets of a sequence    p  pieces

Tokens are copied as they are stored, 64 at a time, and compared with the end-of-text in the same registers: what a
copy costs. Rows lie anywhere in the shards, so a row's first lines of memory are asked for two rows before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from plinth.compiled import njit
from plinth.tokens.packing.best_fit import Pieces
from plinth.tokens.reading.pointers import LANES, fetch, lowest, moved, pointer
from plinth.tokens.reading.reader import ShardReader, Tokens

#: Bytes at the beginning of a piece that are asked for, and how many pieces ahead; by measurement.
FETCHED, AHEAD = 1024, 2
LINE = 64

Starts = NDArray[np.int32]
Found = tuple[NDArray[np.int64], NDArray[np.int64]]


class Gather:
    """The shards of several streams, for kernels: mapped when first needed, then known by address.

    Streams are numbered as given, and their tokens are counted through from one to the next.

    Args:
        readers: of each stream; all hold ids of one tokenizer.
        many: every sequence is one piece, whose tokens tell its documents apart; otherwise a piece is of one document.

    Raises:
        MissingError, IntegrityError: on first touch: a shard is absent, torn, or (with `verify`) changed.
    """

    def __init__(self, readers: Sequence[ShardReader], *, many: bool) -> None:
        self._readers, self._many, self.dtype = readers, many, readers[0].dtype
        self._begins = np.cumsum([0, *(reader.tokens for reader in readers)])
        starts = [np.array(reader.shard_starts, np.int64) + self._begins[i] for i, reader in enumerate(readers)]
        self._bounds = np.concatenate([*starts, self._begins[-1:]])
        self._owners = np.repeat(np.arange(len(readers)), [len(own) for own in starts])
        self._addresses = np.zeros(len(self._owners), np.int64)
        self._mapped: dict[int, Tokens] = {}  # keeps what the addresses point to
        self._end_of_text = self.dtype.type(readers[0].end_of_text)
        self._room = 4096

    def lay(self, streams: NDArray[np.int16], pieces: Pieces, tokens: Tokens) -> tuple[Starts, NDArray[np.int32]]:
        """Fill rows with sequences.

        Args:
            streams: [B] of each sequence.
            pieces: of the sequences.
            tokens: [B, S + 1], written.

        Returns:
            Where documents begin and what is not scored, as in `Rows`.
        """
        owners = streams if len(pieces.starts) == len(streams) else np.repeat(streams, np.diff(pieces.offsets))
        held: list[Tokens] = []
        if all(reader.mapped for reader in self._readers):
            starts = pieces.starts + self._begins[owners]
            sources, rooms = self._found(starts, pieces.tokens)
        else:
            starts = pieces.starts
            sources, rooms, held = self._fetched(owners, pieces)
        shards = (self._addresses, self._bounds, starts, sources, rooms)
        columns = (pieces.offsets, pieces.tokens, pieces.context)
        unscored = np.empty((len(pieces.starts) + len(tokens), 2), np.int32)
        while True:
            begins = np.empty(self._room, np.int32)
            documents, runs = _lay(*shards, *columns, self._end_of_text, self._many, tokens, begins, unscored)
            if documents <= len(begins):
                break
            self._room = documents + documents // 4
        del held  # not before all is copied
        return begins[:documents].copy(), unscored[:runs]

    def _found(self, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> Found:
        """Where in memory each piece begins, and how many tokens its shard has from there on."""
        sources, rooms = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
        if not _find(self._addresses, self._bounds, self.dtype.itemsize, starts, lengths, sources, rooms):
            first = np.searchsorted(self._bounds, starts, side="right") - 1
            last = np.searchsorted(self._bounds, starts + lengths - 1, side="right") - 1
            for begin, end in {*zip(first.tolist(), last.tolist(), strict=True)}:
                for shard in range(begin, end + 1):
                    self._map(shard)
            _find(self._addresses, self._bounds, self.dtype.itemsize, starts, lengths, sources, rooms)
        return sources, rooms

    def _map(self, shard: int) -> None:
        if shard not in self._mapped:
            own = int(self._owners[shard])
            start, stop = (self._bounds[shard : shard + 2] - self._begins[own]).tolist()
            self._mapped[shard] = np.ascontiguousarray(self._readers[own].read(start, stop - start))
            self._addresses[shard] = self._mapped[shard].ctypes.data

    def _fetched(
        self, owners: NDArray[np.int16], pieces: Pieces
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Tokens]]:
        """As `_found`, of pieces that are fetched now; and what must live until they are copied."""
        sources, lengths, held = np.empty(len(owners), np.int64), pieces.tokens.astype(np.int64), []
        for stream in np.unique(owners).tolist():
            own = np.flatnonzero(owners == stream)
            tokens, starts = self._readers[stream].gather(pieces.starts[own], lengths[own])
            sources[own] = tokens.ctypes.data + starts * self.dtype.itemsize
            held.append(tokens)
        return sources, lengths, held


@njit(nogil=True, cache=True)
def _find(addresses, bounds, itemsize, starts, lengths, sources, rooms):  # type: ignore[no-untyped-def]
    """Fill sources and rooms; False where a shard is not mapped yet."""
    shard = 0
    for i in range(len(starts)):
        start = starts[i]
        if not bounds[shard] <= start < bounds[shard + 1]:
            shard = np.searchsorted(bounds, start, side="right") - 1
        sources[i] = addresses[shard] + (start - bounds[shard]) * itemsize
        rooms[i] = bounds[shard + 1] - start
        last = shard
        while addresses[last] and bounds[last + 1] < start + lengths[i]:
            last += 1
        if not addresses[last]:
            return False
    return True


@njit(nogil=True, cache=True)
def _lay(  # type: ignore[no-untyped-def]
    addresses, bounds, starts, sources, rooms, offsets, lengths, context, end_of_text, many, tokens, begins, unscored
):
    """Returns documents and runs; where there are more documents than room for them, they are counted only."""
    width = tokens.shape[1]
    documents = runs = 0
    for row in range(len(tokens)):
        out, base = tokens[row], row * width
        targets = row * (width - 1) - 1
        first, stop = offsets[row], offsets[row + 1]
        place = 0
        if first == stop or lengths[first] < width:
            out[0] = end_of_text
            documents = _begin(begins, documents, base)
            place = 1
        for piece in range(first, stop):
            if piece + AHEAD < len(sources):
                for line in range(0, FETCHED, LINE):
                    fetch(sources[piece + AHEAD] + line)
            if place and context[piece]:
                unscored[runs, 0], unscored[runs, 1] = targets + place, targets + place + 1
                runs += 1
            documents = _begin(begins, documents, base + place)
            end, room, source, at = place + lengths[piece], rooms[piece], sources[piece], starts[piece]
            while place < end:
                count = min(end - place, room)
                documents = _copy(
                    source, out[place : place + count], end_of_text, many, begins, documents, base + place, base + width
                )
                place, at = place + count, at + count
                if place < end:
                    shard = np.searchsorted(bounds, at, side="right") - 1
                    source, room = addresses[shard], bounds[shard + 1] - at
        if place < width:
            documents = _begin(begins, documents, base + place)
            unscored[runs, 0], unscored[runs, 1] = targets + place, targets + width
            runs += 1
            out[place:] = end_of_text
    return documents, runs


@njit(nogil=True, cache=True)
def _begin(begins, documents, at):  # type: ignore[no-untyped-def]
    if documents < len(begins):
        begins[documents] = at
    return documents + 1


@njit(nogil=True, cache=True)
def _copy(source, out, end_of_text, many, begins, documents, at, end):  # type: ignore[no-untyped-def]
    """Tokens from an address; of many documents, those that begin after an end-of-text are told, before `end`."""
    target, size, done = np.int64(out.ctypes.data), out.itemsize, 0
    while done + LANES <= len(out):
        ends = moved(source + done * size, target + done * size, end_of_text)
        while many and ends:
            place = at + done + lowest(ends) + 1
            if place < end:
                documents = _begin(begins, documents, place)
            ends &= ends - np.uint64(1)
        done += LANES
    rest = carray(pointer(source, out), (len(out),))
    for i in range(done, len(out)):
        out[i] = rest[i]
        if many and rest[i] == end_of_text and at + i + 1 < end:
            documents = _begin(begins, documents, at + i + 1)
    return documents
