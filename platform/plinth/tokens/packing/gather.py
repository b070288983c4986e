"""Copy the pieces of sequences into rows: one compiled pass over the mapped shards of all streams, without the GIL.

    B  sequences    S  targets of a sequence    p  pieces

Tokens are copied as they are stored, 64 at a time, and compared with the end-of-text in the same registers: the pass
costs as much as a copy. Rows lie anywhere in the shards, so the first cache lines of a piece are prefetched two pieces
before, and its others while the piece before it is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from plinth.compiled import njit
from plinth.tokens.packing.best_fit import PackedPieces
from plinth.tokens.packing.pointers import LANES, copy_and_match, lowest_bit, pointer, prefetch
from plinth.tokens.shards.reader import ShardReader, Tokens

#: Bytes at the beginning of a piece that are prefetched, and how many pieces ahead; by measurement.
PREFETCH_BYTES, PREFETCH_PIECES = 1024, 2
CACHE_LINE = 64

Starts = NDArray[np.int32]
Located = tuple[NDArray[np.int64], NDArray[np.int64]]


class SequenceGather:
    """Copies sequences out of the shards of several streams, which are mapped when first needed.

    Streams are numbered as given, and their tokens are counted through from one to the next.

    Args:
        readers: of each stream; all hold ids of one tokenizer.
        contiguous: every sequence is one piece, whose end-of-text tokens separate its documents; otherwise a piece is
            of one document.

    Raises:
        MissingError, IntegrityError: on first touch: a shard is absent, torn, or (with `verify`) changed.
    """

    def __init__(self, readers: Sequence[ShardReader], *, contiguous: bool) -> None:
        self._readers, self._contiguous, self.dtype = readers, contiguous, readers[0].dtype
        self._begins = np.cumsum([0, *(reader.tokens for reader in readers)])
        starts = [np.array(reader.shard_starts, np.int64) + self._begins[i] for i, reader in enumerate(readers)]
        self._bounds = np.concatenate([*starts, self._begins[-1:]])
        self._owners = np.repeat(np.arange(len(readers)), [len(own) for own in starts])
        self._addresses = np.zeros(len(self._owners), np.int64)
        self._mapped: dict[int, Tokens] = {}  # keeps the memory of the addresses
        self._end_of_text = self.dtype.type(readers[0].end_of_text)
        self._capacity = 4096

    def fill(
        self, streams: NDArray[np.int16], pieces: PackedPieces, tokens: Tokens
    ) -> tuple[Starts, NDArray[np.int32]]:
        """Fill rows with sequences.

        Args:
            streams: [B] of each sequence.
            pieces: of the sequences.
            tokens: [B, S + 1], written.

        Returns:
            Where documents begin and which targets are not scored, as in `CompactBatch`.
        """
        owners = streams if len(pieces.starts) == len(streams) else np.repeat(streams, np.diff(pieces.offsets))
        held: list[Tokens] = []
        if all(reader.mapped for reader in self._readers):
            starts = pieces.starts + self._begins[owners]
            sources, rests = self._locate(starts, pieces.tokens)
        else:
            starts = pieces.starts
            sources, rests, held = self._fetch(owners, pieces)
        shards = (self._addresses, self._bounds, starts, sources, rests)
        columns = (pieces.offsets, pieces.tokens, pieces.context)
        unscored = np.empty((len(pieces.starts) + len(tokens), 2), np.int32)
        while True:
            begins = np.empty(self._capacity, np.int32)
            documents, runs = _fill(*shards, *columns, self._end_of_text, self._contiguous, tokens, begins, unscored)
            if documents <= len(begins):
                break
            self._capacity = documents + documents // 4
        del held  # only once all is copied
        return begins[:documents].copy(), unscored[:runs]

    def _locate(self, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> Located:
        """Where in memory each piece begins, and how many tokens its shard has from there on."""
        sources, rests = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
        if not _locate_pieces(self._addresses, self._bounds, self.dtype.itemsize, starts, lengths, sources, rests):
            first = np.searchsorted(self._bounds, starts, side="right") - 1
            last = np.searchsorted(self._bounds, starts + lengths - 1, side="right") - 1
            for begin, end in {*zip(first.tolist(), last.tolist(), strict=True)}:
                for shard in range(begin, end + 1):
                    self._map(shard)
            _locate_pieces(self._addresses, self._bounds, self.dtype.itemsize, starts, lengths, sources, rests)
        return sources, rests

    def _map(self, shard: int) -> None:
        if shard not in self._mapped:
            own = int(self._owners[shard])
            start, stop = (self._bounds[shard : shard + 2] - self._begins[own]).tolist()
            self._mapped[shard] = np.ascontiguousarray(self._readers[own].read(start, stop - start))
            self._addresses[shard] = self._mapped[shard].ctypes.data

    def _fetch(
        self, owners: NDArray[np.int16], pieces: PackedPieces
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Tokens]]:
        """As `_locate`, of pieces that are fetched now; and the memory that must live until they are copied."""
        sources, lengths, held = np.empty(len(owners), np.int64), pieces.tokens.astype(np.int64), []
        for stream in np.unique(owners).tolist():
            own = np.flatnonzero(owners == stream)
            tokens, starts = self._readers[stream].gather(pieces.starts[own], lengths[own])
            sources[own] = tokens.ctypes.data + starts * self.dtype.itemsize
            held.append(tokens)
        return sources, lengths, held


@njit(nogil=True, cache=True)
def _locate_pieces(addresses, bounds, itemsize, starts, lengths, sources, rests):  # type: ignore[no-untyped-def]
    """Fill sources and rests; False where a shard is not mapped yet."""
    shard = 0
    for i in range(len(starts)):
        start = starts[i]
        if not bounds[shard] <= start < bounds[shard + 1]:
            shard = np.searchsorted(bounds, start, side="right") - 1
        sources[i] = addresses[shard] + (start - bounds[shard]) * itemsize
        rests[i] = bounds[shard + 1] - start
        last = shard
        while addresses[last] and bounds[last + 1] < start + lengths[i]:
            last += 1
        if not addresses[last]:
            return False
    return True


@njit(nogil=True, cache=True)
def _fill(  # type: ignore[no-untyped-def]
    addresses, bounds, starts, sources, rests, offsets, lengths, context, end_of_text, contiguous, tokens, begins,
    unscored,
):  # fmt: skip
    """Returns documents and runs; documents beyond the length of `begins` are counted only."""
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
            ahead = sources[min(piece + PREFETCH_PIECES, len(sources) - 1)]
            for line in range(0, PREFETCH_BYTES, CACHE_LINE):
                prefetch(ahead + line)
            if place and context[piece]:
                unscored[runs, 0], unscored[runs, 1] = targets + place, targets + place + 1
                runs += 1
            documents = _begin(begins, documents, base + place)
            end, rest, source, at = place + lengths[piece], rests[piece], sources[piece], starts[piece]
            while place < end:
                if not rest:
                    shard = np.searchsorted(bounds, at, side="right") - 1
                    source, rest = addresses[shard], bounds[shard + 1] - at
                count = min(end - place, rest)
                documents = _copy(
                    source, out[place : place + count], end_of_text, contiguous, begins, documents, base + place,
                    base + width, sources[min(piece + 1, len(sources) - 1)],
                )  # fmt: skip
                place, at, rest = place + count, at + count, rest - count
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
def _copy(source, out, end_of_text, contiguous, begins, documents, at, end, following):  # type: ignore[no-untyped-def]
    """Copy tokens from an address; note where documents begin after an end-of-text, before `end`. `following` is the
    address that is copied from next."""
    target, size, whole = np.int64(out.ctypes.data), out.itemsize, len(out) // LANES * LANES
    for done in range(0, whole, LANES):
        if done * size >= PREFETCH_BYTES:
            for line in range(done * size, (done + LANES) * size, CACHE_LINE):
                prefetch(following + line)
        ends = copy_and_match(source + done * size, target + done * size, end_of_text)
        while contiguous and ends:
            place = at + done + lowest_bit(ends) + 1
            if place < end:
                documents = _begin(begins, documents, place)
            ends &= ends - np.uint64(1)
    rest = carray(pointer(source, out), (len(out),))
    for i in range(whole, len(out)):
        out[i] = rest[i]
        if contiguous and rest[i] == end_of_text and at + i + 1 < end:
            documents = _begin(begins, documents, at + i + 1)
    return documents
