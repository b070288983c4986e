"""Shingles of documents, the cache of similarities, and the comparison of pairs that yields the clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.dedup.run_tree import keyed, narrow
from plinth.corpus.dedup.sorted_runs import ranges
from plinth.errors import StorageError
from plinth.records import Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.store import Store
from plinth_text import similarity as minhash
from plinth_text.arrays import I16, I64, U8, U32, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.unicode import utf8
from plinth_text.words import ngram_sets

# Shingles of a text, of words or of characters: their signatures and their sets.
#
# Words are those of `plinth_text.words`. A character shingle is n code points of the folded text (lower case, one space
# for any white space); a shorter text is one shingle. Of a text longer than `max_characters` only the beginning counts
# (Marin cuts at 500,000), for signature and set alike: a book stays comparable with its copies, costs no more than a
# long article, and its minima do not sink to where they all meet.


def signatures(texts: pa.Array, params: MinHash, a: U64, b: U64) -> tuple[U32, Bools]:
    """Return the signatures [D, K] of all texts, and a mask [D] of the texts that have a shingle.

    Args:
        a, b: coefficients of the permutations, [K] each.
    """
    texts = shortened(texts, params.max_characters)
    if params.shingle_characters is None:
        return minhash.signatures(texts, params.shingle_words, a, b)
    data, offsets = utf8(texts)
    out = np.empty((offsets.size - 1, a.size), dtype=np.uint32)
    filled = np.zeros(offsets.size - 1, dtype=np.bool_)
    sign(data, offsets, params.shingle_characters, a, b, *_scratch(offsets), out, filled)
    return out, filled


def sets(texts: pa.Array, params: MinHash) -> list[U64]:
    """Return the sorted set of shingle hashes of every text."""
    texts = shortened(texts, params.max_characters)
    if params.shingle_characters is None:
        return ngram_sets(texts, params.shingle_words)
    data, offsets = utf8(texts)
    folded, points, grams = _scratch(offsets)
    n, edges = params.shingle_characters, offsets.tolist()
    return [
        np.unique(grams[: hash_characters(data, start, end, n, folded, points, grams)])
        for start, end in pairwise(edges)
    ]


def shortened(texts: pa.Array, characters: int | None) -> pa.Array:
    """Truncate every text to `characters` characters."""
    if characters is None or int(pc.max(pc.binary_length(texts)).as_py() or 0) <= characters:
        return texts
    return pc.utf8_slice_codeunits(texts, 0, characters)


def _scratch(offsets: I64) -> tuple[U8, U64, U64]:
    """Return scratch arrays for the normalized bytes, the code points and the n-grams of a text. The arrays are large
    enough for the longest text."""
    longest = int(np.diff(offsets).max(initial=0)) + 2
    return np.empty(longest, np.uint8), np.empty(longest, np.uint64), np.empty(longest + 2, np.uint64)


@compiled
def hash_characters(data: U8, start: int, end: int, n: int, folded: U8, points: U64, grams: U64) -> int:
    """Hash the character n-grams of the normalized bytes `data[start:end]`, including repeated n-grams, and return the
    number of n-grams.

    `folded`, `points` and `grams` are the arrays from `_scratch`.
    """


@compiled
def sign(
    data: U8, offsets: I64, n: int, a: U64, b: U64, folded: U8, points: U64, grams: U64, out: U32, filled: Bools
) -> None:
    """Write the signatures of all texts to `out`, and to `filled` whether a text has a shingle. `folded`, `points` and
    `grams` are the arrays from `_scratch`."""


# Similarity cache: similarities of pairs of documents, computed once and valid for ever.
#
# An id names its text, so what two ids' texts have in common never changes. A later run over more documents looks
# a pair up before it reads a text again; losing the cache costs time and nothing else. It is kept in the step cache
# under the definition of a similarity (shingles and the like), is only ever added to, and is checked against its
# SHA-256 before it is used.
#
# A pair is 64 bits of hash over both ids; 32 more bits are next to the similarity (FP32), 96 in all.

VERSION = "1"
#: Runs of (pair, check << 32 | bits of the similarity), as verification leaves them.
SIMILARITIES = "facts"
MERGE_ROWS = 4_000_000


@dataclass(frozen=True)
class KnownSimilarities:
    """All cached similarities of document pairs, as two flat columns: sorted keys of pairs, and similarities."""

    pairs: Part
    values: Part

    @property
    def keys(self) -> tuple[str, str]:
        """Digests of the two columns, which identify the cached similarities."""
        return self.pairs.blob.sha256, self.values.blob.sha256

    def open(self, store: Store) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the columns of keys and similarities as memory-mapped arrays."""
        pairs, values = (sidecars.open_flat(store, part, "<u8") for part in (self.pairs, self.values))
        return pairs, values


