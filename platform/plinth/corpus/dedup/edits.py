"""Shared code of the stages that cut spans: their sidecar, groups of equal keys, edits from spans, windows of words.

In the sidecar, `survivor` is True if the document survived the previous stage and enough text remains after the cuts.
Each deduplication stage reads the sidecar of the previous stage and writes a sidecar for the next stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context, Item, add_stats, run_items, sum_stats
from plinth.corpus.dedup import clusters, sorted_runs
from plinth.corpus.dedup.parameters import Remainder
from plinth.corpus.dedup.run_tree import Range, RangeReader, reduce, tree
from plinth.corpus.sidecars import Column, Slot, SlotNumbers
from plinth.records import Part, Step
from plinth.storage.parts import EDIT_TYPE, iter_aligned, iter_batches, read_table, write_table
from plinth.storage.store import Store
from plinth_text.arrays import I32, I64, U64, Bools
from plinth_text.similarity import Windows, window_keys, windows
from plinth_text.words import HashLookup

#: `considered` documents were compared. `text_bytes` is the length of the text in UTF-8 before any cut.
SCHEMA = pa.schema(
    [
        pa.field("considered", pa.bool_(), nullable=False),
        pa.field("survivor", pa.bool_(), nullable=False),
        pa.field("text_bytes", pa.int64(), nullable=False),
        pa.field("removed_bytes", pa.int64(), nullable=False),  # by this stage, beyond what stages before cut
        pa.field("edits", EDIT_TYPE, nullable=False),
    ]
)

STATS = (
    "documents", "considered", "considered_bytes", "survivors", "survivor_bytes",
    "edited", "edits", "removed_bytes", "dropped", "dropped_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Marks:
    """Spans to cut from a batch of documents, sorted by document and position. K is the number of spans.

    Args:
        doc: [K] row in the batch, ascending.
        start_cp, end_cp: [K] code points, half open, disjoint and sorted within a document.
        reason: [K] index into the stage's reasons.
        removed: [K] number of UTF-8 bytes that the span removes.
    """

    doc: I64
    start_cp: I32
    end_cp: I32
    reason: I64
    removed: I64


def columns(ctx: Context, parts: Sequence[Part], names: Sequence[str]) -> list[Part]:
    """Write the named columns of sidecars to separate parts and return these parts. Later steps that read the parts are
    not re-run when other columns change."""
    step = Step(name="dedup/columns", version="1", params={"names": list(names)})
    items = [Item((part.blob.sha256,), (part, tuple(names)), part.rows) for part in parts]
    return [made[0] for made in run_items(ctx, step, _columns, items, label="dedup columns")]


def _columns(store: Store, task: tuple[Part, tuple[str, ...]]) -> tuple[Part, ...]:
    part, names = task
    return (write_table(store, part.name, read_table(store, part, list(names))),)


def no_stats(reasons: Sequence[str]) -> dict[str, Any]:
    """Return statistics in which every value is 0: the counts in `STATS`, and, by reason, the number of cut spans and
    their bytes in surviving documents."""
    return dict.fromkeys(STATS, 0) | {name: dict.fromkeys(reasons, 0) for name in ("spans", "span_bytes")}


def batch(
    before: pa.RecordBatch, considered: Bools, short: Bools, marks: Marks, reasons: Sequence[str], stats: dict[str, Any]
) -> pa.RecordBatch:
    """Return rows of the sidecar, and add them to the statistics.

    Args:
        before: columns `survivor` and `text_bytes` of the previous stage; N rows.
        considered: [N] True for documents that were compared.
        short: [N] True if too little of the document remains after the cuts.
        marks: spans to cut from the compared documents.
        stats: statistics from `no_stats`, updated in place.
    """
    rows = before.num_rows
    text_bytes = before.column("text_bytes").to_numpy()
    survivor = before.column("survivor").to_numpy(zero_copy_only=False) & ~short
    removed = np.bincount(marks.doc, weights=marks.removed, minlength=rows).astype(np.int64)
    edited = (np.bincount(marks.doc, minlength=rows) > 0) & survivor
    mine = survivor[marks.doc]
    more = {
        "documents": rows,
        "considered": considered.sum(),
        "considered_bytes": text_bytes[considered].sum(),
        "survivors": survivor.sum(),
        "survivor_bytes": text_bytes[survivor].sum(),
        "edited": edited.sum(),
        "edits": mine.sum(),
        "removed_bytes": marks.removed[mine].sum(),
        "dropped": short.sum(),
        "dropped_bytes": text_bytes[short].sum(),
    }
    for name, value in more.items():
        stats[name] += int(value)
    for index, reason in enumerate(reasons):
        of_reason = mine & (marks.reason == index)
        stats["spans"][reason] += int(of_reason.sum())
        stats["span_bytes"][reason] += int(marks.removed[of_reason].sum())
    columns = [pa.array(considered), pa.array(survivor), before.column("text_bytes"), pa.array(removed)]
    return pa.RecordBatch.from_arrays([*columns, edit_lists(rows, marks, reasons)], schema=SCHEMA)


def edit_lists(rows: int, marks: Marks, reasons: Sequence[str]) -> pa.Array:
    """Return the spans to cut as lists of edits, one list per row."""
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(np.bincount(marks.doc, minlength=rows), out=offsets[1:])
    empty = pa.array([""], pa.string()).take(pa.array(np.zeros(marks.doc.size, dtype=np.int64)))
    named = pa.array(list(reasons), pa.string()).take(pa.array(marks.reason))
    fields = list(EDIT_TYPE.value_type)
    values = pa.StructArray.from_arrays([pa.array(marks.start_cp), pa.array(marks.end_cp), empty, named], fields=fields)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=EDIT_TYPE)


def too_little(params: Remainder, edited: Bools, words: I64, left: I64, size: I64) -> Bools:
    """Return True for each edited document that has fewer than `min_words` words left, or less than `min_share` of its
    characters.

    Args:
        edited: [N] True if anything is cut from the document.
        words: [N] number of words left.
        left, size: [N] number of characters after and before the cuts.
    """
    return edited & ((words < params.min_words) | (left < params.min_share * size))


def equal_keys(key: U64, low: U64) -> tuple[I64, I64]:
    """Sort 128-bit keys with a stable sort, and group equal keys.

    Returns:
        Indices [N] that sort the keys, and the start positions [G + 1] of the groups of equal keys in the sorted order.
    """
    order = np.argsort(key, kind="stable")
    high, second = key[order], low[order]
    same = high[1:] == high[:-1]
    if np.any(same & (second[1:] != second[:-1])):  # halves that collide: once in billions
        order = np.lexsort((low, key))
        high, second = key[order], low[order]
        same = (high[1:] == high[:-1]) & (second[1:] == second[:-1])
    starts = np.flatnonzero(np.r_[True, ~same][: key.size])
    return order, np.append(starts, key.size)


def summary(parts: Iterable[Part], reasons: Sequence[str]) -> dict[str, Any]:
    """Return the statistics over all parts, with the statistics of each bucket in `buckets`. A part's name begins with
    its bucket."""
    listed = tuple(parts)
    names = sorted({part.name.split("/", 1)[0] for part in listed})
    empty: Mapping[str, Any] = no_stats(reasons)
    buckets = {
        name: sum_stats([empty, *(part.stats for part in listed if part.name.startswith(f"{name}/"))]) for name in names
    }
    return sum_stats([empty, add_stats(listed)]) | {"buckets": buckets}


# Windows of n words that occurred before: candidates by their anchors, then by 128-bit keys.
#
#     anchors   per part, once and for all: the anchors of its windows and the rows that have them
#     repeats   per range of anchors: those that occur twice anywhere, by the documents that have them
#     windows   per part: keys of the windows whose anchor is repeated; the text of those documents alone is read
#     first     per range of keys: every window that is not the first of its key, with the first one
#
# A window that is repeated has a repeated anchor, so nothing is missed; anchors are a twelfth of the words (n = 50)
# and keys are made only of text that may well be repeated. Order is that of bucket, part, row and word.
#
# Anchors are of all documents; which of them are compared is a mask. So a document that another one drops, or takes the
# place of, costs no reading of text.

VERSION = "2"

#: Runs of (anchor, row), at most two alike; and of (document, anchor).
ANCHORS, REPEATED = "anchors", "repeated anchors"
#: Runs of (key, row, other half of the key, word).
WINDOWS = "windows"
#: Runs of (document, word, document, word): a window, and where it was first.
LATER = "later windows"


@dataclass(frozen=True)
class SlotTexts:
    """Texts of one part of documents after the cuts of the previous stages.

    Args:
        tokens: length of a window in words.
        edits: part with the cuts of the previous stage; None if the previous stage cuts nothing.
    """

    slot: Slot
    tokens: int
    edits: Part | None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Digests of the documents and edits that `read` reads."""
        return (self.slot.documents.blob.sha256, self.edits.blob.sha256 if self.edits else "")

    def read(self, store: Store) -> Iterator[tuple[I64, pa.Array]]:
        """Yield, batch by batch, row numbers and the texts of these rows. Spaces replace the text that earlier stages
        cut."""
        sides = [(self.edits, ["edits"])] if self.edits else []
        first = 0
        for documents, *cuts in iter_aligned(store, (self.slot.documents, ["text"]), *sides):
            texts = documents.column("text")
            yield np.arange(first, first + len(texts)), blanked(texts, cuts[0].column("edits")) if cuts else texts
            first += len(texts)

    def read_rows(self, store: Store, rows: I64) -> Iterator[tuple[I64, pa.Array]]:
        """Yield, batch by batch, the row numbers in `rows` (ascending) and the texts of these rows. Row groups without
        any of these rows are not read."""
        chosen = np.zeros(self.slot.documents.rows, dtype=np.bool_)
        chosen[rows] = True
        cuts, first = _some(store, self.edits, chosen), 0
        for documents in sorted_runs.iter_rows(store, self.slot.documents, ["text"], rows):
            texts, mine = documents.column("text"), rows[first : first + documents.num_rows]
            yield mine, blanked(texts, cuts.slice(first, len(texts)).combine_chunks()) if self.edits else texts
            first += len(texts)


