"""Held-out documents: chosen before training by a keyed hash of the id, among the survivors of deduplication.

A document is held out when its hash lies below `fraction`; at least `min_documents` and at most
`max_documents` per bucket, always those of the smallest hashes. The choice depends on the ids of the bucket
and the seed alone: a new document changes it only by its own hash, or where a bound cuts.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compute.context import Context
from plinth.compute.stage import Item, manifest, run_items
from plinth.corpus.protected.heldout_parameters import Holdout
from plinth.corpus.sidecars import Slot, slots, summed
from plinth.errors import StageError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, read_table, write_batches, write_table
from plinth.storage.store import Store

ASSET = "holdout"
VERSION = "1"
SCHEMA = pa.schema([pa.field("held_out", pa.bool_(), nullable=False)])

_RANKS = pa.schema([pa.field("rank", pa.binary(24), nullable=False)])
_STATS = ("survivors", "held_out", "held_out_bytes")


def run(ctx: Context, params: Holdout, documents: Mapping[str, Manifest], near: Manifest) -> Manifest:
    """Choose the held-out documents of every bucket.

    Args:
        documents: `{b}/documents` by bucket.
        near: the last stage of deduplication: a manifest over all buckets with `survivor` and `text_bytes`.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`.

    Raises:
        StageError: a bucket that has survivors cannot give `min_documents`.
    """
    places = slots(documents, near=near)
    step = Step(name="holdout/rank", version=VERSION, params=params.model_dump(mode="json"))
    items = [Item(_inputs(slot), _Rank(slot, params), slot.documents.rows) for slot in places]
    ranked = [parts[0] for parts in run_items(ctx, step, _rank, items, label=f"{ASSET} ranks")]
    cuts = {
        bucket: _cut(ctx.store, params, bucket, [p for s, p in zip(places, ranked, strict=True) if s.bucket == bucket])
        for bucket in documents
    }
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"))
    items = [
        Item((*_inputs(slot), cuts[slot.bucket].hex()), _Choose(slot, params.seed, cuts[slot.bucket]))
        for slot in places
    ]
    made = run_items(ctx, step, _choose, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()} | {near.asset: near}
    return manifest(ASSET, step, inputs, parts, summed(parts, _STATS))


def rank(seed: int, identity: bytes) -> bytes:
    """The order of documents: 8 bytes of BLAKE2b of the id keyed by the seed, then the id."""
    return hashlib.blake2b(identity, key=b"holdout:%d" % seed, digest_size=8).digest() + identity


def below(fraction: float) -> bytes:
    """The rank below which a share `fraction` of all documents lies."""
    return min(2**64 - 1, int(fraction * 2**64)).to_bytes(8, "big") + bytes(16)


def _inputs(slot: Slot) -> tuple[str, str]:
    return slot.documents.blob.sha256, slot.sides["near"].blob.sha256


@dataclass(frozen=True)
class _Rank:
    slot: Slot
    params: Holdout


def _rank(store: Store, task: _Rank) -> tuple[Part, ...]:
    """The smallest ranks of a part, as many as could be held out; statistics count all survivors."""
    ranks: list[bytes] = []
    survivors, limit = 0, below(task.params.fraction)
    for ids, near in iter_aligned(store, (task.slot.documents, ["id"]), (task.slot.sides["near"], ["survivor"])):
        found = [rank(task.params.seed, value.as_py()) for value in ids.column("id").filter(near.column("survivor"))]
        survivors += len(found)
        ranks = sorted([*ranks, *found])
        wanted = max(task.params.min_documents, bisect_left(ranks, limit))
        ranks = ranks[: min(wanted, task.params.max_documents + 1)]
    table = pa.table({"rank": pa.array(ranks, pa.binary(24))}, schema=_RANKS)
    return (write_table(store, "ranks.parquet", table, stats={"survivors": survivors}),)


def _cut(store: Store, params: Holdout, bucket: str, ranked: list[Part]) -> bytes:
    """The first rank of a bucket that is not held out."""
    survivors = sum(int(part.stats["survivors"]) for part in ranked)
    if survivors == 0:
        return bytes(24)
    if min(survivors, params.max_documents) < params.min_documents:
        raise StageError(
            f"holdout: bucket {bucket} cannot give its held-out documents",
            found=f"{survivors} documents after deduplication, max_documents {params.max_documents}",
            expected=f"at least corpus.holdout.min_documents = {params.min_documents}",
            remedy="add documents to the bucket, or lower min_documents",
        )
    ranks: list[bytes] = []
    for part in ranked:
        ranks = sorted([*ranks, *read_table(store, part).column("rank").to_pylist()])[: params.max_documents + 1]
    limit = below(params.fraction)
    count = sum(1 for value in ranks if value < limit)
    if params.min_documents <= count <= params.max_documents:
        return limit
    chosen = ranks[max(params.min_documents, min(count, params.max_documents)) - 1]
    return (int.from_bytes(chosen, "big") + 1).to_bytes(24, "big")


@dataclass(frozen=True)
class _Choose:
    slot: Slot
    seed: int
    cut: bytes


def _choose(store: Store, task: _Choose) -> tuple[Part, ...]:
    stats = dict.fromkeys(_STATS, 0)

    def batches() -> Iterator[pa.RecordBatch]:
        sources = ((task.slot.documents, ["id"]), (task.slot.sides["near"], ["survivor", "text_bytes"]))
        for ids, near in iter_aligned(store, *sources):
            held = _held(ids.column("id"), near.column("survivor"), task)
            stats["survivors"] += near.column("survivor").true_count
            stats["held_out"] += int(held.sum())
            stats["held_out_bytes"] += int(near.column("text_bytes").to_numpy()[held].sum())
            yield pa.RecordBatch.from_arrays([pa.array(held)], schema=SCHEMA)

    part = write_batches(store, task.slot.documents.name, SCHEMA, batches())
    return (part.model_copy(update={"stats": stats}),)


def _held(ids: pa.Array, survivor: pa.BooleanArray, task: _Choose) -> npt.NDArray[np.bool_]:
    alive = survivor.to_numpy(zero_copy_only=False)
    held = np.zeros(len(ids), dtype=np.bool_)
    for row in np.flatnonzero(alive):
        held[row] = rank(task.seed, ids[int(row)].as_py()) < task.cut
    return held
