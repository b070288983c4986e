"""Occurrences of 32 or more consecutive tokens of a text in the shards, extended in both directions.

    query -> its 16-grams -> anchors with the same hash -> compared with the shard's tokens -> matches

Each occurrence is reported once: if a match extends back over an earlier anchor, this anchor has already produced the
match. A query takes one search per token and range, and one comparison per anchor that shares a 16-gram with the query.
If the query repeats no 16-gram, there are at most as many comparisons as anchors.

A span is maximal if no longer span of the text that contains the span occurs in the shards. The count for the whole
span and the count for its most frequent 32 tokens are separate: a million files may start with a license, but only one
may continue in the same way as the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plinth.errors import MissingError
from plinth.records import Manifest, Part
from plinth.storage.store import Store
from plinth.tokens.shards.reader import ShardReader, open_streams
from plinth_audit.trace.trace_index import SPAN_TOKENS, hash_grams, open_anchors
from plinth_text.compiled import compiled

#: Maximum anchors per call, which bounds the memory of the result.
CHUNK_HITS = 1 << 22


@dataclass(frozen=True)
class Matches:
    """Maximal matches between a text and one stream, [n] each, sorted by query position, then stream position.

    Args:
        begins: first token in the query.
        starts: first token in the stream.
        tokens: length.
    """

    begins: NDArray[np.int64]
    starts: NDArray[np.int64]
    tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begins)


class VerbatimIndex:
    """Trace index of a bucket, opened together with the bucket's shards.

    Raises:
        MissingError: the index belongs to other shards than the published shards.
    """

    def __init__(self, store: Store, made: Manifest, shards: Manifest) -> None:
        named = made.inputs.get(f"{shards.asset.rsplit('/', 1)[0]}/shards")
        if named != shards.digest:
            raise MissingError(
                f"{made.asset} belongs to other shards",
                found=named,
                expected=shards.digest,
                remedy=f"run `plinth run --select {made.asset}`",
            )
        self._store = store
        self.readers: Mapping[str, ShardReader] = open_streams(store, [shards])
        self._parts = {name: made.named(f"{reader.stream.folder}anchors-") for name, reader in self.readers.items()}

    def find(self, query: NDArray[np.int64], least: int = SPAN_TOKENS) -> dict[str, Matches]:
        """Return all matches between a query and the bucket's shards with at least `least` tokens, by stream.

        Raises:
            ValueError: `least` is below the minimum of the index.
            MissingError, IntegrityError: a part or a shard is missing, truncated or invalid.
        """
        if least < SPAN_TOKENS:
            raise ValueError(f"the index only finds spans of {SPAN_TOKENS} or more tokens, but {least} were requested")
        grams = hash_grams(query)
        return {name: self._in_stream(name, query, grams, least) for name in self.readers}

    def _in_stream(self, name: str, query: NDArray[np.int64], grams: NDArray[np.uint32], least: int) -> Matches:
        reader, found = self.readers[name], [np.empty((0, 3), np.int64)]
        if len(grams):
            found += [rows for part in self._parts[name] for rows in self._in_range(reader, part, query, grams, least)]
        return _ordered(np.concatenate(found))

    def _in_range(
        self, reader: ShardReader, part: Part, query: NDArray[np.int64], grams: NDArray[np.uint32], least: int
    ) -> Iterator[NDArray[np.int64]]:
        anchors, base = open_anchors(self._store, part), int(part.stats["start"])
        low = np.searchsorted(anchors.hashes, grams, side="left")
        high = np.searchsorted(anchors.hashes, grams, side="right")
        hit = np.flatnonzero(high > low)
        before = np.cumsum(high[hit] - low[hit])
        if not len(hit):
            return
        edges = np.searchsorted(before, np.arange(CHUNK_HITS, before[-1], CHUNK_HITS))
        for chunk in np.split(hit, edges):
            counts = high[chunk] - low[chunk]
            places = np.repeat(low[chunk] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
            at = np.repeat(chunk, counts)
            yield from self._compared(reader, query, at, anchors.positions[places].astype(np.int64), base, least)

    def _compared(
        self,
        reader: ShardReader,
        query: NDArray[np.int64],
        at: NDArray[np.int64],
        positions: NDArray[np.int64],
        base: int,
        least: int,
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the matches at anchors that share a hash with the query.

        At each anchor, token `at` of the query is aligned with token `base + positions` of the stream.
        """
        owners = np.searchsorted(reader.shard_starts, base + positions, side="right") - 1
        for shard in np.unique(owners).tolist():
            own = np.flatnonzero(owners == shard)
            first, tokens = reader.shard_starts[shard], int(reader.shards[shard].stats["tokens"])
            held = reader.read(first, tokens)
            made, edge = np.empty((len(own), 3), np.int64), np.empty(len(own), np.int64)
            ends = first == 0, first + tokens == reader.tokens
            count, crossing = _COMPARE[held.itemsize](
                held, first, *ends, query, at[own], positions[own], base, least, reader.end_of_text, made, edge
            )
            yield made[:count]
            for hit in own[edge[:crossing]].tolist():
                yield self._across(reader, query, int(at[hit]), int(positions[hit]), base, least)

    def _across(
        self, reader: ShardReader, query: NDArray[np.int64], at: int, position: int, base: int, least: int
    ) -> NDArray[np.int64]:
        """Return the match at an anchor near the edge of a shard. The match may extend into neighboring shards."""
        token = base + position
        first, stop = max(0, token - at), min(reader.tokens, token + len(query) - at)
        held, made = reader.read(first, stop - first), np.empty((1, 3), np.int64)
        hit, edge = (np.array([at]), np.array([position])), np.empty(1, np.int64)
        count, _ = _COMPARE[held.itemsize](
            held, first, True, True, query, *hit, base, least, reader.end_of_text, made, edge
        )
        return made[:count]


