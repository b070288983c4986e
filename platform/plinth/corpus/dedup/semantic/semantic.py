"""Look-alikes that share words and not shingles: the embedding back-check of chosen, high-risk buckets.

    vectors   hashed TF-IDF learned here, or the user's own       `vectors`
    pairs     SimHash candidates, exact cosines                   `pairs`
    members   once: clusters by union-find; the longest document of each stays, ties go to the smallest id
    sidecar   per part: the columns of `SCHEMA`

Bags of words match the same vocabulary in about the same amounts, in any order: shuffled sentences, changed word order,
some words exchanged. They miss synonyms throughout, translations and summaries, and they match forms filled in
differently (same words but for a few names): choose the threshold with care.

Memory is the vectors of two parts, and about 60 bytes for each document in a pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.compute.stage import Item, manifest, run_items, sum_stats
from plinth.corpus.dedup import shuffle
from plinth.corpus.dedup.clusters import connect
from plinth.corpus.dedup.semantic import pairs
from plinth.corpus.dedup.semantic import vectors as semantic_vectors
from plinth.corpus.dedup.semantic.vectors import Vectors
from plinth.corpus.dedup.span_parameters import Semantic
from plinth.corpus.sidecars import Slot, slots
from plinth.errors import RecipeError, SourceError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, read_table, write_batches, write_table
from plinth.storage.store import Store

ASSET = "dedup/semantic"
VERSION = "1"

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

_MEMBERS = pa.schema([("at", pa.uint64()), ("cluster", pa.binary(16)), ("size", pa.int32()), ("survivor", pa.bool_())])


def run(
    ctx: Context,
    params: Semantic,
    documents: Mapping[str, Manifest],
    before: Manifest,
    *,
    vectors: Manifest | None = None,
    range_rows: int = shuffle.RANGE_ROWS,
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
    chosen = tuple(slot for slot in places if slot.bucket in params.buckets)
    made = semantic_vectors.make(ctx, params, chosen, vectors, VERSION)
    by_slot = {slot.number: one for slot, one in zip(chosen, made, strict=True) if one.table.rows}
    totals = [semantic_vectors.numbers(ctx.store, one.total) for one in by_slot.values()]
    if len({total.size for total in totals}) > 1:
        raise SourceError("vectors differ in length", found=sorted({total.size for total in totals}))
    count = sum(one.table.rows for one in by_slot.values())
    shape = pairs.search(sum(totals, np.zeros(1, np.int64)), count, params.threshold, params.recall)
    edges = pairs.find(ctx, by_slot, shape, params.threshold, VERSION, range_rows)
    step = Step(name="dedup/semantic/members", version=VERSION)
    inputs = tuple(part.blob.sha256 for part in (*edges, *(one.table for one in by_slot.values())))
    item = Item((*map(str, by_slot), *inputs), _Members(edges, by_slot))
    members = run_items(ctx, step, _members, [item], label="dedup/semantic clusters")[0][0]
    parts = _sidecars(ctx, places, dict(zip((s.number for s in chosen), made, strict=True)), members)
    names = {f"{bucket}/documents": one for bucket, one in documents.items()} | {before.asset: before}
    names |= {vectors.asset: vectors} if vectors else {}
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"))
    stats = _summary(parts) | {"bits": shape.bits, "tables": shape.tables}
    return manifest(ASSET, step, names, parts, stats)


@dataclass(frozen=True)
class _Members:
    edges: tuple[Part, ...]
    vectors: dict[int, Vectors]


def _members(store: Store, task: _Members) -> tuple[Part, ...]:
    """Members of clusters, by address."""
    ends = [read_table(store, part) for part in task.edges if part.rows]
    left, right = (np.concatenate([np.empty(0, np.uint64), *(t.column(n).to_numpy() for t in ends)]) for n in _ENDS)
    known = np.unique(np.concatenate([left, right]))
    tables = []
    for number, one in task.vectors.items():
        table = read_table(store, one.table, ["row", "id", "text_bytes"])
        at = shuffle.address(number, table.column("row").to_numpy())
        mine = pa.array(np.isin(at, known))
        tables.append(table.append_column("at", pa.array(at)).filter(mine))
    if not tables or known.size == 0:
        return (write_table(store, "members.parquet", _MEMBERS.empty_table()),)
    nodes = pa.concat_tables(tables).sort_by([("id", "ascending"), ("at", "ascending")]).combine_chunks()
    at = nodes.column("at").to_numpy()
    order = np.argsort(at)
    roots = connect(at.size, *(order[np.searchsorted(at[order], one)].astype(np.int64) for one in (left, right)))
    ranked = np.lexsort((np.arange(at.size), -nodes.column("text_bytes").to_numpy(), roots))
    survivor = np.zeros(at.size, dtype=np.bool_)
    survivor[ranked[np.r_[True, roots[ranked][1:] != roots[ranked][:-1]]]] = True
    columns = {
        "at": at,
        "cluster": nodes.column("id").take(pa.array(roots)),
        "size": np.bincount(roots, minlength=at.size)[roots].astype(np.int32),
        "survivor": survivor,
    }
    return (shuffle.write_sorted(store, "members.parquet", pa.table(columns, schema=_MEMBERS), ["at"]),)


_ENDS = pairs.EDGES.names


def _sidecars(ctx: Context, places: tuple[Slot, ...], vectors: dict[int, Vectors], members: Part) -> list[Part]:
    step = Step(name=ASSET, version=VERSION)
    items = []
    for slot in places:
        one = vectors.get(slot.number)
        table = one.table if one else None
        inputs = (slot.documents.blob.sha256, slot.sides["before"].blob.sha256, str(slot.number))
        found = (table.blob.sha256, members.blob.sha256) if table else ()
        items.append(Item((*inputs, *found), _Emit(slot, table, members), slot.documents.rows))
    made = run_items(ctx, step, _sidecar, items, label=ASSET)
    return [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]


@dataclass(frozen=True)
class _Emit:
    slot: Slot
    vectors: Part | None
    members: Part


def _sidecar(store: Store, task: _Emit) -> tuple[Part, ...]:
    stats = dict.fromkeys(STATS, 0)
    part = write_batches(store, task.slot.documents.name, SCHEMA, _batches(store, task, stats))
    return (part.model_copy(update={"stats": stats}),)


def _batches(store: Store, task: _Emit, stats: dict[str, int]) -> Iterator[pa.RecordBatch]:
    low, high = shuffle.slot_range(task.slot.number)
    mine = shuffle.read_range(store, task.members, "at", low, high) if task.vectors else _MEMBERS.empty_table()
    rows = (mine.column("at").to_numpy() & np.uint64(0xFFFFFFFF)).astype(np.int64)
    seen = read_table(store, task.vectors, ["row"]).column("row").to_numpy() if task.vectors else np.empty(0, np.int64)
    first = 0
    sources = ((task.slot.documents, ["id"]), (task.slot.sides["before"], ["survivor", "text_bytes"]))
    for ids, before in iter_aligned(store, *sources):
        here = np.arange(first, first + ids.num_rows)
        considered = np.isin(here, seen)
        survivor = before.column("survivor").to_numpy(zero_copy_only=False).copy()
        size, where = considered.astype(np.int32), np.full(here.size, -1)
        begin, end = np.searchsorted(rows, [first, first + here.size])
        where[rows[begin:end] - first] = np.arange(begin, end)
        company = where >= 0
        size[company] = mine.column("size").to_numpy()[where[company]]
        survivor[company] &= mine.column("survivor").to_numpy()[where[company]]
        cluster = mine.column("cluster").combine_chunks().take(pa.array(where, mask=~company))
        cluster = pc.if_else(pa.array(considered & ~company), ids.column("id"), cluster)
        text_bytes = before.column("text_bytes").to_numpy()
        alive = before.column("survivor").to_numpy(zero_copy_only=False)
        _count(stats, considered, alive, survivor, company, text_bytes)
        arrays = [pa.array(considered), cluster, pa.array(size), pa.array(survivor), before.column("text_bytes")]
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
