"""The pairs of groups of documents, compared until the clusters are known.

Within a group of at most `ALL_PAIRS` documents every pair counts. A larger crowd (boilerplate, templates) would
cost its square: there each document is paired with the next `NEIGHBOURS` in an order keyed by id and band, and
with the smallest id. The orders of different bands are independent, so true clusters in a crowd stay connected.

Clusters are the connected components of the pairs that pass, so a pair whose ends are connected already is not
compared: a cluster of n copies costs n comparisons, not n². The pairs that are skipped depend on the order, the
clusters do not.

Letters: N documents of a partition, R rows (band key, document) of its groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plinth.corpus.dedup.near import similarity_cache
from plinth_text.arrays import I16, I64, U32, U64, Bools
from plinth_text.compiled import compiled

ALL_PAIRS = 32
NEIGHBOURS = 8

#: What to do with a pair that is neither connected nor refused: look it up in the similarity cache, note that its
#: texts are needed, or compare their sets (`SETS`), signatures (`SIGNATURES`) or vectors (`COSINES`).
LOOK_UP, MARK, SETS, SIGNATURES, COSINES = 0, 1, 2, 3, 4


@dataclass
class Payload:
    """The values that are compared: by document, values[start : start + size]; [N], [N], [all].

    A signature is `minima` uint32 in half as many values, a vector four int16 in each.
    """

    start: I64
    size: I64
    values: U64
    minima: int = 0


def no_payload(count: int) -> Payload:
    """The payload of passes that compare nothing."""
    return Payload(np.zeros(count, np.int64), np.zeros(count, np.int64), np.empty(0, np.uint64))


@dataclass
class Links:
    """The state of a partition.

    Args:
        key, node: [R] band keys and indices of documents; the rows of a group are neighbours.
        high, low: [N] halves of the documents' ids.
        threshold: similarity that connects, compared in FP32.
    """

    key: U64
    node: I64
    high: U64
    low: U64
    threshold: float
    parent: I64 = field(init=False)
    needed: Bools = field(init=False)

    def __post_init__(self) -> None:
        count = self.high.size
        self.parent, self.needed = np.arange(count), np.zeros(count, dtype=np.bool_)
        starts = np.ones(self.key.size, dtype=np.bool_)
        starts[1:] = self.key[1:] != self.key[:-1]
        self._bounds = np.append(np.flatnonzero(starts), self.key.size).astype(np.int64)
        self._ends = similarity_cache.ends(self.high, self.low)
        self._least = np.empty(self._bounds.size - 1, dtype=np.int64)
        smallest(self._bounds, self.node, self.high, self.low, self._least)
        self._refused = np.zeros(1024, dtype=np.uint64)

    def walk(self, what: int, known: tuple[Any, Any] | None = None, payload: Payload | None = None) -> tuple[U64, U64]:
        """Go over all pairs once; returns the similarities that were found."""
        pairs, values = known or (np.empty(0, np.uint64), np.empty(0, np.uint64))
        payload = payload or no_payload(self.high.size)
        views = payload.values, payload.values.view(np.uint32), payload.values.view(np.int16)
        found_pairs, found_values = np.empty(1024, dtype=np.uint64), np.empty(1024, dtype=np.uint64)
        sizes = np.diff(self._bounds)
        order, limit = np.empty(int(sizes.max(initial=0)), dtype=np.int64), float(np.float32(self.threshold))
        group, held, found = 0, int(np.count_nonzero(self._refused)), 0
        while group < sizes.size:
            count = int(sizes[group])
            most = count * (NEIGHBOURS + 1) if count > ALL_PAIRS else count * (count - 1) // 2
            self._refused = _grown(self._refused, held + most)
            found_pairs, found_values = _longer(found_pairs, found + most), _longer(found_values, found + most)
            group, held, found = walk(
                what, group, self._bounds, self.key, self.node, self.low, self._ends, self._least, self.parent,
                self.needed, self._refused, held, pairs, values, payload.start, payload.size, *views, payload.minima,
                limit, order, found_pairs, found_values, found,
            )  # fmt: skip
        return found_pairs[:found], found_values[:found]

    def roots(self) -> I64:
        """[N] for every document the first of its cluster."""
        flatten(self.parent)
        return self.parent


@compiled
def flatten(parent: I64) -> None:
    """Make every parent a root."""


@compiled
def smallest(bounds: I64, node: I64, high: U64, low: U64, out: I64) -> None:
    """Fill in, for each group, the document with the smallest id, of equal ids the first."""


@compiled
def move_values(table: U64, larger: U64) -> None:
    """Put the values of a table (0: none) into a larger one, whose size is a power of two."""


@compiled
def walk(
    what: int, group: int, bounds: I64, key: U64, node: I64, low: U64, ends: U64, least: I64, parent: I64,
    needed: Bools, refused: U64, held: int, pairs: U64, values: U64, start: I64, size: I64, data: U64, halves: U32,
    shorts: I16, minima: int, limit: float, order: I64, found_pairs: U64, found_values: U64, found: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Go over the pairs of groups from `group` on, as long as there is room for all pairs of one more.

    Returns:
        The group to go on with; how many pairs are refused, and how many similarities are found.
    """


def _grown(table: U64, entries: int) -> U64:
    """The table with room for so many values, at most half full."""
    size = table.size
    while size < 2 * entries:
        size *= 2
    if size == table.size:
        return table
    larger = np.zeros(size, dtype=np.uint64)
    move_values(table, larger)
    return larger


def _longer(values: U64, size: int) -> U64:
    """The values with room for so many, and for twice as many as now."""
    if size <= values.size:
        return values
    return np.concatenate([values, np.empty(max(size, 2 * values.size) - values.size, dtype=np.uint64)])
