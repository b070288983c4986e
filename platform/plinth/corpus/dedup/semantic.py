"""Semantic deduplication of chosen buckets: documents that share many words but few shingles.

    vectors   hashed TF-IDF fitted on the same buckets, or the user's own vectors       `vectors`
    pairs     SimHash candidates, by keys and sketches
    verify    exact cosines and clusters; the longest document of each cluster is kept (in a tie, the smallest id)
    sidecar   per part: the columns of `SCHEMA`

TF-IDF vectors match documents that use the same words about equally often in any order, such as copies with shuffled
sentences or a few exchanged words. TF-IDF vectors miss paraphrases with synonyms, translations and summaries. TF-IDF
vectors match filled-in forms that differ only in a few names. Therefore choose the threshold with care.

A task keeps in memory the vectors of one part or of one partition of pairs, or the pairs of `HELD_ROWS` rows, however
many vectors share a key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, manifest, run_items, sum_stats
from plinth.corpus import sidecars
from plinth.corpus.dedup import clusters, exact, sorted_runs
from plinth.corpus.dedup import vectors as semantic_vectors
from plinth.corpus.dedup.near import candidates
from plinth.corpus.dedup.near.crowds import CROWD as CROWD_RUN
from plinth.corpus.dedup.near.crowds import crowd_places
from plinth.corpus.dedup.near.linking import COSINES
from plinth.corpus.dedup.near.minhash import Clustering, Comparison, cluster
from plinth.corpus.dedup.parameters import Dedup, Semantic
from plinth.corpus.dedup.run_tree import Range, RangeReader, in_order, reduce, sorted_here, tree
from plinth.corpus.dedup.sorted_runs import END
from plinth.corpus.dedup.vectors import raw
from plinth.corpus.sidecars import Column, Slot, SlotNumbers, slots
from plinth.errors import RecipeError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, write_batches
from plinth.storage.store import Store
from plinth_text.arrays import F32, I16, I64, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.similarity import SCALE

# Pairs of vectors that may be alike: SimHash nominates, a sketch of more bits sorts out.
#
#     keys    per part: `tables` SimHash keys and a sketch of every vector
#     pairs   per range of keys: vectors that share a key and whose sketches are near; each pair is a group of its own
#
# A bit of a key is the side of a random plane on which a vector is; two vectors at angle a differ in it with
# probability a / π (Charikar 2002). The planes go through the mean of all vectors, for what every document has in
# common (frequent words) would put all of them on one side. With b bits and L tables a pair at cosine t is found
# with probability 1 − (1 − (1 − acos(t) / π)^b)^L; L is chosen for the recall wanted, b so that a key is
# shared by about `CROWD` vectors of an even spread. Under a key of more than `ALL_PAIRS` vectors each is paired with
# the next `NEIGHBOURS` in an order of its own and with the first.
#
# Most of these pairs are chance: a pair stays whose `SKETCH_BITS` further bits differ in no more than those of a pair
# at the threshold do, `DEVIATIONS` standard deviations allowed. What stays is compared by `near.verify`.

PAIRS_VERSION = "3"

CROWD, ALL_PAIRS, NEIGHBOURS = 4, 64, 16
#: Rows whose pairs a task holds at a time: up to 17 pairs each.
HELD_ROWS = 2**19
MAX_BITS, MAX_TABLES = 24, 256
SKETCH_BITS, DEVIATIONS = 256, 6

#: Runs of (key, row).
KEYS = "simhash"

_FIRST, _SECOND = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB


@dataclass(frozen=True)
class Search:
    """Parameters of the search for candidate pairs.

    Args:
        mean: mean of the vectors, rounded to integers; all SimHash planes go through this point.
        bits, tables: number of bits per key, and number of keys per vector.
        differing: maximum number of differing bits between the two sketches of a pair.
    """

    mean: tuple[int, ...]
    bits: int
    tables: int
    differing: int


def search(total: I64, count: int, threshold: float, recall: float) -> Search:
    """Return the search parameters for `count` vectors whose sum is `total`."""
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
    ctx: Context, vectors: Sequence[Part], shape: Search, mask: Column, layout: SlotNumbers, range_rows: int
) -> list[Part]:
    """Return the pairs of documents that may be similar, as sorted runs of `components.SHARED`.

    Args:
        vectors: by part of documents, the part with its vectors.
        mask: column of bytes that selects the documents to compare.
        range_rows: number of keys per reduce task.
    """
    identity = {"mean": list(shape.mean), "bits": shape.bits, "tables": shape.tables}
    step = Step(name="dedup/semantic/keys", version=PAIRS_VERSION, params=identity)
    items = [Item((part.blob.sha256,), _Keys(part, shape), part.rows) for part in vectors]
    made = run_items(ctx, step, _keys, items, label="dedup/semantic keys")
    sketches = sidecars.joined(ctx, "dedup/semantic sketches", [parts[1] for parts in made], "<u8", _WORDS)
    reader = RangeReader.over(ctx.store, KEYS, tree(ctx, KEYS, 2, [parts[0] for parts in made]), layout)
    step = Step(name="dedup/semantic/pairs", version=PAIRS_VERSION, params={"differing": shape.differing})
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
    """Return the SimHash keys [N, tables] of vectors [N, dimensions]."""
    out = np.empty((vectors.shape[0], shape.tables), dtype=np.uint64)
    for first, sides in _sides(vectors, shape, 0, shape.tables * shape.bits):
        pack_sides(sides, shape.bits, out[first : first + 4096])
    return out


def sketched(vectors: I16, shape: Search) -> U64:
    """Return the sketches [N, SKETCH_BITS / 64] of vectors [N, dimensions]. Sketches and keys use different random
    planes."""
    out = np.empty((vectors.shape[0], _WORDS), dtype=np.uint64)
    for first, sides in _sides(vectors, shape, MAX_BITS * MAX_TABLES, SKETCH_BITS):
        out[first : first + 4096] = np.packbits(sides, axis=1).view("<u8")
    return out


def _sides(vectors: I16, shape: Search, plane: int, count: int) -> Iterator[tuple[int, Bools]]:
    """Yield, for batches of 4,096 vectors, the first row of the batch, and a mask of the planes that each vector is
    above. The products are exact whole numbers, so their signs do not depend on the processor."""
    centred = (vectors - np.array(shape.mean, dtype=np.int32)).astype(np.float32)
    planes = np.empty((vectors.shape[1], count), dtype=np.float32)
    random_planes(plane, _FIRST, _SECOND, planes)
    for first in range(0, vectors.shape[0], 4096):
        yield first, centred[first : first + 4096] @ planes > 0


@compiled
def random_planes(first: int, row_factor: int, column_factor: int, out: F32) -> None:
    """Write random signs [dimensions, count] for the planes from number `first` on to `out`. Each sign depends only on
    its position."""


@compiled
def pack_sides(sides: Bools, bits: int, out: U64) -> None:
    """Write the keys [N, tables] of vectors to `out`. Each key packs `bits` bits, which are the vector's sides of as
    many planes."""


def nominate(key: U64, at: U64) -> tuple[U64, U64]:
    """Return the candidate pairs among rows that share a key; rows are sorted by key and address. In a pair, the
    smaller address is first. A pair may occur more than once."""
    starts = np.append(np.flatnonzero(np.r_[True, key[1:] != key[:-1]][: key.size]), key.size)
    sizes = np.diff(starts)
    total = int(np.where(sizes <= ALL_PAIRS, sizes * (sizes - 1) // 2, sizes * (NEIGHBOURS + 1)).sum())
    left, right = np.empty(total, dtype=np.uint64), np.empty(total, dtype=np.uint64)
    count = nominate_pairs(key, at, starts.astype(np.int64), left, right)
    return left[:count], right[:count]


@compiled
def nominate_pairs(key: U64, at: U64, starts: I64, left: U64, right: U64) -> int:
    """Write the pairs of rows in each group of equal keys to `left` and `right`, and return the number of pairs."""


def _pairs(differing: int, store: Store, task: Range) -> tuple[Part, ...]:
    """Write the pairs of a range whose sketches are near, a bounded number of pairs at a time."""
    made = list[Part]()
    for piece, heavy in task.pieces(store, HELD_ROWS):
        for left, right in _crowd_pairs(store, piece) if heavy else [nominate(*piece.read(store)[1])]:
            made.append(_near_pairs(store, task, differing, left, right))
    return tuple(made)


def _crowd_pairs(store: Store, task: Range) -> Iterator[tuple[U64, U64]]:
    """Yield the pairs that `nominate` returns for a single key with any number of rows."""
    runs, first = list[Part](), END - 1
    for _, at in task.chunks(store):
        place = np.empty(at.size, dtype=np.uint64)
        crowd_places(at, task.low, place)
        order = sorted_runs.in_order(place, at)
        runs.append(sorted_runs.write(store, "crowd.run", CROWD_RUN, [(place[order], at[order])], 2))
        first = int(at.min(initial=first))
    before, rows = np.empty(0, np.uint64), sum(one.rows for one in runs)
    reach = NEIGHBOURS if rows > ALL_PAIRS else rows  # few may be left of many that are not compared
    with ExitStack() as stack:
        opened = [stack.enter_context(sorted_runs.SortedRun(store, one)) for one in sorted_here(store, runs, 2)]
        for _, at in in_order(opened, HELD_ROWS // 4):
            found, others = np.concatenate([before, at]), at[at != np.uint64(first)]
            pairs = [(np.full_like(others, first), others)]
            for step in range(1, reach + 1):
                later = found[max(before.size, step) :]
                pairs.append((found[max(before.size, step) - step :][: later.size], later))
            one, other = (np.concatenate(column) for column in zip(*pairs, strict=True))
            yield np.minimum(one, other), np.maximum(one, other)
            before = found[-reach:]


def _near_pairs(store: Store, task: Range, differing: int, left: U64, right: U64) -> Part:
    pairs = np.unique(np.stack([left, right], axis=1), axis=0)
    documents = np.unique(pairs)
    sketches = task.given[0].take(store, documents)
    near = _differing(sketches, np.searchsorted(documents, pairs)) <= differing
    left, right = np.ascontiguousarray(pairs[near].T)
    keys = np.empty(left.size, dtype=np.uint64)
    hash_pairs(left, right, keys)
    columns = np.repeat(keys, 2), np.stack([left, right], axis=1).reshape(-1)
    order = sorted_runs.in_order(*columns)
    return candidates.write_shared(store, *(column[order] for column in columns))


def _differing(sketches: U64, pairs: I64) -> I64:
    """Return, for each pair, the number of bits that differ between its two sketches."""
    out = np.zeros(pairs.shape[0], dtype=np.int64)
    for first in range(0, out.size, 2**20):
        left, right = pairs[first : first + 2**20].T
        out[first : first + 2**20] = np.bitwise_count(sketches[left] ^ sketches[right]).sum(axis=1)
    return out


@compiled
def hash_pairs(left: U64, right: U64, out: U64) -> None:
    """Write a hash of each pair to `out`. If two hashes collide, one extra comparison is made."""


ASSET = "dedup/semantic"
VERSION = "2"

#: Bytes of vectors that one comparing task should hold.
PARTITION_BYTES = 256 * 2**20

#: `considered` documents have a vector. The id of a cluster is the smallest id in it.
SCHEMA = clusters.SCHEMA
STATS = (
    "documents", "considered", "considered_bytes", "survivors", "survivor_bytes",
    "clusters", "removed", "removed_bytes",
)  # fmt: skip


def run(
    ctx: Context,
    params: Semantic,
    documents: Mapping[str, Manifest],
    before: Manifest,
    *,
    vectors: Manifest | None = None,
    range_rows: int = sorted_runs.RANGE_ROWS,
) -> Manifest:
    """Find semantic duplicates among the survivors of the previous stage.

    Args:
        documents: `{b}/documents` by bucket.
        before: manifest of the previous stage over all buckets, with the columns `survivor` and `text_bytes`.
        vectors: manifest of the user's vectors, if `params.vectors` names a list.
        range_rows: keys per reduce task; affects memory use only.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`. Statistics: `STATS`, `buckets`, `bits` and `tables` of the search.

    Raises:
        RecipeError: a bucket named in the parameters does not exist.
        SourceError: the user's vectors cannot be used.
        IntegrityError: `before` does not belong to the documents.
    """
    unknown = sorted(set(params.buckets) - set(documents))
    if unknown:
        raise RecipeError(f"dedup.semantic: no bucket {unknown[0]}", expected=", ".join(sorted(documents)))
    places = slots(documents, before=before)
    chosen = [slot for slot in places if slot.bucket in params.buckets]
    layout, sides = sidecars.layout(chosen), [slot.sides["before"] for slot in chosen]
    mask = sidecars.mask(ctx, [(side, "survivor") for side in sides])
    made = semantic_vectors.make(ctx, params, chosen, vectors, range_rows)
    shape = search(made.total, made.count, params.threshold, params.recall)
    groups = find(ctx, made.parts, shape, mask, layout, range_rows)
    found = candidates.find(ctx, ASSET, groups, layout.documents, max(1, PARTITION_BYTES // (2 * made.total.size)))
    longest = Dedup(keep="longest")
    mine = {bucket: one for bucket, one in documents.items() if bucket in params.buckets}
    ranks = clusters.build(ctx, longest, mine, exact.text_lengths(ctx, chosen), None)
    carry = Step(name=f"{ASSET}/carry", version=VERSION)
    similarity = {"vectors": made.source, "dimensions": made.total.size}
    how = Comparison(ASSET, COSINES, similarity, params.threshold, carry, semantic_vectors.values)
    linked, _ = cluster(ctx, Clustering(how, longest.survivors(), made.parts, layout, found, ranks))
    members = clusters.gather(ctx, ASSET, linked, layout)
    compared = dict(zip([slot.number for slot in chosen], zip(made.parts, members, strict=True), strict=True))
    parts = _sidecars(ctx, places, compared)
    names = {f"{bucket}/documents": one for bucket, one in documents.items()} | {before.asset: before}
    names |= {vectors.asset: vectors} if vectors else {}
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"))
    stats = _summary(parts) | {"bits": shape.bits, "tables": shape.tables}
    return manifest(ASSET, step, names, parts, stats)


def _sidecars(ctx: Context, places: Sequence[Slot], compared: Mapping[int, tuple[Part, Part]]) -> list[Part]:
    step = Step(name=ASSET, version=VERSION)
    items = []
    for slot in places:
        found = compared.get(slot.number)
        read = (slot.documents, slot.sides["before"], *(found or ()))
        items.append(Item(tuple(part.blob.sha256 for part in read), _Emit(slot, found), slot.documents.rows))
    made = run_items(ctx, step, _sidecar, items, label=ASSET)
    return [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]


@dataclass(frozen=True)
class _Emit:
    slot: Slot
    compared: tuple[Part, Part] | None  # vectors, members


def _sidecar(store: Store, task: _Emit) -> tuple[Part, ...]:
    stats = dict.fromkeys(STATS, 0)
    part = write_batches(store, task.slot.documents.name, SCHEMA, _batches(store, task, stats))
    return (part.model_copy(update={"stats": stats}),)


def _batches(store: Store, task: _Emit, stats: dict[str, int]) -> Iterator[pa.RecordBatch]:
    rows, high, low, packed = [np.empty(0, np.uint64)] * 4
    sources = [(task.slot.documents, ["id"]), (task.slot.sides["before"], ["survivor", "text_bytes"])]
    if task.compared:
        vectors, members = task.compared
        sources.append((vectors, ["has"]))
        with sorted_runs.SortedRun(store, members, clusters.MEMBERS) as opened:
            rows, high, low, packed = opened.all()
    first = 0
    for ids, before, *vectors_of in iter_aligned(store, *sources):
        alive = before.column("survivor").to_numpy(zero_copy_only=False)
        considered = alive & (vectors_of[0].column("has").to_numpy(zero_copy_only=False) if vectors_of else False)
        begin, end = np.searchsorted(rows, np.array([first, first + ids.num_rows], dtype=np.uint64))
        where = rows[begin:end].astype(np.int64) - first
        size, survivor, company = considered.astype(np.int32), alive.copy(), np.zeros(alive.size, dtype=np.bool_)
        size[where], survivor[where] = packed[begin:end] >> np.uint64(1), packed[begin:end] & np.uint64(1)
        company[where] = True
        halves = sorted_runs.halves(ids.column("id"))
        for half, of_cluster in zip(halves, (high, low), strict=True):
            half[where] = of_cluster[begin:end]
        cluster_ids = pc.if_else(pa.array(considered), sorted_runs.binary16(*halves), pa.scalar(None, pa.binary(16)))
        _count(stats, considered, alive, survivor, company, before.column("text_bytes").to_numpy())
        arrays = [pa.array(considered), cluster_ids, pa.array(size), pa.array(survivor), before.column("text_bytes")]
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        first += ids.num_rows


def _count(stats: dict[str, int], considered: Any, alive: Any, survivor: Any, company: Any, text_bytes: Any) -> None:
    """Add the documents and bytes of a batch to the statistics. The arrays have one value per row of the batch."""
    for name, mask in (("considered", considered), ("survivors", survivor), ("removed", alive & ~survivor)):
        stats[name] += int(mask.sum())
        stats[{"survivors": "survivor"}.get(name, name) + "_bytes"] += int(text_bytes[mask].sum())
    stats["documents"] += int(alive.size)
    stats["clusters"] += int((company & survivor).sum())


def _summary(parts: list[Part]) -> dict[str, Any]:
    names = sorted({part.name.split("/", 1)[0] for part in parts})
    empty = dict.fromkeys(STATS, 0)
    buckets = {
        name: sum_stats([empty, *(part.stats for part in parts if part.name.startswith(f"{name}/"))]) for name in names
    }
    return sum_stats([empty, *(part.stats for part in parts)]) | {"buckets": buckets}
