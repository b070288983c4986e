"""Exact duplicates: texts that are equal but for case and white space, over all buckets.

    digest    per part, once and for all: 16 bytes of SHA-256 of each folded text, and its length
    sort      per part: the digests of documents that the policy keeps, sorted
    group     per range of digests: equal ones, their cluster and survivor
    sidecar   per part: the columns of `clusters.SCHEMA`

A changed policy sorts numbers again and reads no text. Memory is one part, or one range of digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.stage import Item, manifest, run_items
from plinth.context import Context
from plinth.corpus.dedup import clusters, shuffle
from plinth.corpus.sidecars import Slot, slots
from plinth.recipe.dedup import Dedup
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, write_batches
from plinth.storage.store import Store
from plinth.text.codepoints import utf8
from plinth.text.fold import digests

ASSET = "dedup/exact"
VERSION = "1"
SCHEMA = clusters.SCHEMA

_DIGEST_SCHEMA = pa.schema(
    [pa.field("digest", pa.binary(16), nullable=False), pa.field("text_bytes", pa.int64(), nullable=False)]
)


def run(
    ctx: Context,
    params: Dedup,
    documents: Mapping[str, Manifest],
    policies: Mapping[str, Manifest],
    *,
    range_rows: int = shuffle.RANGE_ROWS,
) -> Manifest:
    """Find exact duplicates among the documents that the policies keep.

    Args:
        params: `keep` names the survivor.
        documents: `{b}/documents` by bucket.
        policies: `{b}/policy` by bucket.
        range_rows: rows one reduce task holds; bears on memory alone.

    Returns:
        Manifest of `{b}/part-*` with `clusters.SCHEMA`.

    Raises:
        IntegrityError: a policy does not belong to its documents; a part is damaged.
    """
    places = slots(documents, policy=policies)
    hashed = [
        parts[0]
        for parts in run_items(
            ctx,
            Step(name="dedup/exact/digest", version=VERSION),
            _digest,
            [Item((slot.documents.blob.sha256,), slot.documents, slot.documents.rows) for slot in places],
            label=f"{ASSET} digest",
        )
    ]
    groups = _groups(ctx, params, places, hashed, range_rows)
    step = Step(name=ASSET, version=VERSION, params={"keep": params.keep})
    found = tuple(group.blob.sha256 for group in groups)
    items = [
        Item(
            (slot.documents.blob.sha256, slot.sides["policy"].blob.sha256, str(slot.number), *found),
            _Emit(slot, mine, tuple(groups)),
            slot.documents.rows,
        )
        for slot, mine in zip(places, hashed, strict=True)
    ]
    parts = [
        made[0].model_copy(update={"name": slot.name})
        for slot, made in zip(places, run_items(ctx, step, _sidecar, items, label=ASSET), strict=True)
    ]
    inputs = {f"{b}/documents": m for b, m in documents.items()} | {f"{b}/policy": m for b, m in policies.items()}
    return manifest(ASSET, step, inputs, parts, clusters.summary(parts))


def _groups(ctx: Context, params: Dedup, places: tuple[Slot, ...], hashed: list[Part], range_rows: int) -> list[Part]:
    items = [
        Item(
            (slot.documents.blob.sha256, slot.sides["policy"].blob.sha256),
            _Sort(slot.documents, slot.sides["policy"], mine),
            slot.documents.rows,
        )
        for slot, mine in zip(places, hashed, strict=True)
    ]
    step = Step(name="dedup/exact/sort", version=VERSION)
    ordered = tuple(parts[0] for parts in run_items(ctx, step, _sort, items, label=f"{ASSET} sort"))
    step = Step(name="dedup/exact/group", version=VERSION, params={"keep": params.keep})
    inputs = tuple(part.blob.sha256 for part in ordered)
    spans = shuffle.ranges(sum(part.rows for part in ordered), range_rows)
    reduce_items = [Item((f"{low}-{high}", *inputs), _Group(ordered, low, high, params.keep)) for low, high in spans]
    return [parts[0] for parts in run_items(ctx, step, _group, reduce_items, label=f"{ASSET} group")]


def _digest(store: Store, documents: Part) -> tuple[Part, ...]:
    def batches() -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(store, documents, ["text"]):
            texts = batch.column("text")
            lengths = pa.array(np.diff(utf8(texts)[1]))
            yield pa.RecordBatch.from_arrays([digests(texts), lengths], schema=_DIGEST_SCHEMA)

    return (write_batches(store, documents.name, _DIGEST_SCHEMA, batches()),)


@dataclass(frozen=True)
class _Sort:
    documents: Part
    policy: Part
    hashed: Part


def _sort(store: Store, task: _Sort) -> tuple[Part, ...]:
    tables, first = [], 0
    sources = ((task.documents, ["id"]), (task.policy, ["keep"]), (task.hashed, ["digest", "text_bytes"]))
    for ids, policy, hashed in iter_aligned(store, *sources):
        key, low = shuffle.halves(hashed.column("digest"))
        table = pa.table(
            {
                "key": key,
                "low": low,
                "id": ids.column("id"),
                "row": np.arange(first, first + ids.num_rows, dtype=np.uint32),
                "text_bytes": hashed.column("text_bytes"),
            }
        )
        tables.append(table.filter(policy.column("keep")))
        first += ids.num_rows
    table = pa.concat_tables(tables) if tables else _no_rows()
    return (shuffle.write_sorted(store, task.documents.name, table, ["key", "low", "id", "row"]),)


def _no_rows() -> pa.Table:
    types = [("key", pa.uint64()), ("low", pa.uint64()), ("id", pa.binary(16)), ("row", pa.uint32())]
    return pa.schema([*types, ("text_bytes", pa.int64())]).empty_table()


@dataclass(frozen=True)
class _Group:
    ordered: tuple[Part, ...]
    low: int
    high: int
    keep: str


def _group(store: Store, task: _Group) -> tuple[Part, ...]:
    tables = []
    for slot, part in enumerate(task.ordered):
        table = shuffle.read_range(store, part, "key", task.low, task.high)
        at = shuffle.address(slot, table.column("row").to_numpy())
        tables.append(table.drop_columns(["row"]).append_column("at", pa.array(at)))
    table = (
        pa.concat_tables(tables).combine_chunks()
        if tables
        else _no_rows().append_column("at", pa.array([], pa.uint64()))
    )
    table = table.sort_by([("id", "ascending"), ("at", "ascending")]).combine_chunks()
    high, low = shuffle.halves(table.column("id"))
    nodes = clusters.Nodes(table.column("at").to_numpy(), high, low, table.column("text_bytes").to_numpy())
    roots = _first_equal(table.column("key").to_numpy(), table.column("low").to_numpy())
    return (clusters.write_members(store, nodes, roots, task.keep),)


def _first_equal(high: shuffle.U64, low: shuffle.U64) -> clusters.I64:
    """For each digest, given as halves, the first index that has the same one."""
    order = np.lexsort((low, high))
    starts = np.ones(order.size, dtype=np.bool_)
    starts[1:] = (high[order][1:] != high[order][:-1]) | (low[order][1:] != low[order][:-1])
    roots = np.empty(order.size, dtype=np.int64)
    roots[order] = order[starts][np.cumsum(starts) - 1]
    return roots


@dataclass(frozen=True)
class _Emit:
    slot: Slot
    hashed: Part
    groups: tuple[Part, ...]


def _sidecar(store: Store, task: _Emit) -> tuple[Part, ...]:
    sources = ((task.slot.documents, ["id"]), (task.slot.sides["policy"], ["keep"]), (task.hashed, ["text_bytes"]))
    rows = (
        (ids.column("id"), pc.fill_null(policy.column("keep"), False), hashed.column("text_bytes"))
        for ids, policy, hashed in iter_aligned(store, *sources)
    )
    return (clusters.write_sidecar(store, task.slot.documents.name, task.slot.number, task.groups, rows),)
