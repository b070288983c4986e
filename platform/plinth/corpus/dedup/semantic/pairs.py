"""Pairs of vectors whose cosine reaches a threshold: SimHash nominates, integer arithmetic decides.

    keys    per part: `tables` SimHash keys of every vector
    pairs   per range of keys: vectors that share a key
    check   per part: its pairs that reach the threshold; one other part's vectors are held at a time

A bit of a key says on which side of a random plane a vector lies; two vectors at angle a differ in it with
probability a / π (Charikar 2002). The planes go through the mean of all vectors, for what every document has in
common (frequent words) would put all of them on one side. With b bits and L tables a pair at cosine t is found
with probability 1 − (1 − (1 − acos(t) / π)^b)^L; L is chosen for the recall wanted, b so that a key is
shared by about `CROWD` vectors of an even spread. Under a key of more than `ALL_PAIRS` vectors each is paired with
the next `NEIGHBOURS` in an order of its own and with the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import uint64

from plinth.compiled import njit
from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup import shuffle
from plinth.corpus.dedup.edits import I64, U64
from plinth.corpus.dedup.semantic.vectors import Vectors, load
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth.text.words.bags import I16, SCALE
from plinth.text.words.word_hashes import mix

CROWD, ALL_PAIRS, NEIGHBOURS = 4, 64, 16
MAX_BITS, MAX_TABLES = 24, 256

_KEYS = pa.schema([("key", pa.uint64()), ("at", pa.uint64())])
EDGES = pa.schema([("at", pa.uint64()), ("other", pa.uint64())])

_FIRST, _SECOND = np.uint64(0xA0761D6478BD642F), np.uint64(0xE7037ED1A0B428DB)


@dataclass(frozen=True)
class Search:
    """Shape of the search for candidates: the mean of all vectors, rounded, and the keys' shape."""

    mean: tuple[int, ...]
    bits: int
    tables: int


def search(total: I64, count: int, threshold: float, recall: float) -> Search:
    """The search for `count` vectors whose sum is `total`."""
    mean = total / max(1, count)
    common = float(np.square(mean).sum()) / SCALE**2
    bits = int(np.clip(round(math.log2(max(2, count) / CROWD)), 4, MAX_BITS))
    near = max(0.0, 1 - (1 - threshold) / max(1e-3, 1 - common))  # the same distance, seen from the mean
    same = (1 - math.acos(min(1.0, near)) / math.pi) ** bits
    tables = 1 if same >= recall else math.ceil(math.log(1 - recall) / math.log(1 - same))
    return Search(tuple(int(value) for value in np.rint(mean)), bits, min(tables, MAX_TABLES))


def find(
    ctx: Context,
    vectors: dict[int, Vectors],
    shape: Search,
    threshold: float,
    version: str,
    range_rows: int,
) -> tuple[Part, ...]:
    """Edges of all slots, by number of slot.

    Args:
        vectors: by number of slot.
        range_rows: keys that one reduce task holds.
    """
    identity = {"mean": list(shape.mean), "bits": shape.bits, "tables": shape.tables}
    step = Step(name="dedup/semantic/keys", version=version, params=identity)
    items = [
        Item((str(number), one.table.blob.sha256), _Keys(number, one.table, shape), one.table.rows)
        for number, one in vectors.items()
    ]
    keys = tuple(made[0] for made in run_items(ctx, step, _keys, items, label="dedup/semantic keys"))
    step = Step(name="dedup/semantic/pairs", version=version)
    found = tuple(part.blob.sha256 for part in keys)
    cuts = shuffle.ranges(sum(part.rows for part in keys), range_rows)
    items = [Item((f"{low}-{high}", *found), _Range(keys, low, high)) for low, high in cuts]
    pairs = tuple(made[0] for made in run_items(ctx, step, _pairs, items, label="dedup/semantic pairs"))
    step = Step(name="dedup/semantic/check", version=version, params={"threshold": threshold})
    tables = {number: one.table for number, one in vectors.items()}
    found = tuple(part.blob.sha256 for part in (*pairs, *tables.values()))
    items = [
        Item((str(number), *found), _Check(number, tables, pairs, threshold), one.table.rows)
        for number, one in vectors.items()
    ]
    return tuple(made[0] for made in run_items(ctx, step, _check, items, label="dedup/semantic check"))


@dataclass(frozen=True)
class _Keys:
    number: int
    table: Part
    shape: Search


def _keys(store: Store, task: _Keys) -> tuple[Part, ...]:
    table, vectors = load(store, task.table)
    keys = simhash(vectors, task.shape)
    at = np.repeat(shuffle.address(task.number, table.column("row").to_numpy()), task.shape.tables)
    found = pa.table([pa.array(keys.reshape(-1)), pa.array(at)], schema=_KEYS)
    return (shuffle.write_sorted(store, "keys.parquet", found, ["key", "at"]),)


def simhash(vectors: I16, shape: Search) -> U64:
    """Keys [N, tables] of vectors [N, dimensions]: exact whole numbers up to their signs."""
    centred = (vectors - np.array(shape.mean, dtype=np.int32)).astype(np.float32)
    planes = _planes(vectors.shape[1], shape.tables * shape.bits)
    out = np.empty((vectors.shape[0], shape.tables), dtype=np.uint64)
    for first in range(0, vectors.shape[0], 4096):
        sides = centred[first : first + 4096] @ planes > 0
        _pack(sides, shape.bits, out[first : first + 4096])
    return out