def _some(store: Store, edits: Part | None, chosen: Bools) -> pa.ChunkedArray:
    found, first = [], 0
    for batch in iter_batches(store, edits, ["edits"]) if edits and chosen.any() else ():
        found.append(batch.column("edits").filter(pa.array(chosen[first : first + batch.num_rows])))
        first += batch.num_rows
    return pa.chunked_array(found, EDIT_TYPE)


def blanked(texts: pa.Array, edits: pa.Array) -> pa.Array:
    """Replace every code point in a cut by a space. The words in the cut are removed, and all offsets stay the same."""
    rows = np.flatnonzero(pc.list_value_length(edits).to_numpy(zero_copy_only=False))
    if rows.size == 0:
        return texts
    changed = []
    for text, cuts in zip(texts.take(pa.array(rows)).to_pylist(), edits.take(pa.array(rows)).to_pylist(), strict=True):
        for cut in cuts:
            text = f"{text[: cut['start_cp']]}{' ' * (cut['end_cp'] - cut['start_cp'])}{text[cut['end_cp'] :]}"
        changed.append(text)
    mask = np.zeros(len(texts), dtype=np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(texts, pa.array(mask), pa.array(changed, pa.large_string()))


def find(ctx: Context, sources: Sequence[SlotTexts], mask: Column, layout: SlotNumbers, range_rows: int) -> list[Part]:
    """Return, for every part of documents, the windows of words that occurred earlier in the corpus, as sorted runs of
    `LATER`.

    Args:
        mask: column of bytes that selects the documents to compare.
        range_rows: rows per reduce task.
    """
    tokens = {"min_tokens": sources[0].tokens} if sources else {}
    step = Step(name="dedup/substring/anchors", version=VERSION, params=tokens, libraries=fingerprint.UNICODE)
    items = [Item(source.inputs, source, source.slot.documents.rows) for source in sources]
    anchors = [made[0] for made in run_items(ctx, step, _anchors, items, label="dedup/substring anchors")]
    reader = RangeReader.over(ctx.store, ANCHORS, tree(ctx, ANCHORS, 2, anchors), layout)
    step = Step(name="dedup/substring/repeats", version=VERSION)
    ranges = reduce(ctx, step, _repeats, reader, range_rows, "dedup/substring repeats", mask)
    repeats = clusters.gather(ctx, "dedup/substring repeats", ranges, layout, REPEATED, 2)
    step = Step(name="dedup/substring/windows", version=VERSION, params=tokens, libraries=fingerprint.UNICODE)
    items = [
        Item((*source.inputs, mine.blob.sha256), _Candidates(source, mine), source.slot.documents.rows)
        for source, mine in zip(sources, repeats, strict=True)
    ]
    listed = [made[0] for made in run_items(ctx, step, _windows, items, label="dedup/substring windows")]
    reader = RangeReader.over(ctx.store, WINDOWS, tree(ctx, WINDOWS, 4, listed), layout)
    step = Step(name="dedup/substring/first", version=VERSION)
    later = reduce(ctx, step, _first, reader, range_rows, "dedup/substring first")
    return clusters.gather(ctx, "dedup/substring first", later, layout, LATER, 4)


def _anchors(store: Store, source: SlotTexts) -> tuple[Part, ...]:
    keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for numbers, texts in source.read(store):
        mine = windows(texts, source.tokens)
        fresh = np.flatnonzero(mine.fresh)
        keys.append(mine.anchors[fresh])
        rows.append(numbers[np.searchsorted(mine.starts, fresh, side="right") - 1].astype(np.uint64))
    key, row = np.concatenate(keys), np.concatenate(rows)
    order = sorted_runs.in_order(key, row)
    key, row = key[order], row[order]
    more = np.ones(key.size, dtype=np.bool_)  # a third one in a document tells nothing that two do not
    more[2:] = (key[2:] != key[:-2]) | (row[2:] != row[:-2])
    return (sorted_runs.write(store, "anchors.run", ANCHORS, [(key[more], row[more])], 2),)


def _repeats(store: Store, task: Range) -> tuple[Part, ...]:
    first, (key, at) = task.read(store)
    repeated = ~first
    repeated[:-1] |= ~first[1:]
    repeated[1:] &= first[1:] | (at[1:] != at[:-1])  # each document once
    key, at = key[repeated], at[repeated]
    order = sorted_runs.in_order(at, key)
    return (sorted_runs.write(store, "repeats.run", REPEATED, [(at[order], key[order])], 2),)


@dataclass(frozen=True)
class _Candidates:
    source: SlotTexts
    repeats: Part


def _windows(store: Store, task: _Candidates) -> tuple[Part, ...]:
    with sorted_runs.SortedRun(store, task.repeats, REPEATED) as opened:
        rows, keys = opened.all()
    repeated = HashLookup(np.unique(keys))
    table = [[np.empty(0, np.uint64)] * 4]
    for numbers, texts in task.source.read_rows(store, np.unique(rows).astype(np.int64)):
        found = windows(texts, task.source.tokens)
        wanted = _wanted(found, repeated)
        high, low = window_keys(found, task.source.tokens, wanted)
        index = np.flatnonzero(wanted)
        doc = np.searchsorted(found.starts, index, side="right") - 1
        table.append([high, numbers[doc].astype(np.uint64), low, (index - found.starts[doc]).astype(np.uint64)])
    columns = [np.concatenate(column) for column in zip(*table, strict=True)]
    order = sorted_runs.in_order(*columns)
    return (sorted_runs.write(store, "windows.run", WINDOWS, [[column[order] for column in columns]], 4),)


def _wanted(found: Windows, repeated: HashLookup) -> Bools:
    """Return a mask of the windows whose anchor is repeated in the corpus. Each distinct anchor is looked up once."""
    if found.anchors.size == 0:
        return np.zeros(0, dtype=np.bool_)
    known: Bools = repeated.find(found.anchors[found.fresh]) >= 0
    wanted: Bools = known[np.cumsum(found.fresh) - 1]
    return wanted


def _first(store: Store, task: Range) -> tuple[Part, ...]:
    first, (_, at, _, word) = task.read(store)
    firsts = np.flatnonzero(first)[np.cumsum(first) - 1]
    columns = [column[~first] for column in (at, word, at[firsts], word[firsts])]
    order = sorted_runs.in_order(*columns)
    return (sorted_runs.write(store, "later.run", LATER, [[column[order] for column in columns]], 4),)