def _ordered(rows: NDArray[np.int64]) -> Matches:
    """Return matches sorted by query position and stream position. A match that two ranges report is kept once."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    fresh = np.append(True, (np.diff(rows[:, :2], axis=0) != 0).any(axis=1))[: len(rows)]
    return Matches(*(np.ascontiguousarray(column) for column in rows[fresh].T))


@compiled
def compare_u16(
    held: NDArray[np.uint16], first: int, begins: bool, ends: bool, query: NDArray[np.int64], at: NDArray[np.int64],
    positions: NDArray[np.int64], base: int, least: int, end_of_text: int, made: NDArray[np.int64],
    edge: NDArray[np.int64],
) -> tuple[int, int]:  # fmt: skip
    """Extend each hit in both directions while query and stream agree.

    Return the number of matches, and the number of hits that meet an edge. `held` has the tokens of the stream from
    `first` on; `begins` and `ends` are True if `held` reaches that end of the stream. The function writes the matches
    to `made` as (token of the query, token of the stream, length), and the numbers of the hits that meet an edge to
    `edge`.
    """


@compiled
def compare_u32(
    held: NDArray[np.uint32], first: int, begins: bool, ends: bool, query: NDArray[np.int64], at: NDArray[np.int64],
    positions: NDArray[np.int64], base: int, least: int, end_of_text: int, made: NDArray[np.int64],
    edge: NDArray[np.int64],
) -> tuple[int, int]:  # fmt: skip
    """Extend each hit in both directions. It does for 32-bit tokens what `compare_u16` does for 16-bit tokens."""


_COMPARE: dict[int, Any] = {2: compare_u16, 4: compare_u32}


@dataclass(frozen=True)
class VerbatimSpan:
    """Longest possible span of the query that occurs in the shards (no longer span of the query contains it).

    Args:
        begin, tokens: start and length in the query.
        places: positions of the span's occurrences by stream, ascending; only streams with occurrences.
        most: number of occurrences of the span's most frequent 32 consecutive tokens.
    """

    begin: int
    tokens: int
    places: Mapping[str, NDArray[np.int64]]
    most: int

    @property
    def occurrences(self) -> int:
        """Number of occurrences of the whole span."""
        return sum(map(len, self.places.values()))


def spans(found: Mapping[str, Matches], query_tokens: int) -> list[VerbatimSpan]:
    """Return the maximal spans of the query that occur in the shards, sorted by position in the query."""
    frequencies = window_counts(found, query_tokens)
    every = [np.empty((0, 2), np.int64)] + [np.stack([own.begins, own.tokens], axis=1) for own in found.values()]
    made = []
    for begin, tokens in _maximal(np.unique(np.concatenate(every), axis=0)):
        places = {name: _places(own, begin, tokens) for name, own in found.items()}
        most = int(frequencies[begin : begin + tokens - SPAN_TOKENS + 1].max())
        made.append(VerbatimSpan(begin, tokens, {name: own for name, own in places.items() if len(own)}, most))
    return made


def window_counts(found: Mapping[str, Matches], query_tokens: int) -> NDArray[np.int64]:
    """Count occurrences in the shards for every 32-token window of the query, by the window's first token
    [query_tokens]."""
    changes = np.zeros(query_tokens + 1, np.int64)
    for own in found.values():
        changes += np.bincount(own.begins, minlength=query_tokens + 1)
        changes -= np.bincount(own.begins + own.tokens - SPAN_TOKENS + 1, minlength=query_tokens + 1)
    return np.cumsum(changes)[:query_tokens]


def covered(made: list[VerbatimSpan], query_tokens: int) -> int:
    """Return the number of query tokens that are in at least one span."""
    held = np.zeros(query_tokens, np.bool_)
    for span in made:
        held[span.begin : span.begin + span.tokens] = True
    return int(held.sum())


def _places(found: Matches, begin: int, tokens: int) -> NDArray[np.int64]:
    """Return the stream positions at which a maximal span occurs, ascending."""
    first, stop = np.searchsorted(found.begins, [begin, begin + 1]).tolist()
    own = slice(first, stop)
    return np.asarray(found.starts[own][found.tokens[own] == tokens])


def _maximal(intervals: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return start and length of each interval that no other interval contains, sorted by start."""
    kept: list[tuple[int, int]] = []
    reached = -1
    for begin, tokens in sorted(intervals.tolist(), key=lambda own: (own[0], -own[1])):
        if begin + tokens > reached:
            kept.append((begin, tokens))
            reached = begin + tokens
    return kept
