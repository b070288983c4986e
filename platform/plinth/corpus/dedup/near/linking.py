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
import numpy.typing as npt
from numba import uint64

from plinth.compiled import njit
from plinth.corpus.dedup.near import similarity_cache
from plinth.corpus.dedup.sorted_runs import I64, U64
from plinth.text.words.bags import I16, cosine
from plinth.text.words.ngrams import shared
from plinth.text.words.word_hashes import mix

Bools = npt.NDArray[np.bool_]
U32 = npt.NDArray[np.uint32]

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
        self._least = _smallest(self._bounds, self.node, self.high, self.low)
        self._refused = np.zeros(1024, dtype=np.uint64)

    def walk(self, what: int, known: tuple[Any, Any] | None = None, payload: Payload | None = None) -> tuple[U64, U64]:
        """Go over all pairs once; returns the similarities that were found."""
        pairs, values = known or (np.empty(0, np.uint64), np.empty(0, np.uint64))
        payload = payload or no_payload(self.high.size)
        self._refused, found_pairs, found_values = _walk(
            what, self._bounds, self.key, self.node, self.low, self._ends, self._least, self.parent, self.needed,
            self._refused, pairs, values, payload.start, payload.size, payload.values,
            payload.values.view(np.uint32), payload.values.view(np.int16), payload.minima, np.float32(self.threshold),
        )  # fmt: skip
        return found_pairs, found_values

    def roots(self) -> I64:
        """[N] for every document the first of its cluster."""
        return _flat(self.parent)


@njit(nogil=True, cache=True)
def _flat(parent: I64) -> I64:
    for node in range(parent.size):  # a parent is never above its child, so one pass from below finishes
        parent[node] = parent[parent[node]]
    return parent


@njit(nogil=True, cache=True)
def _smallest(bounds: I64, node: I64, high: U64, low: U64) -> I64:
    """Of each group the document with the smallest id, of equal ids the first."""
    out = np.empty(max(0, bounds.size - 1), dtype=np.int64)
    for group in range(out.size):
        best = node[bounds[group]]
        for i in range(bounds[group] + 1, bounds[group + 1]):
            other = node[i]
            if (high[other], low[other]) < (high[best], low[best]):
                best = other
        out[group] = best
    return out


@njit(nogil=True, cache=True)
def _find(parent: I64, node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@njit(nogil=True, cache=True)
def _slot(table: U64, value: Any) -> Any:
    """Where a value (not 0) is in the table, or the empty slot where it belongs; the size is a power of two."""
    mask = uint64(table.size - 1)
    at = mix(value) & mask
    while table[at] != 0 and table[at] != value:
        at = (at + uint64(1)) & mask
    return np.int64(at)


@njit(nogil=True, cache=True)
def _grown(table: U64, held: int, more: int) -> U64:
    """The table with room for so many more values, at most half full."""
    size = table.size
    while size < 2 * (held + more):
        size *= 2
    if size == table.size:
        return table
    out = np.zeros(size, dtype=np.uint64)
    for value in table:
        if value != 0:
            out[_slot(out, value)] = value
    return out


@njit(nogil=True, cache=True)
def _similarity(
    what: int, a: int, b: int, start: I64, size: I64, values: U64, halves: U32, shorts: I16, minima: int
) -> Any:
    """Jaccard similarity of two sets, the share of equal minima of two signatures, or the cosine of two vectors."""
    if what == COSINES:
        left_from, right_from, count = 4 * start[a], 4 * start[b], 4 * size[a]
        return cosine(shorts[left_from : left_from + count], shorts[right_from : right_from + count])
    if what == SETS:
        left, right = values[start[a] : start[a] + size[a]], values[start[b] : start[b] + size[b]]
        common = shared(left, right)
        union = left.size + right.size - common
        return np.float32(common / union if union else 0.0)
    equal = 0
    for i in range(minima):
        equal += halves[2 * start[a] + i] == halves[2 * start[b] + i]
    return np.float32(equal / minima)


@njit(nogil=True, cache=True)
def _walk(
    what: int, bounds: I64, key: U64, node: I64, low: U64, ends: U64, least: I64, parent: I64, needed: Bools,
    refused: U64, pairs: U64, values: U64, start: I64, size: I64, data: U64, halves: U32, shorts: I16, minima: int,
    limit: Any,
) -> tuple[U64, U64, U64]:  # fmt: skip
    """Go over the pairs of all groups once; returns the table of refused pairs, and pairs and similarities found."""
    held = int(np.count_nonzero(refused))
    found_pairs, found_values = np.empty(1024, dtype=np.uint64), np.empty(1024, dtype=np.uint64)
    found = 0
    word = np.empty(1, dtype=np.uint32)
    real = word.view(np.float32)
    for group in range(bounds.size - 1):
        first, last = bounds[group], bounds[group + 1]
        count = last - first
        crowd = count > ALL_PAIRS
        most = count * (NEIGHBOURS + 1) if crowd else count * (count - 1) // 2
        refused = _grown(refused, held, most)
        if found + most > found_pairs.size:
            room = max(2 * found_pairs.size, found + most)
            bigger = np.empty(room, dtype=np.uint64)
            bigger[:found] = found_pairs[:found]
            found_pairs = bigger
            bigger = np.empty(room, dtype=np.uint64)
            bigger[:found] = found_values[:found]
            found_values = bigger
        order = node[first:last]
        if crowd:
            keys = np.empty(count, dtype=np.uint64)
            for i in range(count):
                keys[i] = mix(low[order[i]] ^ key[first])
            order = order[np.argsort(keys)]
        for i in range(count):
            a = order[i]
            reach = min(count, i + 1 + NEIGHBOURS) if crowd else count
            star = 1 if crowd and a != least[group] else 0
            for j in range(i + 1 - star, reach):
                b = order[j] if j > i else least[group]
                root_a, root_b = _find(parent, a), _find(parent, b)
                if root_a == root_b:
                    continue
                pair = uint64(min(a, b)) << uint64(32) | uint64(max(a, b))
                place = _slot(refused, pair)
                if refused[place] == pair:
                    continue
                if what == MARK:
                    needed[a] = needed[b] = True
                    continue
                if what == LOOK_UP:
                    at = similarity_cache.look_up(
                        pairs,
                        values,
                        similarity_cache.pair_key(ends[a], ends[b]),
                        similarity_cache.pair_check(ends[a], ends[b]),
                    )
                    if at < 0:
                        continue
                    word[0] = np.uint32(values[at] & uint64(0xFFFFFFFF))
                else:
                    real[0] = _similarity(what, a, b, start, size, data, halves, shorts, minima)
                    found_pairs[found] = similarity_cache.pair_key(ends[a], ends[b])
                    found_values[found] = similarity_cache.pair_check(ends[a], ends[b]) << uint64(32) | uint64(word[0])
                    found += 1
                if real[0] >= limit:
                    parent[max(root_a, root_b)] = min(root_a, root_b)
                else:
                    refused[place] = pair
                    held += 1
    return refused, found_pairs[:found], found_values[:found]
