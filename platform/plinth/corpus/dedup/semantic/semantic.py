"""Look-alikes that share words and not shingles: the embedding back-check of chosen, high-risk buckets.

    vectors   hashed TF-IDF learned here, or the user's own       `vectors`
    pairs     SimHash candidates                                  `pairs`
    verify    exact cosines, clusters; the longest document of each stays, ties go to the smallest id   `near.verify`
    sidecar   per part: the columns of `SCHEMA`

Bags of words match the same vocabulary in about the same amounts, in any order: shuffled sentences, changed word order,
some words exchanged. They miss synonyms throughout, translations and summaries, and they match forms filled in
differently (same words but for a few names): choose the threshold with care.

Memory is the vectors of a part or of a partition of pairs, and 8 bytes for each document of the buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, manifest, run_items, sum_stats
from plinth.corpus import sidecars
from plinth.corpus.dedup import clusters, exact, sorted_runs
from plinth.corpus.dedup import vectors as semantic_vectors
from plinth.corpus.dedup.near import candidates
from plinth.corpus.dedup.near.linking import COSINES
from plinth.corpus.dedup.near.minhash import Comparison, cluster
from plinth.corpus.dedup.parameters import Dedup, Semantic
from plinth.corpus.dedup.semantic import pairs
from plinth.corpus.sidecars import Slot, slots
from plinth.errors import RecipeError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, write_batches
from plinth.storage.store import Store

ASSET = "dedup/semantic"
VERSION = "2"

#: Bytes of vectors that one comparing task should hold.
PARTITION_BYTES = 256 * 2**20

#: `considered` documents have a vector. `text_bytes` is the length of the text in UTF-8.
SCHEMA = pa.schema(
    [
        pa.field("considered", pa.bool_(), nullable=False),
        pa.field("cluster", pa.binary(16)),  # the smallest id in it; null where not considered
        pa.field("size", pa.int32(), nullable=False),  # 0 where not considered
        pa.field("survivor", pa.bool_(), nullable=False),
        pa.field("text_bytes", pa.int64(), nullable=False),
    ]
)
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
    """Find look-alikes among the survivors of the stage before.

    Args:
        documents: `{b}/documents` by bucket.
        before: a manifest over all buckets with columns `survivor` and `text_bytes`.
        vectors: the user's, where `params.vectors` names them.
        range_rows: keys that one reduce task holds; bears on memory alone.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`. Statistics: `STATS`, `buckets`, `bits` and `tables` of the search.

    Raises:
        RecipeError: a chosen bucket does not exist.
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
    shape = pairs.search(made.total, made.count, params.threshold, params.recall)
    groups = pairs.find(ctx, made.parts, shape, mask, layout, range_rows)
    found = candidates.find(ctx, ASSET, groups, layout.documents, max(1, PARTITION_BYTES // (2 * made.total.size)))
    longest = Dedup(keep="longest")
    mine = {bucket: one for bucket, one in documents.items() if bucket in params.buckets}
    ranks = clusters.build(ctx, longest, mine, exact.text_lengths(ctx, chosen), None)
    carry = Step(name=f"{ASSET}/carry", version=VERSION)
    similarity = {"vectors": made.source, "dimensions": made.total.size}
    how = Comparison(ASSET, COSINES, similarity, params.threshold, carry, semantic_vectors.values)
    linked = cluster(ctx, how, longest.survivors(), made.parts, layout, found, ranks)
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
    """Documents and bytes of a batch; all arguments but the first are [rows]."""
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
