"""Cuts of lines and paragraphs that are repeated across documents, and of boilerplate in page headers and footers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import clusters, edits, sorted_runs
from plinth.corpus.dedup.parameters import LineParameters
from plinth.corpus.dedup.run_tree import Range, RangeReader, reduce, tree
from plinth.corpus.sidecars import Slot, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, write_batches
from plinth.storage.store import Store
from plinth.text import host
from plinth_text.arrays import I32, I64, U8, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.similarity import HashedLines, close_gaps, edge_lines, lines, paragraphs

# Units of text that are compared with other documents: lines, paragraphs, lines at heads and feet.
#
# Every unit has a 128-bit key. The scope (a bucket, a domain, the corpus) and the kind of unit are mixed into it,
# so that only comparable lines can be equal.

BOILERPLATE, PARAGRAPH, LINE = 0, 1, 2


@dataclass(frozen=True)
class Units:
    """Lines and paragraphs of a batch that are compared with other documents. U is the number of these units; units of
    the same kind are in reading order.

    Args:
        key, low: [U] upper and lower half of the unit's key.
        first, last: [U] range of lines that the unit covers, half open.
        doc: [U] index of the text that contains the unit.
        kind: [U] `BOILERPLATE`, `PARAGRAPH` or `LINE`.
    """

    key: U64
    low: U64
    first: I64
    last: I64
    doc: I64
    kind: I64


def compared(params: LineParameters, bucket: str, found: HashedLines, domains: list[str]) -> Units:
    """Return the lines and paragraphs to compare, with their hashes, for a batch of texts from one bucket. The list
    `domains` has the domain of every text."""
    owner = np.repeat(np.arange(found.starts.size - 1), np.diff(found.starts))
    by_domain = _salts("domain", domains)
    scopes = {"corpus": np.zeros_like(by_domain), "bucket": _salts("bucket", [bucket] * len(domains))}
    scope = by_domain if params.scope == "domain" else scopes[params.scope]
    made = []
    for kind, high, low, first, last in _kinds(params, found):
        salt = (by_domain if kind == BOILERPLATE else scope)[owner[first]]
        made.append((_salted(high, salt, kind), low, first, last, owner[first], np.full(first.size, kind)))
    return Units(*(np.concatenate(column) for column in zip(*made, strict=True)))


def _kinds(params: LineParameters, found: HashedLines) -> Iterator[tuple[int, U64, U64, I64, I64]]:
    """Yield for each kind of unit the kind, the upper and lower halves of the hashes, the first lines, and the end
    lines (exclusive)."""
    if params.boilerplate_documents is not None:
        at = np.flatnonzero(found.alphanumeric & edge_lines(found, params.edge_lines))
        yield BOILERPLATE, found.high[at], found.low[at], at, at + 1
    if "paragraph" in params.units:
        blocks = paragraphs(found)
        several = (blocks.last - blocks.first > 1) | ("line" not in params.units)  # else the line is compared
        at = np.flatnonzero(blocks.alphanumeric & several & (blocks.size >= params.min_characters))
        yield PARAGRAPH, blocks.high[at], blocks.low[at], blocks.first[at], blocks.last[at]
    if "line" in params.units:
        at = np.flatnonzero(found.alphanumeric & (found.size >= params.min_characters))
        yield LINE, found.high[at], found.low[at], at, at + 1


def _salted(high: U64, salt: U64, kind: int) -> U64:
    out = np.empty_like(high)
    salt_hashes(np.ascontiguousarray(high), np.ascontiguousarray(salt), kind, out)
    return out


def _salts(kind: str, names: list[str]) -> U64:
    """Return a 64-bit hash for each name."""
    known = {
        name: int.from_bytes(hashlib.blake2b(f"{kind}:{name}".encode(), digest_size=8).digest(), "big")
        for name in set(names)
    }
    return np.array([known[name] for name in names], dtype=np.uint64)


@compiled
def salt_hashes(high: U64, salt: U64, kind: int, out: U64) -> None:
    """Write to `out` hashes of lines and paragraphs that depend on their scope and kind."""


# Lines and paragraphs that other documents have too, as cuts; and boilerplate at heads and feet of pages.
#
#     count     per part: the distinct lines of its documents, with how many have each and which has it first
#     group     per range of keys: lines in too many documents, by the document that has each first in its part
#     gather    those of each part
#     sidecar   per part: the columns of `edits.SCHEMA`
#
# The first occurrence stays: documents count in the order of bucket, part and row. CCNet (Wenzek et al. 2019) and
# Dolma (Soldaini et al. 2024) cut every line seen before; RefinedWeb (Penedo et al. 2023) cuts lines that a
# site repeats. Boilerplate has no first occurrence worth keeping: every copy at a head or foot goes. Keys are 128
# bits. Memory is one part, or one range of keys; shuffled are 32 bytes for each distinct line of a part.

ASSET = "dedup/lines"
VERSION = "1"
#: Columns of the intermediate runs.
RUNS_VERSION = "3"
SCHEMA = edits.SCHEMA

#: Reasons of cuts. Where several apply, the first is given.
REASONS = ("boilerplate", "repeated_paragraph", "repeated_line")

#: Runs of (key, row, other half of the key, line << 32 | documents << 1 | edge), one row for each line of a part: the
#: first row that has it, where, how many have it, whether it is at a head or foot.
COUNTS = "lines"
#: Runs of (document, key, other half, line << 1 | whether no part before has it).
REPEATED = "repeated lines"


def run(
    ctx: Context,
    params: LineParameters,
    documents: Mapping[str, Manifest],
    before: Manifest,
    *,
    range_rows: int = sorted_runs.RANGE_ROWS,
) -> Manifest:
    """Find repeated lines in documents that survived the previous stage.

    Args:
        documents: `{b}/documents` by bucket.
        before: manifest of the previous stage over all buckets, with the columns `survivor` and `text_bytes`.
        range_rows: rows per reduce task; affects memory use only.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`. Statistics: `edits.STATS`, `spans` and `span_bytes` by reason,
        and `buckets`.

    Raises:
        IntegrityError: `before` does not belong to the documents, or a part is damaged.
    """
    places = slots(documents, before=before)
    narrowed = edits.columns(ctx, [slot.sides["before"] for slot in places], _BEFORE)
    places = tuple(replace(slot, sides={"before": part}) for slot, part in zip(places, narrowed, strict=True))
    layout = sidecars.layout(places)
    reader = RangeReader.over(ctx.store, COUNTS, tree(ctx, COUNTS, 4, _counts(ctx, params, places)), layout)
    limits = (params.max_documents or (3 if params.scope == "domain" else 1), params.boilerplate_documents)
    step = Step(name="dedup/lines/group", version=RUNS_VERSION, params={"limits": limits})
    groups = reduce(ctx, step, partial(_group, limits), reader, range_rows, f"{ASSET} group")
    repeated = clusters.gather(ctx, ASSET, groups, layout, REPEATED, 4)
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"))
    items = [
        Item((*_inputs(slot), mine.blob.sha256), _Task(slot, params, mine), slot.documents.rows)
        for slot, mine in zip(places, repeated, strict=True)
    ]
    made = run_items(ctx, step, _sidecar, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()} | {before.asset: before}
    return manifest(ASSET, step, inputs, parts, edits.summary(parts, REASONS))


#: Columns read from the previous stage.
_BEFORE = ("survivor", "text_bytes")


def _inputs(slot: Slot) -> tuple[str, ...]:
    return slot.documents.blob.sha256, slot.sides["before"].blob.sha256, slot.bucket


def _counts(ctx: Context, params: LineParameters, places: tuple[Slot, ...]) -> list[Part]:
    fields = {"scope", "units", "min_characters", "edge_lines", "exclude", "boilerplate_documents"}
    step = Step(
        name="dedup/lines/count",
        version=RUNS_VERSION,
        params=params.model_dump(mode="json", include=fields),
        libraries=fingerprint.UNICODE,
    )
    items = [Item(_inputs(slot), _Task(slot, params), slot.documents.rows) for slot in places]
    return [made[0] for made in run_items(ctx, step, _count, items, label=f"{ASSET} count")]


@dataclass(frozen=True)
class _Task:
    slot: Slot
    params: LineParameters
    repeated: Part | None = None


def _count(store: Store, task: _Task) -> tuple[Part, ...]:
    found = [[np.empty(0, np.uint64)] * 5]
    for first_row, considered, _, lines_of, domains in _read(store, task):
        units = compared(task.params, task.slot.bucket, lines_of, domains)
        rows = np.flatnonzero(considered)[units.doc] + first_row
        line, edge = units.first - lines_of.starts[units.doc], units.kind == BOILERPLATE
        found.append([one.astype(np.uint64) for one in (units.key, units.low, rows, line, edge)])
    counts = _combined(*map(np.concatenate, zip(*found, strict=True)))
    return (sorted_runs.write(store, "counts.run", COUNTS, [counts], 4),)


def _combined(key: U64, low: U64, row: U64, line: U64, edge: U64) -> tuple[U64, ...]:
    """Return one row of `COUNTS` for each key of a line, with the first position of the key and the number of documents
    that contain the key.

    Args:
        key, low, row, line, edge: one element for each occurrence of a line in a document, in reading order.
    """
    order, starts = edits.equal_keys(key, low)
    rows = row[order]
    new = np.r_[True, rows[1:] != rows[:-1]][: rows.size]
    new[starts[:-1]] = True
    documents = np.add.reduceat(new, starts[:-1], dtype=np.uint64) if rows.size else np.empty(0, np.uint64)
    first = order[starts[:-1]]
    packed = line[first] << np.uint64(32) | documents << np.uint64(1) | edge[first]
    return key[first], row[first], low[first], packed


def _group(limits: tuple[int, int | None], store: Store, task: Range) -> tuple[Part, ...]:
    first, (key, at, low, packed) = task.read(store)
    starts = np.flatnonzero(first)
    documents = (packed & np.uint64(0xFFFFFFFF)) >> np.uint64(1)
    total = np.add.reduceat(documents, starts) if starts.size else documents
    most, at_edge = limits
    edge_limit = at_edge if at_edge is not None else np.iinfo(np.int64).max
    limit = np.where(packed[starts] & np.uint64(1), edge_limit, most)
    wanted = np.repeat(total.astype(np.int64) > limit, np.diff(np.append(starts, key.size)))
    line = packed >> np.uint64(32) << np.uint64(1) | first
    chunk = [column[wanted] for column in (at, key, low, line)]
    order = sorted_runs.in_order(*chunk)
    return (sorted_runs.write(store, "repeated.run", REPEATED, [[column[order] for column in chunk]], 4),)


def _sidecar(store: Store, task: _Task) -> tuple[Part, ...]:
    assert task.repeated is not None
    with sorted_runs.SortedRun(store, task.repeated, REPEATED) as opened:
        row, key, low, line = opened.all()
    order = sorted_runs.in_order(key, low)
    repeated = _Repeated(key[order], low[order], row[order], line[order])
    stats = edits.no_stats(REASONS)
    part = write_batches(store, task.slot.documents.name, SCHEMA, _batches(store, task, repeated, stats))
    return (part.model_copy(update={"stats": stats}),)


@dataclass(frozen=True)
class _Repeated:
    """Lines to cut from one part of documents, sorted by key. Each key has the first row that contains the line, and
    the number `line << 1 | first`."""

    key: U64
    low: U64
    row: U64
    line: U64


def _batches(store: Store, task: _Task, repeated: _Repeated, stats: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    for first_row, considered, before, found, domains in _read(store, task):
        units = compared(task.params, task.slot.bucket, found, domains)
        index = np.flatnonzero(considered)
        cut = _cut(repeated, units, found, index + first_row)
        close_gaps(found.starts, found.size, cut)
        marks = _marks(found, cut, index)
        kept = cut == 0
        words, left, size = (_per_document(found, v) for v in (found.words * kept, found.size * kept, found.size))
        short = np.zeros(considered.size, dtype=np.bool_)
        edited = np.bincount(marks.doc, minlength=considered.size)[index] > 0
        short[index] = edits.too_little(task.params, edited, words, left, size)
        yield edits.batch(before, considered, short, marks, REASONS, stats)


def _read(store: Store, task: _Task) -> Iterator[tuple[int, Bools, pa.RecordBatch, HashedLines, list[str]]]:
    """Yield for each batch its first row, the mask of compared documents, the rows of the previous stage, and the lines
    and domains of the compared documents."""
    first = 0
    sources = ((task.slot.documents, ["text", "uri"]), (task.slot.sides["before"], list(_BEFORE)))
    for documents, before in iter_aligned(store, *sources):
        considered = before.column("survivor").to_numpy(zero_copy_only=False)
        considered = considered & (task.slot.bucket not in task.params.exclude)
        mine = documents.filter(pa.array(considered))
        domains = [host(uri) or task.slot.bucket for uri in mine.column("uri").to_pylist()]
        yield first, considered, before, lines(mine.column("text")), domains
        first += documents.num_rows


def _cut(repeated: _Repeated, units: Units, found: HashedLines, rows: I64) -> U8:
    """Return for each line 0 if it is kept, or 1 + the index of the reason to cut the line."""
    cut = np.zeros(found.high.size, dtype=np.uint8)
    key, low = repeated.key, repeated.low
    if key.size == 0:
        return cut
    where = np.minimum(np.searchsorted(key, units.key), key.size - 1)
    after = np.minimum(where + 1, key.size - 1)
    where = np.where((key[where] == units.key) & (low[where] != units.low), after, where)
    hit = np.flatnonzero((key[where] == units.key) & (low[where] == units.low))
    where = where[hit]
    line = units.first[hit] - found.starts[units.doc[hit]]
    stays = line.astype(np.uint64) << np.uint64(1) | np.uint64(1)
    is_first = (repeated.row[where] == rows[units.doc[hit]].astype(np.uint64)) & (repeated.line[where] == stays)
    hit = hit[~is_first | (units.kind[hit] == BOILERPLATE)]
    for reason in (LINE, PARAGRAPH, BOILERPLATE):  # the last one wins
        covered = np.zeros(cut.size + 1, dtype=np.int64)
        mine = hit[units.kind[hit] == reason]
        np.add.at(covered, units.first[mine], 1)
        np.add.at(covered, units.last[mine], -1)
        cut[np.cumsum(covered[:-1]) > 0] = reason + 1
    return cut


def _marks(found: HashedLines, cut: U8, index: I64) -> edits.Marks:
    """Return the spans to cut. Consecutive lines of a text that are cut for the same reason form one span."""
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


def _per_document(found: HashedLines, values: I32) -> I64:
    total: I64 = np.r_[0, np.cumsum(values, dtype=np.int64)]
    sums: I64 = total[found.starts[1:]] - total[found.starts[:-1]]
    return sums
