"""Pairs of vectors that may be alike: SimHash nominates, a sketch of more bits sorts out.

    keys    per part: `tables` SimHash keys and a sketch of every vector
    pairs   per range of keys: vectors that share a key and whose sketches are near; each pair is a group of its own

A bit of a key says on which side of a random plane a vector lies; two vectors at angle a differ in it with
probability a / π (Charikar 2002). The planes go through the mean of all vectors, for what every document has in
common (frequent words) would put all of them on one side. With b bits and L tables a pair at cosine t is found
with probability 1 − (1 − (1 − acos(t) / π)^b)^L; L is chosen for the recall wanted, b so that a key is
shared by about `CROWD` vectors of an even spread. Under a key of more than `ALL_PAIRS` vectors each is paired with
the next `NEIGHBOURS` in an order of its own and with the first.

Most of these pairs are chance: a pair stays whose `SKETCH_BITS` further bits differ in no more than those of a pair at
the threshold do, `DEVIATIONS` standard deviations allowed. What stays is compared by `near.verify`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near.candidates import GROUPS
from plinth.corpus.dedup.run_tree import Range, RangeReader, reduce, tree
from plinth.corpus.dedup.vectors import raw
from plinth.corpus.sidecars import SlotNumbers
from plinth.records import Part, Step
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store
from plinth_text.arrays import F32, I16, I64, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.similarity import SCALE

VERSION = "2"

CROWD, ALL_PAIRS, NEIGHBOURS = 4, 64, 16
MAX_BITS, MAX_TABLES = 24, 256
SKETCH_BITS, DEVIATIONS = 256, 6

#: Runs of (key, row).
KEYS = "simhash"

_FIRST, _SECOND = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB


@dataclass(frozen=True)
class Search:
    """Shape of the search for candidates.

    Args:
        mean: of vectors, rounded: the planes go through it.
        bits, tables: of the keys.
        differing: so many bits of two sketches may differ.
    """

    mean: tuple[int, ...]
    bits: int
    tables: int
    differing: int


def search(total: I64, count: int, threshold: float, recall: float) -> Search:
    """The search among vectors of which `count` sum to `total`."""
    mean = total / max(1, count)
    common = float(np.square(mean).sum()) / SCALE**2
    bits = int(np.clip(round(math.log2(max(2, count) / CROWD)), 4, MAX_BITS))
    near = max(0.0, 1 - (1 - threshold) / max(1e-3, 1 - common))  # the same distance, seen from the mean
    angle = math.acos(min(1.0, near)) / math.pi
    same = (1 - angle) ** bits
    tables = 1 if same >= recall else math.ceil(math.log(1 - recall) / math.log(1 - same))
    differing = math.ceil(SKETCH_BITS * angle + DEVIATIONS * math.sqrt(SKETCH_BITS * angle * (1 - angle)))
    return Search(tuple(int(value) for value in np.rint(mean)), bits, min(tables, MAX_TABLES), differing)


def find(
    ctx: Context, vectors: Sequence[Part], shape: Search, mask: Part, layout: SlotNumbers, range_rows: int
) -> list[Part]:
    """Pairs that may be alike, as runs of `candidates.GROUPS`.

    Args:
        vectors: by slot.
        mask: flat column of bytes: which documents are compared.
        range_rows: keys that one reduce task holds.
    """
    identity = {"mean": list(shape.mean), "bits": shape.bits, "tables": shape.tables}
    step = Step(name="dedup/semantic/keys", version=VERSION, params=identity)
    items = [Item((part.blob.sha256,), _Keys(part, shape), part.rows) for part in vectors]
    made = run_items(ctx, step, _keys, items, label="dedup/semantic keys")
    sketches = sidecars.joined(ctx, "dedup/semantic sketches", [parts[1] for parts in made])
    reader = RangeReader.over(ctx.store, KEYS, tree(ctx, KEYS, 2, [parts[0] for parts in made]), layout)
    step = Step(name="dedup/semantic/pairs", version=VERSION, params={"differing": shape.differing})
    differing = partial(_pairs, shape.differing)
    return reduce(ctx, step, differing, reader, range_rows, "dedup/semantic pairs", mask, (sketches,))


@dataclass(frozen=True)
class _Keys:
    vectors: Part
    shape: Search


def _keys(store: Store, task: _Keys) -> tuple[Part, ...]:
    keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    sketches, first = [np.empty((0, _WORDS), np.uint64)], 0
    for batch in iter_batches(store, task.vectors):
        mine = np.flatnonzero(batch.column("has").to_numpy(zero_copy_only=False))
        sketches.append(np.zeros((batch.num_rows, _WORDS), dtype=np.uint64))
        if mine.size:
            vectors = raw(batch.column("vector"))[mine].view("<i2")[:, : len(task.shape.mean)]
            keys.append(simhash(vectors, task.shape).reshape(-1))
            rows.append(np.repeat((first + mine).astype(np.uint64), task.shape.tables))
            sketches[-1][mine] = sketched(vectors, task.shape)
        first += batch.num_rows
    key, row = np.concatenate(keys), np.concatenate(rows)
    order = sorted_runs.in_order(key, row)
    run = sorted_runs.write(store, "keys.run", KEYS, [(key[order], row[order])], 2)
    return run, sidecars.write(store, "sketches.flat", np.concatenate(sketches))


_WORDS = SKETCH_BITS // 64


def simhash(vectors: I16, shape: Search) -> U64:
    """Keys [N, tables] of vectors [N, dimensions]."""
    out = np.empty((vectors.shape[0], shape.tables), dtype=np.uint64)
    for first, sides in _sides(vectors, shape, 0, shape.tables * shape.bits):
        pack_sides(sides, shape.bits, out[first : first + 4096])
    return out


def sketched(vectors: I16, shape: Search) -> U64:
    """Sketches [N, SKETCH_BITS / 64] of vectors [N, dimensions], by other planes than the keys'."""
    out = np.empty((vectors.shape[0], _WORDS), dtype=np.uint64)
    for first, sides in _sides(vectors, shape, MAX_BITS * MAX_TABLES, SKETCH_BITS):
        out[first : first + 4096] = np.packbits(sides, axis=1).view("<u8")
    return out