def recall(ctx: Context, definition: Mapping[str, Any]) -> KnownSimilarities | None:
    """Return the similarities cached under a definition of similarity, or None if the cache is empty or damaged."""
    parts = ctx.cache.get(_key(definition))
    if not parts or parts[0].rows == 0:
        return None
    try:
        for part in parts:
            ctx.store.verify(part.blob)
    except StorageError:
        return None
    return KnownSimilarities(*parts)


def remember(
    ctx: Context, definition: Mapping[str, Any], known: KnownSimilarities | None, fresh: Sequence[Part]
) -> None:
    """Add newly computed similarities to the cache."""
    if not any(part.rows for part in fresh):
        return
    few = narrow(ctx, SIMILARITIES, 2, fresh, "dedup/minhash facts")
    item = Item((*(known.keys if known else ()), keyed(few)), _Merge(known, few), sum(part.rows for part in few))
    step = Step(name="dedup/facts/merge", version=VERSION)
    ctx.cache.put(_key(definition), run_items(ctx, step, _merge, [item], label="dedup/minhash facts")[0])


def _key(definition: Mapping[str, Any]) -> str:
    return Step(name="dedup/facts", version=VERSION, params=definition).key(())


@dataclass(frozen=True)
class _Merge:
    known: KnownSimilarities | None
    fresh: tuple[Part, ...]


def _merge(store: Store, task: _Merge) -> tuple[Part, ...]:
    old = task.known.open(store) if task.known else (np.empty(0, np.uint64), np.empty(0, np.uint64))
    rows = old[0].size + sum(part.rows for part in task.fresh)
    with ExitStack() as stack:
        opened = [stack.enter_context(sorted_runs.SortedRun(store, part, SIMILARITIES)) for part in task.fresh]
        paths = [stack.enter_context(store.staging(".flat")) for _ in old]
        with ExitStack() as files:
            targets = [files.enter_context(path.open("wb")) for path in paths]
            for low, high in ranges(rows, MERGE_ROWS):
                begin, end = np.searchsorted(old[0], np.array([low, min(high, 2**64 - 1)], dtype=np.uint64))
                end = old[0].size if high > 2**64 - 1 else end
                slices = [tuple(column[begin:end] for column in old), *(one.slice(low, high) for one in opened)]
                table = [np.concatenate(column) for column in zip(*slices, strict=True)]
                order = sorted_runs.in_order(table[0], table[1])
                for path, target, column in zip(paths, targets, table, strict=True):
                    with named_failures(path):
                        column[order].tofile(target)
        names = ("pairs.flat", "values.flat")
        return tuple(Part(name=n, blob=store.put_file(p), rows=rows) for n, p in zip(names, paths, strict=True))


def ends(high: U64, low: U64) -> U64:
    """Return a 64-bit hash of each document id, computed from the two halves of the id. The key of a pair combines the
    hashes of its two documents."""
    out = np.empty(high.size, dtype=np.uint64)
    pair_ends(high, low, out)
    return out


@compiled
def pair_ends(high: U64, low: U64, out: U64) -> None:
    """Write a 64-bit hash of each document id to `out`; see `ends`."""


@compiled
def look_up_pairs(first: U64, second: U64, pairs: U64, values: U64, key: U64, fact: U64) -> None:
    """Look up the similarities of pairs of documents, given by the hashes of their ids.

    Writes the key of each pair to `key`, and its cached value to `fact`; the similarity of an unknown pair is NaN.
    """


# The pairs of groups of documents, compared until the clusters are known.
#
# Within a group of at most `ALL_PAIRS` documents every pair counts. A larger crowd (boilerplate, templates) would
# cost its square: there each document is paired with the next `NEIGHBOURS` in an order keyed by id and band, and
# with the smallest id. The orders of different bands are independent, so true clusters in a crowd stay connected.
#
# Clusters are the connected components of the pairs that pass, so a pair whose ends are connected already is not
# compared: a cluster of n copies costs n comparisons, not n². The pairs that are skipped depend on the order, the
# clusters do not.
#
# Letters: N documents of a partition, R rows (band key, document) of its groups.

ALL_PAIRS = 32
NEIGHBOURS = 8

#: Action for a pair that is neither connected nor refused: look it up in the similarity cache, note that its
#: texts are needed, or compare their sets (`SETS`), signatures (`SIGNATURES`) or vectors (`COSINES`).
LOOK_UP, MARK, SETS, SIGNATURES, COSINES = 0, 1, 2, 3, 4


@dataclass
class Payload:
    """Shingle sets, signatures or vectors to compare. Document i has `values[start[i] : start[i] + size[i]]`.

    A signature is `minima` uint32 numbers, packed two per value. A vector is int16 numbers, packed four per value.
    """

    start: I64
    size: I64
    values: U64
    minima: int = 0


def no_payload(count: int) -> Payload:
    """Return an empty payload, for passes that only use cached similarities."""
    return Payload(np.zeros(count, np.int64), np.zeros(count, np.int64), np.empty(0, np.uint64))


