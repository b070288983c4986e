"""Lines and paragraphs that other documents have too, as cuts; and boilerplate at heads and feet of pages.

    count     per part: the distinct lines of its documents, with how many have each and which has it first
    group     per range of keys: lines in too many documents, addressed to the parts that have them
    sidecar   per part: the columns of `edits.SCHEMA`

The first occurrence stays: documents count in the order of bucket, part and row. CCNet (Wenzek et al. 2019) and
Dolma (Soldaini et al. 2024) cut every line seen before; RefinedWeb (Penedo et al. 2023) cuts lines that a
site repeats. Boilerplate has no first occurrence worth keeping: every copy at a head or foot goes. Keys are 128
bits. Memory is one part, or one range of keys; shuffled are about 30 bytes for each distinct line of a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import Item, manifest, run_items
from plinth.corpus.dedup import edits, shuffle
from plinth.corpus.dedup.edits import I64, Bools
from plinth.corpus.dedup.lines.units import BOILERPLATE, LINE, PARAGRAPH, Units, compared, host
from plinth.corpus.dedup.span_parameters import LineParameters
from plinth.corpus.sidecars import Slot, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, write_batches, write_table
from plinth.storage.store import Store
from plinth.text.similarity.line_hashes import HashedLines, close_gaps, lines

ASSET = "dedup/lines"
VERSION = "1"
SCHEMA = edits.SCHEMA

#: Reasons of cuts. Where several apply, the first is given.
REASONS = ("boilerplate", "repeated_paragraph", "repeated_line")

_COUNTS = pa.schema(
    [
        ("key", pa.uint64()),
        ("low", pa.uint64()),
        ("row", pa.uint32()),  # of the first document that has it
        ("line", pa.uint32()),  # where it has it
        ("documents", pa.uint32()),
        ("edge", pa.bool_()),
    ]
)
_REPEATED = pa.schema(
    [("at", pa.uint64()), ("key", pa.uint64()), ("low", pa.uint64()), ("first", pa.uint64()), ("line", pa.uint32())]
)


def run(
    ctx: Context,
    params: LineParameters,
    documents: Mapping[str, Manifest],
    before: Manifest,
    *,
    range_rows: int = shuffle.RANGE_ROWS,
) -> Manifest:
    """Find repeated lines among the survivors of the stage before.

    Args:
        documents: `{b}/documents` by bucket.
        before: a manifest over all buckets with columns `survivor` and `text_bytes`.
        range_rows: rows one reduce task holds; bears on memory alone.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`. Statistics: `edits.STATS`, `spans` and `span_bytes` by reason,
        and `buckets`.

    Raises:
        IntegrityError: `before` does not belong to the documents; a part is damaged.
    """
    places = slots(documents, before=before)
    counted = _counts(ctx, params, places)
    limits = (params.max_documents, params.boilerplate_documents)
    step = Step(name="dedup/lines/group", version=VERSION, params={"limits": limits})
    keys = tuple(part.blob.sha256 for part in counted)
    cuts = shuffle.ranges(sum(part.rows for part in counted), range_rows)
    items = [Item((f"{low}-{high}", *keys), _Group(counted, low, high, *limits)) for low, high in cuts]
    groups = tuple(made[0] for made in run_items(ctx, step, _group, items, label=f"{ASSET} group"))
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"))
    found = tuple(part.blob.sha256 for part in groups)
    items = [Item((*_inputs(slot), *found), _Task(slot, params, groups), slot.documents.rows) for slot in places]
    made = run_items(ctx, step, _sidecar, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()} | {before.asset: before}
    return manifest(ASSET, step, inputs, parts, edits.summary(parts, REASONS))


def _inputs(slot: Slot) -> tuple[str, ...]:
    return slot.documents.blob.sha256, slot.sides["before"].blob.sha256, slot.bucket, str(slot.number)


def _counts(ctx: Context, params: LineParameters, places: tuple[Slot, ...]) -> tuple[Part, ...]:
    fields = {"scope", "units", "min_characters", "edge_lines", "exclude", "boilerplate_documents"}
    step = Step(
        name="dedup/lines/count",
        version=VERSION,
        params=params.model_dump(mode="json", include=fields),
        libraries=fingerprint.UNICODE,
    )
    items = [Item(_inputs(slot)[:3], _Task(slot, params, ()), slot.documents.rows) for slot in places]
    return tuple(made[0] for made in run_items(ctx, step, _count, items, label=f"{ASSET} count"))


@dataclass(frozen=True)
class _Task:
    slot: Slot
    params: LineParameters
    groups: tuple[Part, ...]


def _count(store: Store, task: _Task) -> tuple[Part, ...]:
    tables = [_COUNTS.empty_table()]
    for first_row, considered, _, found, domains in _read(store, task):
        units = compared(task.params, task.slot.bucket, found, domains)
        rows = np.flatnonzero(considered)[units.doc] + first_row
        columns = [units.key, units.low, rows, units.first - found.starts[units.doc], np.ones(rows.size)]
        edge = units.kind == BOILERPLATE
        tables.append(pa.table([pa.array(column) for column in (*columns, edge)], names=_COUNTS.names).cast(_COUNTS))
    table = pa.concat_tables(tables).combine_chunks()
    return (write_table(store, "counts.parquet", _combined(table)),)


def _combined(table: pa.Table) -> pa.Table:
    """One row for each key: its first place, and how many documents have it. Rows must be in reading order."""
    order, starts = edits.equal_keys(table.column("key").to_numpy(), table.column("low").to_numpy())
    rows = table.column("row").to_numpy()[order]
    new = np.r_[True, rows[1:] != rows[:-1]][: rows.size]
    new[starts[:-1]] = True
    documents = np.add.reduceat(new, starts[:-1], dtype=np.int64) if rows.size else np.zeros(0, np.int64)
    firsts = table.take(pa.array(order[starts[:-1]]))
    return firsts.set_column(4, _COUNTS.field("documents"), pa.array(documents.astype(np.uint32)))


@dataclass(frozen=True)
class _Group:
    counted: tuple[Part, ...]
    low: int
    high: int
    limit: int
    edge_limit: int | None


def _group(store: Store, task: _Group) -> tuple[Part, ...]:
    tables = [_COUNTS.empty_table()]
    numbers = [np.zeros(0, np.int64)]
    for slot, part in enumerate(task.counted):
        tables.append(shuffle.read_range(store, part, "key", task.low, task.high))
        numbers.append(np.full(tables[-1].num_rows, slot, dtype=np.int64))
    table, slot_of = pa.concat_tables(tables).combine_chunks(), np.concatenate(numbers)
    order, starts = edits.equal_keys(table.column("key").to_numpy(), table.column("low").to_numpy())
    sizes = np.diff(starts)
    documents = table.column("documents").to_numpy().astype(np.int64)[order]
    total = np.add.reduceat(documents, starts[:-1]) if order.size else np.zeros(0, np.int64)
    edge = table.column("edge").to_numpy()[order[starts[:-1]]]
    edge_limit = task.edge_limit if task.edge_limit is not None else np.iinfo(np.int64).max
    wanted = np.repeat(total > np.where(edge, edge_limit, task.limit), sizes)
    first = np.repeat(order[starts[:-1]], sizes)[wanted]  # stable order: the smallest slot comes first
    rows = order[wanted]
    columns = {
        "at": slot_of[rows].astype(np.uint64) << np.uint64(32),
        "key": table.column("key").to_numpy()[rows],
        "low": table.column("low").to_numpy()[rows],
        "first": (slot_of[first].astype(np.uint64) << np.uint64(32)) | table.column("row").to_numpy()[first],
        "line": table.column("line").to_numpy()[first],
    }
    return (shuffle.write_sorted(store, "repeated.parquet", pa.table(columns, schema=_REPEATED), ["at", "key"]),)


def _sidecar(store: Store, task: _Task) -> tuple[Part, ...]:
    low, high = shuffle.slot_range(task.slot.number)
    mine = [shuffle.read_range(store, part, "at", low, high) for part in task.groups]
    repeated = pa.concat_tables([_REPEATED.empty_table(), *mine]).combine_chunks()
    stats = edits.no_stats(REASONS)
    part = write_batches(store, task.slot.documents.name, SCHEMA, _batches(store, task, repeated, stats))
    return (part.model_copy(update={"stats": stats}),)


def _batches(store: Store, task: _Task, repeated: pa.Table, stats: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    for first_row, considered, before, found, domains in _read(store, task):
        units = compared(task.params, task.slot.bucket, found, domains)
        index = np.flatnonzero(considered)
        cut = _cut(task.slot.number, repeated, units, found, index + first_row)
        close_gaps(found.starts, found.size, cut)
        marks = _marks(found, cut, index)
        kept = cut == 0
        words, left, size = (_per_document(found, v) for v in (found.words * kept, found.size * kept, found.size))
        short = np.zeros(considered.size, dtype=np.bool_)
        edited = np.bincount(marks.doc, minlength=considered.size)[index] > 0
        short[index] = edits.too_little(task.params, edited, words, left, size)
        yield edits.batch(before, considered, short, marks, REASONS, stats)


def _read(store: Store, task: _Task) -> Iterator[tuple[int, Bools, pa.RecordBatch, HashedLines, list[str]]]:
    """By batch: its first row, which documents are considered, the stage before, their lines and their domains."""
    first = 0
    sources = ((task.slot.documents, ["text", "uri"]), (task.slot.sides["before"], ["survivor", "text_bytes"]))
    for documents, before in iter_aligned(store, *sources):
        considered = before.column("survivor").to_numpy(zero_copy_only=False)
        considered = considered & (task.slot.bucket not in task.params.exclude)
        mine = documents.filter(pa.array(considered))
        domains = [host(uri) or task.slot.bucket for uri in mine.column("uri").to_pylist()]
        yield first, considered, before, lines(mine.column("text")), domains
        first += documents.num_rows


def _cut(slot: int, repeated: pa.Table, units: Units, found: HashedLines, rows: I64) -> npt.NDArray[np.uint8]:
    """[L] 0, or 1 + the number of the reason that a line is cut."""
    cut = np.zeros(found.high.size, dtype=np.uint8)
    key, low = repeated.column("key").to_numpy(), repeated.column("low").to_numpy()
    if key.size == 0:
        return cut
    where = np.minimum(np.searchsorted(key, units.key), key.size - 1)
    after = np.minimum(where + 1, key.size - 1)
    where = np.where((key[where] == units.key) & (low[where] != units.low), after, where)
    hit = np.flatnonzero((key[where] == units.key) & (low[where] == units.low))
    where = where[hit]
    here = (np.uint64(slot << 32)) | rows[units.doc[hit]].astype(np.uint64)
    line = units.first[hit] - found.starts[units.doc[hit]]
    is_first = (repeated.column("first").to_numpy()[where] == here) & (
        repeated.column("line").to_numpy()[where] == line
    )
    hit = hit[~is_first | (units.kind[hit] == BOILERPLATE)]
    for reason in (LINE, PARAGRAPH, BOILERPLATE):  # the last one stands
        covered = np.zeros(cut.size + 1, dtype=np.int64)
        mine = hit[units.kind[hit] == reason]
        np.add.at(covered, units.first[mine], 1)
        np.add.at(covered, units.last[mine], -1)
        cut[np.cumsum(covered[:-1]) > 0] = reason + 1
    return cut


def _marks(found: HashedLines, cut: npt.NDArray[np.uint8], index: I64) -> edits.Marks:
    """Runs of lines that are cut for one reason, within a text."""
    owner = np.repeat(np.arange(found.starts.size - 1), np.diff(found.starts))
    breaks = (cut[1:] != cut[:-1]) | (owner[1:] != owner[:-1])
    begins = np.flatnonzero(np.r_[True, breaks][: cut.size])
    ends = np.append(begins[1:], cut.size)
    begins, ends = begins[cut[begins] > 0], ends[cut[begins] > 0]
    return edits.Marks(
        index[owner[begins]],
        found.start_cp[begins],
        found.end_cp[ends - 1],
        cut[begins].astype(np.int64) - 1,
        found.byte[ends] - found.byte[begins],
    )


def _per_document(found: HashedLines, values: npt.NDArray[np.int32]) -> I64:
    total: I64 = np.r_[0, np.cumsum(values, dtype=np.int64)]
    sums: I64 = total[found.starts[1:]] - total[found.starts[:-1]]
    return sums