def _sides(vectors: I16, shape: Search, plane: int, count: int) -> Iterator[tuple[int, Bools]]:
    """By 4,096 vectors: on which sides of so many planes they lie; exact whole numbers up to their signs."""
    centred = (vectors - np.array(shape.mean, dtype=np.int32)).astype(np.float32)
    planes = np.empty((vectors.shape[1], count), dtype=np.float32)
    random_planes(plane, _FIRST, _SECOND, planes)
    for first in range(0, vectors.shape[0], 4096):
        yield first, centred[first : first + 4096] @ planes > 0


@compiled
def random_planes(first: int, row_factor: int, column_factor: int, out: F32) -> None:
    """Fill in random signs [dimensions, count], those of planes from `first` on: a function of the place alone."""


@compiled
def pack_sides(sides: Bools, bits: int, out: U64) -> None:
    """Fill in the keys [N, tables] of vectors from the sides on which they are."""


def nominate(key: U64, at: U64) -> tuple[U64, U64]:
    """Pairs (smaller address first) of entries sorted by key and address; repeats may occur."""
    starts = np.append(np.flatnonzero(np.r_[True, key[1:] != key[:-1]][: key.size]), key.size)
    sizes = np.diff(starts)
    total = int(np.where(sizes <= ALL_PAIRS, sizes * (sizes - 1) // 2, sizes * (NEIGHBOURS + 1)).sum())
    left, right = np.empty(total, dtype=np.uint64), np.empty(total, dtype=np.uint64)
    count = nominate_pairs(key, at, starts.astype(np.int64), left, right)
    return left[:count], right[:count]


@compiled
def nominate_pairs(key: U64, at: U64, starts: I64, left: U64, right: U64) -> int:
    """Fill in the pairs of all groups; returns how many there are."""


def _pairs(differing: int, store: Store, task: Range) -> tuple[Part, ...]:
    _, (key, at) = task.read(store)
    left, right = nominate(key, at)
    sketches = sidecars.open_flat(store, task.given[0], "<u8", _WORDS)
    pairs = np.unique(np.stack([left, right], axis=1), axis=0)
    near = _differing(sketches, pairs) <= differing
    left, right = np.ascontiguousarray(pairs[near].T)
    keys = np.empty(left.size, dtype=np.uint64)
    hash_pairs(left, right, keys)
    columns = np.repeat(keys, 2), np.stack([left, right], axis=1).reshape(-1)
    order = sorted_runs.in_order(*columns)
    return (sorted_runs.write(store, "groups.run", GROUPS, [[column[order] for column in columns]], 2),)


def _differing(sketches: U64, pairs: U64) -> I64:
    """[P] how many bits of the sketches of each pair differ."""
    out = np.zeros(pairs.shape[0], dtype=np.int64)
    for first in range(0, out.size, 2**20):
        left, right = pairs[first : first + 2**20].T
        out[first : first + 2**20] = np.bitwise_count(sketches[left] ^ sketches[right]).sum(axis=1)
    return out


@compiled
def hash_pairs(left: U64, right: U64, out: U64) -> None:
    """Fill in a number for each pair; two that fall together cost a comparison more."""
