"""Held-out documents, which are chosen before training by a keyed hash of the id among the survivors of deduplication.

In each bucket, the survivors with the smallest hashes are chosen: the share `fraction` of all hash values, but at least
`min_documents` and at most `max_documents` documents. **Held-out documents stay held out.** If a bucket grows, the
limits cut at a different hash, and a document that was held out could enter training. No rule on hashes
alone can prevent this and still hold out a fixed share. Therefore the manifest lists the ids of all documents that were
ever held out (`RESERVED`), and the next manifest starts with this list; `max_documents` limits only new choices. A
reserved document may be removed as a duplicate of a new document that is longer or earlier. The reserved document is
then not evaluated, but its n-grams are still compared with training text (`contamination`), so that the duplicate does
not enter training either.

The list of ids is part of the manifest's content, so rebuilding the set from the same documents changes nothing.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus.dedup.run_tree import levels
from plinth.corpus.protected.parameters import Holdout
from plinth.corpus.sidecars import Slot, slots, summed
from plinth.errors import StageError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, read_table, write_batches, write_table
from plinth.storage.store import Store

ASSET = "holdout"
VERSION = "2"
#: Held out: evaluated, never trained on. Reserved: held out now or by an earlier publication, survivor or not.
SCHEMA = pa.schema([pa.field("held_out", pa.bool_(), nullable=False), pa.field("reserved", pa.bool_(), nullable=False)])
#: The part with the ids of all documents that were ever held out, of all buckets.
RESERVED = "reserved.parquet"

_IDS = pa.schema([pa.field("id", pa.binary(16), nullable=False)])
_RANKS = pa.schema([pa.field("rank", pa.binary(24), nullable=False)])
_STATS = ("survivors", "held_out", "held_out_bytes", "reserved")


def run(
    ctx: Context,
    params: Holdout,
    documents: Mapping[str, Manifest],
    near: Manifest,
    earlier: Manifest | None = None,
) -> Manifest:
    """Choose the held-out documents of every bucket.

    Args:
        documents: `{b}/documents` by bucket.
        near: manifest of the last stage of deduplication, over all buckets with `survivor` and `text_bytes`.
        earlier: the published `holdout`, whose documents stay held out. Its digest is not an input, because its
            documents are part of the new manifest. Building the set again gives the same manifest.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`, and `RESERVED`. Statistics: sums over parts; `carried`, the number of
        reserved documents that the hash alone would not choose now.

    Raises:
        StageError: a bucket with survivors has fewer survivors than `min_documents`.
    """
    places = slots(documents, near=near)
    step = Step(name="holdout/rank", version=VERSION, params=params.model_dump(mode="json"))
    items = [Item(_inputs(slot), _Rank(slot, params), slot.documents.rows) for slot in places]
    ranked = [parts[0] for parts in run_items(ctx, step, _rank, items, label=f"{ASSET} ranks")]
    chosen = [
        identity
        for bucket in sorted(documents)
        for identity in _chosen(
            ctx, params, bucket, [p for s, p in zip(places, ranked, strict=True) if s.bucket == bucket]
        )
    ]
    reserved = sorted({*chosen, *_carried(ctx.store, earlier)})
    ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(reserved), [None, pa.py_buffer(b"".join(reserved))])
    table = write_table(ctx.store, RESERVED, pa.table({"id": ids}, schema=_IDS))
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"))
    items = [Item((*_inputs(slot), table.blob.sha256), _Mark(slot, table), slot.documents.rows) for slot in places]
    made = run_items(ctx, step, _marked, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()} | {near.asset: near}
    stats = {**summed(parts, _STATS), "carried": len(reserved) - len(chosen)}
    return manifest(ASSET, step, inputs, [*parts, table], stats)


def rank(seed: int, identity: bytes) -> bytes:
    """Return the sort key of a document: 8 bytes of BLAKE2b of the id, keyed by the seed, followed by the id."""
    return hashlib.blake2b(identity, key=b"holdout:%d" % seed, digest_size=8).digest() + identity


def below(fraction: float) -> bytes:
    """Return an upper bound for ranks, such that the share `fraction` of all possible ranks is below it."""
    return min(2**64 - 1, int(fraction * 2**64)).to_bytes(8, "big") + bytes(16)


def _inputs(slot: Slot) -> tuple[str, str]:
    return slot.documents.blob.sha256, slot.sides["near"].blob.sha256


@dataclass(frozen=True)
class _Rank:
    slot: Slot
    params: Holdout


def _rank(store: Store, task: _Rank) -> tuple[Part, ...]:
    """Write the smallest ranks of a part, as many as could be held out. The statistics count all its survivors."""
    ranks: list[bytes] = []
    survivors, limit = 0, below(task.params.fraction)
    for ids, near in iter_aligned(store, (task.slot.documents, ["id"]), (task.slot.sides["near"], ["survivor"])):
        found = [rank(task.params.seed, value.as_py()) for value in ids.column("id").filter(near.column("survivor"))]
        survivors += len(found)
        ranks = sorted([*ranks, *found])
        wanted = max(task.params.min_documents, bisect_left(ranks, limit))
        ranks = ranks[: min(wanted, task.params.max_documents)]
    table = pa.table({"rank": pa.array(ranks, pa.binary(24))}, schema=_RANKS)
    return (write_table(store, "ranks.parquet", table, stats={"survivors": survivors}),)


def _chosen(ctx: Context, params: Holdout, bucket: str, ranked: list[Part]) -> list[bytes]:
    """Return the ids of the documents in a bucket that are chosen by their hashes."""
    survivors = sum(int(part.stats["survivors"]) for part in ranked)
    if survivors == 0:
        return []
    if min(survivors, params.max_documents) < params.min_documents:
        raise StageError(
            f"holdout: bucket {bucket} has too few documents",
            found=f"{survivors} documents after deduplication, max_documents {params.max_documents}",
            expected=f"at least corpus.holdout.min_documents = {params.min_documents}",
            remedy="add documents to the bucket, or lower min_documents",
        )
    step = Step(name="holdout/ranks", version=VERSION, params={"max_documents": params.max_documents})

    def merged(groups: Sequence[Sequence[Part]]) -> list[Part]:
        items = [Item(tuple(one.blob.sha256 for one in some), (tuple(some), params.max_documents)) for some in groups]
        return [made[0] for made in run_items(ctx, step, _smallest, items, label=f"{ASSET} ranks")]

    ranks = _ranks(ctx.store, levels(ranked, merged), params.max_documents)
    below_fraction = bisect_left(ranks, below(params.fraction))
    return [value[8:] for value in ranks[: max(params.min_documents, below_fraction)]]


def _ranks(store: Store, parts: Sequence[Part], most: int) -> list[bytes]:
    """Return the `most` smallest ranks of several parts, in ascending order."""
    ranks: list[bytes] = []
    for part in parts:
        ranks = sorted([*ranks, *read_table(store, part).column("rank").to_pylist()])[:most]
    return ranks


def _smallest(store: Store, task: tuple[tuple[Part, ...], int]) -> tuple[Part, ...]:
    table = pa.table({"rank": pa.array(_ranks(store, *task), pa.binary(24))}, schema=_RANKS)
    return (write_table(store, "ranks.parquet", table),)


def _carried(store: Store, earlier: Manifest | None) -> list[bytes]:
    """Return the ids that an earlier manifest reserved. A manifest of version 1 does not list these ids."""
    parts = earlier.named(RESERVED) if earlier else ()
    return [identity for part in parts for identity in read_table(store, part).column("id").to_pylist()]


@dataclass(frozen=True)
class _Mark:
    slot: Slot
    reserved: Part


def _marked(store: Store, task: _Mark) -> tuple[Part, ...]:
    stats = dict.fromkeys(_STATS, 0)
    listed = read_table(store, task.reserved).column("id").combine_chunks()

    def batches() -> Iterator[pa.RecordBatch]:
        sources = ((task.slot.documents, ["id"]), (task.slot.sides["near"], ["survivor", "text_bytes"]))
        for ids, near in iter_aligned(store, *sources):
            reserved = pc.is_in(ids.column("id").cast(pa.binary()), value_set=listed.cast(pa.binary()))
            held = pc.and_(reserved, near.column("survivor"))
            stats["survivors"] += near.column("survivor").true_count
            stats["held_out"] += held.true_count
            stats["reserved"] += reserved.true_count
            stats["held_out_bytes"] += pc.sum(near.column("text_bytes").filter(held)).as_py() or 0
            yield pa.RecordBatch.from_arrays([held, reserved], schema=SCHEMA)

    part = write_batches(store, task.slot.documents.name, SCHEMA, batches())
    return (part.model_copy(update={"stats": stats}),)