@njit(nogil=True, cache=True)
def _planes(dimensions: int, count: int) -> npt.NDArray[np.float32]:
    """Random signs [dimensions, count]: a function of the place alone."""
    out = np.empty((dimensions, count), dtype=np.float32)
    for i in range(dimensions):
        for j in range(count):
            bit = mix(uint64(i) * _FIRST ^ uint64(j + 1) * _SECOND) >> uint64(63)
            out[i, j] = np.float32(1.0) if bit else np.float32(-1.0)
    return out


@njit(nogil=True, cache=True)
def _pack(sides: npt.NDArray[np.bool_], bits: int, out: U64) -> None:
    for row in range(out.shape[0]):
        for table in range(out.shape[1]):
            key = uint64(table + 1)
            for bit in range(table * bits, (table + 1) * bits):
                key = (key << uint64(1)) | uint64(sides[row, bit])
            out[row, table] = mix(key)


@dataclass(frozen=True)
class _Range:
    keys: tuple[Part, ...]
    low: int
    high: int


def _pairs(store: Store, task: _Range) -> tuple[Part, ...]:
    tables = [shuffle.read_range(store, part, "key", task.low, task.high) for part in task.keys]
    table = pa.concat_tables([_KEYS.empty_table(), *tables])
    key, at = table.column("key").to_numpy(), table.column("at").to_numpy()
    order = np.lexsort((at, key))
    left, right = nominate(key[order], at[order])
    pairs = np.unique(np.stack([left, right], axis=1), axis=0)
    found = pa.table([pa.array(pairs[:, 0]), pa.array(pairs[:, 1])], schema=EDGES)
    return (shuffle.write_sorted(store, "pairs.parquet", found, ["at", "other"]),)


def nominate(key: U64, at: U64) -> tuple[U64, U64]:
    """Pairs (smaller address first) of entries sorted by key and address; repeats may occur."""
    starts = np.append(np.flatnonzero(np.r_[True, key[1:] != key[:-1]][: key.size]), key.size)
    sizes = np.diff(starts)
    total = int(np.where(sizes <= ALL_PAIRS, sizes * (sizes - 1) // 2, sizes * (NEIGHBOURS + 1)).sum())
    left, right = np.empty(total, dtype=np.uint64), np.empty(total, dtype=np.uint64)
    count = _nominate(key, at, starts, left, right)
    return left[:count], right[:count]


@njit(nogil=True, cache=True)
def _nominate(key: U64, at: U64, starts: I64, left: U64, right: U64) -> int:
    count = 0
    for group in range(starts.size - 1):
        members = at[starts[group] : starts[group + 1]]
        reach = members.size
        if members.size > ALL_PAIRS:
            reach = NEIGHBOURS
            for i in range(1, members.size):
                left[count], right[count] = members[0], members[i]
                count += 1
            shuffled = np.empty(members.size, dtype=np.uint64)
            for i in range(members.size):
                shuffled[i] = mix(members[i] ^ key[starts[group]])
            members = members[np.argsort(shuffled)]
        for i in range(members.size):
            for j in range(i + 1, min(members.size, i + 1 + reach)):
                left[count], right[count] = min(members[i], members[j]), max(members[i], members[j])
                count += 1
    return count


@dataclass(frozen=True)
class _Check:
    number: int
    tables: dict[int, Part]
    pairs: tuple[Part, ...]
    threshold: float


def _check(store: Store, task: _Check) -> tuple[Part, ...]:
    low, high = shuffle.slot_range(task.number)
    tables = [shuffle.read_range(store, part, "at", low, high) for part in task.pairs]
    table = pa.concat_tables([EDGES.empty_table(), *tables])
    pairs = np.unique(np.stack([table.column(name).to_numpy() for name in EDGES.names], axis=1), axis=0)
    at, other = pairs[:, 0], pairs[:, 1]
    passed = np.zeros(at.size, dtype=np.bool_)
    slots = (other >> np.uint64(32)).astype(np.int64)
    mine = load(store, task.tables[task.number]) if at.size else None
    for number in np.unique(slots).tolist():
        theirs = mine if number == task.number else load(store, task.tables[number])
        assert mine is not None
        assert theirs is not None
        here = np.flatnonzero(slots == number)
        rows = np.searchsorted(mine[0].column("row").to_numpy(), at[here] & np.uint64(0xFFFFFFFF))
        others = np.searchsorted(theirs[0].column("row").to_numpy(), other[here] & np.uint64(0xFFFFFFFF))
        passed[here] = similar(mine[1], theirs[1], rows, others, task.threshold)
    edges = pa.table([pa.array(at[passed]), pa.array(other[passed])], schema=EDGES)
    return (shuffle.write_sorted(store, "edges.parquet", edges, ["at", "other"]),)


@njit(nogil=True, cache=True)
def similar(a: I16, b: I16, rows: I64, others: I64, threshold: float) -> npt.NDArray[np.bool_]:
    """Whether each pair of vectors has a cosine of at least the threshold, from sums of whole numbers."""
    out = np.zeros(rows.size, dtype=np.bool_)
    for pair in range(rows.size):
        x, y = a[rows[pair]], b[others[pair]]
        product, left, right = np.int64(0), np.int64(0), np.int64(0)
        for i in range(x.size):
            p, q = np.int64(x[i]), np.int64(y[i])
            product += p * q
            left += p * p
            right += q * q
        out[pair] = product > 0 and product >= threshold * math.sqrt(float(left) * float(right)) - 1e-6 * SCALE * SCALE
    return out