@dataclass
class Links:
    """Links between the documents of a partition. The links are found step by step by `walk`.

    Args:
        key, node: [R] band keys and indices of documents; the rows of a group are adjacent, and `bounds` has the first
            row of each group and R.
        high, low: [N] halves of the documents' ids; `hashes` has a hash of each id.
        threshold: minimum similarity to link two documents, compared in FP32.
        all_pairs: number of documents of a group up to which all pairs are compared.
    """

    key: U64
    node: I64
    high: U64
    low: U64
    threshold: float
    all_pairs: int = ALL_PAIRS
    parent: I64 = field(init=False)
    needed: Bools = field(init=False)
    hashes: U64 = field(init=False)
    bounds: I64 = field(init=False)

    def __post_init__(self) -> None:
        count = self.high.size
        self.parent, self.needed = np.arange(count), np.zeros(count, dtype=np.bool_)
        starts = np.ones(self.key.size, dtype=np.bool_)
        starts[1:] = self.key[1:] != self.key[:-1]
        self.bounds = np.append(np.flatnonzero(starts), self.key.size).astype(np.int64)
        self.hashes = ends(self.high, self.low)
        self._least = np.empty(self.bounds.size - 1, dtype=np.int64)
        smallest(self.bounds, self.node, self.high, self.low, self._least)
        self._refused = np.zeros(1024, dtype=np.uint64)

    def walk(self, what: int, known: tuple[Any, Any] | None = None, payload: Payload | None = None) -> tuple[U64, U64]:
        """Visit all pairs of every candidate group once. Return the keys of the pairs that were compared, and their
        similarities."""
        pairs, values = known or (np.empty(0, np.uint64), np.empty(0, np.uint64))
        payload = payload or no_payload(self.high.size)
        views = payload.values, payload.values.view(np.uint32), payload.values.view(np.int16)
        found_pairs, found_values = np.empty(1024, dtype=np.uint64), np.empty(1024, dtype=np.uint64)
        sizes = np.diff(self.bounds)
        order, limit = np.empty(int(sizes.max(initial=0)), dtype=np.int64), float(np.float32(self.threshold))
        group, held, found = 0, int(np.count_nonzero(self._refused)), 0
        while group < sizes.size:
            count = int(sizes[group])
            most = count * (NEIGHBOURS + 1) if count > self.all_pairs else count * (count - 1) // 2
            self._refused = _grown(self._refused, held + most)
            found_pairs, found_values = _longer(found_pairs, found + most), _longer(found_values, found + most)
            group, held, found = walk(
                what, self.all_pairs, group, self.bounds, self.key, self.node, self.low, self.hashes, self._least,
                self.parent, self.needed, self._refused, held, pairs, values, payload.start, payload.size, *views,
                payload.minima, limit, order, found_pairs, found_values, found,
            )  # fmt: skip
        return found_pairs[:found], found_values[:found]

    def group_of(self, rows: I64) -> I64:
        """Return the number of the group that each of some rows belongs to."""
        return np.searchsorted(self.bounds, rows, side="right") - 1

    def roots(self) -> I64:
        """Return, for each document, the index of the first document in its cluster."""
        flatten(self.parent)
        return self.parent


@compiled
def flatten(parent: I64) -> None:
    """Replace every parent in a union-find forest by its root."""


@compiled
def smallest(bounds: I64, node: I64, high: U64, low: U64, out: I64) -> None:
    """Write to `out` the document with the smallest id of each group. If ids are equal, this is the first document."""


@compiled
def move_values(table: U64, larger: U64) -> None:
    """Insert the values of a hash table into a larger table, whose size is a power of two. The value 0 marks a free
    slot."""


@compiled
def walk(
    what: int, all_pairs: int, group: int, bounds: I64, key: U64, node: I64, low: U64, ends: U64, least: I64,
    parent: I64, needed: Bools, refused: U64, held: int, pairs: U64, values: U64, start: I64, size: I64, data: U64,
    halves: U32, shorts: I16, minima: int, limit: float, order: I64, found_pairs: U64, found_values: U64, found: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Visit the pairs of each group, beginning with group number `group`, until the tables have no room for all pairs
    of the next group.

    Returns:
        The group to continue with, the number of rejected pairs, and the number of similarities found.
    """


def _grown(table: U64, entries: int) -> U64:
    """Return a hash table with the same values that is at most half full with `entries` entries."""
    size = table.size
    while size < 2 * entries:
        size *= 2
    if size == table.size:
        return table
    larger = np.zeros(size, dtype=np.uint64)
    move_values(table, larger)
    return larger


def _longer(values: U64, size: int) -> U64:
    """Return an array with the same values and room for `size` values. An array that must grow is at least doubled."""
    if size <= values.size:
        return values
    return np.concatenate([values, np.empty(max(size, 2 * values.size) - values.size, dtype=np.uint64)])
