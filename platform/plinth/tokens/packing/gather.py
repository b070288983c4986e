"""Copy the pieces of sequences into rows: one compiled pass over the mapped shards of all streams, without the GIL.

    B  sequences    S  targets of a sequence    p  pieces

Tokens are copied as they are stored, 64 at a time, and compared with the end-of-text in the same registers: the pass
costs as much as a copy. Rows lie anywhere in the shards, so the first cache lines of a piece are prefetched two pieces
before, and its others while the piece before it is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plinth.tokens.packing.best_fit import PackedPieces
from plinth.tokens.shards.reader import ShardReader, Tokens
from plinth_text.compiled import compiled

Ints = NDArray[np.int64]
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
        self._end_of_text = readers[0].end_of_text
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
        fill = _FILL[self.dtype.itemsize]
        while True:
            begins = np.empty(self._capacity, np.int32)
            documents, runs = fill(*shards, *columns, self._end_of_text, self._contiguous, tokens, begins, unscored)
            if documents <= len(begins):
                break
            self._capacity = documents + documents // 4
        del held  # only once all is copied
        return begins[:documents].copy(), unscored[:runs]

    def _locate(self, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> Located:
        """Where in memory each piece begins, and how many tokens its shard has from there on."""
        sources, rests = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
        if not locate_pieces(self._addresses, self._bounds, self.dtype.itemsize, starts, lengths, sources, rests):
            first = np.searchsorted(self._bounds, starts, side="right") - 1
            last = np.searchsorted(self._bounds, starts + lengths - 1, side="right") - 1
            for begin, end in {*zip(first.tolist(), last.tolist(), strict=True)}:
                for shard in range(begin, end + 1):
                    self._map(shard)
            locate_pieces(self._addresses, self._bounds, self.dtype.itemsize, starts, lengths, sources, rests)
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


@compiled
def locate_pieces(
    addresses: Ints, bounds: Ints, itemsize: int, starts: Ints, lengths: NDArray[np.int32], sources: Ints, rests: Ints
) -> bool:
    """Fill in sources and rests; returns False where a shard is not mapped yet."""


@compiled
def fill_u16(
    addresses: Ints, bounds: Ints, starts: Ints, sources: Ints, rests: Ints, offsets: Starts, lengths: Starts,
    context: NDArray[np.int8], end_of_text: int, contiguous: bool, tokens: NDArray[np.uint16], begins: Starts,
    unscored: Starts,
) -> tuple[int, int]:  # fmt: skip
    """Fill in the rows; returns documents and runs. Documents beyond the length of `begins` are counted only."""


@compiled
def fill_u32(
    addresses: Ints, bounds: Ints, starts: Ints, sources: Ints, rests: Ints, offsets: Starts, lengths: Starts,
    context: NDArray[np.int8], end_of_text: int, contiguous: bool, tokens: NDArray[np.uint32], begins: Starts,
    unscored: Starts,
) -> tuple[int, int]:  # fmt: skip
    """As `fill_u16`."""


_FILL: dict[int, Any] = {2: fill_u16, 4: fill_u32}
