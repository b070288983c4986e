"""Windows of n words that occurred before: candidates by their anchors, then by 128-bit keys.

    anchors   per part: the distinct anchors of its windows, and whether it has one twice
    repeats   per range of anchors: those that occur twice anywhere, addressed to the parts that have them
    windows   per part: keys of the windows whose anchor is repeated
    first     per range of keys: every window that is not the first of its key, with the first one

A window that is repeated has a repeated anchor, so nothing is missed; anchors are a twelfth of the words (n = 50)
and keys are made only of text that may well be repeated. Order is that of bucket, part, row and word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import Item, TaskFn, run_items
from plinth.corpus.dedup import edits as spans
from plinth.corpus.dedup import shuffle
from plinth.corpus.dedup.edits import I64, Bools
from plinth.corpus.sidecars import Slot
from plinth.records import Part, Step
from plinth.storage.parts import iter_aligned, write_table
from plinth.storage.store import Store
from plinth.text.similarity.passages import Windows, window_keys, windows
from plinth.text.words.hash_lookup import HashLookup

_ANCHORS = pa.schema([("key", pa.uint64()), ("twice", pa.bool_())])
_REPEATED = pa.schema([("at", pa.uint64()), ("key", pa.uint64())])
_WINDOWS = pa.schema([("key", pa.uint64()), ("low", pa.uint64()), ("row", pa.uint32()), ("word", pa.uint32())])

#: A window at word `word` of row `at` that was at word `first_word` of row `first` before.
LATER = pa.schema([("at", pa.uint64()), ("word", pa.uint32()), ("first", pa.uint64()), ("first_word", pa.uint32())])


@dataclass(frozen=True)
class SlotTexts:
    """The considered texts of one slot, as the stages before left them."""

    slot: Slot
    tokens: int
    excluded: bool
    edited: bool  # whether the stage before has edits

    @property
    def inputs(self) -> tuple[str, ...]:
        """Digests of what is read."""
        return (self.slot.documents.blob.sha256, self.slot.sides["before"].blob.sha256, str(self.excluded))

    def read(self, store: Store, rows: I64 | None = None) -> Iterator[tuple[I64, pa.Array]]:
        """By batch: rows, and their texts with earlier cuts blanked; only some rows, sorted, where given."""
        before, first = self.slot.sides["before"], 0
        names = ["survivor", "edits"] if self.edited else ["survivor"]
        for documents, side in iter_aligned(store, (self.slot.documents, ["text"]), (before, names)):
            mask = side.column("survivor").to_numpy(zero_copy_only=False) & (not self.excluded)
            if rows is not None:
                begin, end = np.searchsorted(rows, [first, first + documents.num_rows])
                chosen = np.zeros_like(mask)
                chosen[rows[begin:end] - first] = True
                mask &= chosen
            wanted = pa.array(mask)
            texts = documents.column("text").filter(wanted)
            if self.edited and len(texts):
                texts = blanked(texts, side.column("edits").filter(wanted))
            yield np.flatnonzero(mask) + first, texts
            first += documents.num_rows


def blanked(texts: pa.Array, edits: pa.Array) -> pa.Array:
    """The texts with every cut code point a space: no word is left there, and nothing else moves."""
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


def find(ctx: Context, sources: tuple[SlotTexts, ...], version: str, range_rows: int) -> tuple[Part, ...]:
    """The later windows of all slots: parts of `LATER`, sorted by address."""
    tokens = {"min_tokens": sources[0].tokens} if sources else {}
    step = Step(name="dedup/substring/anchors", version=version, params=tokens, libraries=fingerprint.UNICODE)
    items = [Item(source.inputs, source, source.slot.documents.rows) for source in sources]
    anchors = tuple(made[0] for made in run_items(ctx, step, _anchors, items, label="dedup/substring anchors"))
    step = Step(name="dedup/substring/repeats", version=version)
    repeats = _reduce(ctx, step, _repeats, anchors, range_rows)
    step = Step(name="dedup/substring/windows", version=version, params=tokens, libraries=fingerprint.UNICODE)
    found = tuple(part.blob.sha256 for part in repeats)
    items = [
        Item(
            (*source.inputs, str(source.slot.number), *found), _Candidates(source, repeats), source.slot.documents.rows
        )
        for source in sources
    ]
    listed = tuple(made[0] for made in run_items(ctx, step, _windows, items, label="dedup/substring windows"))
    return _reduce(ctx, Step(name="dedup/substring/first", version=version), _first, listed, range_rows)


def _reduce(ctx: Context, step: Step, fn: TaskFn, parts: tuple[Part, ...], range_rows: int) -> tuple[Part, ...]:
    keys = tuple(part.blob.sha256 for part in parts)
    cuts = shuffle.ranges(sum(part.rows for part in parts), range_rows)
    items = [Item((f"{low}-{high}", *keys), _Range(parts, low, high)) for low, high in cuts]
    return tuple(made[0] for made in run_items(ctx, step, fn, items, label=step.name.replace("/", " ", 2)))


def _anchors(store: Store, source: SlotTexts) -> tuple[Part, ...]:
    found = [np.empty(0, dtype=np.uint64)]
    for _, texts in source.read(store):
        mine = windows(texts, source.tokens)
        found.append(mine.anchors[mine.fresh])
    keys, counts = np.unique(np.concatenate(found), return_counts=True)
    table = pa.table([pa.array(keys), pa.array(counts > 1)], schema=_ANCHORS)
    return (write_table(store, "anchors.parquet", table),)


@dataclass(frozen=True)
class _Range:
    parts: tuple[Part, ...]
    low: int
    high: int


def _read(store: Store, task: _Range, schema: pa.Schema) -> tuple[pa.Table, I64]:
    """The rows of a range, and the slot of each, in order of slots."""
    tables, slots = [schema.empty_table()], [np.zeros(0, dtype=np.int64)]
    for slot, part in enumerate(task.parts):
        tables.append(shuffle.read_range(store, part, "key", task.low, task.high))
        slots.append(np.full(tables[-1].num_rows, slot, dtype=np.int64))
    return pa.concat_tables(tables).combine_chunks(), np.concatenate(slots)


def _repeats(store: Store, task: _Range) -> tuple[Part, ...]:
    table, slots = _read(store, task, _ANCHORS)
    key, twice = table.column("key").to_numpy(), table.column("twice").to_numpy(zero_copy_only=False)
    order = np.argsort(key, kind="stable")
    same = key[order][1:] == key[order][:-1]
    repeated = twice[order].copy()
    repeated[1:] |= same
    repeated[:-1] |= same
    rows = order[repeated]
    columns = [pa.array(slots[rows].astype(np.uint64) << np.uint64(32)), pa.array(key[rows])]
    return (shuffle.write_sorted(store, "repeats.parquet", pa.table(columns, schema=_REPEATED), ["at", "key"]),)


@dataclass(frozen=True)
class _Candidates:
    source: SlotTexts
    repeats: tuple[Part, ...]


def _windows(store: Store, task: _Candidates) -> tuple[Part, ...]:
    at = shuffle.slot_range(task.source.slot.number)
    mine = [shuffle.read_range(store, part, "at", *at).column("key").to_numpy() for part in task.repeats]
    repeated = HashLookup(np.concatenate([np.empty(0, np.uint64), *mine]))  # ranges ascend, so the whole does
    tables = [_WINDOWS.empty_table()]
    for rows, texts in task.source.read(store) if repeated.table.size else ():
        found = windows(texts, task.source.tokens)
        wanted = _wanted(found, repeated)
        high, low = window_keys(found, task.source.tokens, wanted)
        index = np.flatnonzero(wanted)
        doc = np.searchsorted(found.starts, index, side="right") - 1
        columns = (high, low, rows[doc].astype(np.uint32), (index - found.starts[doc]).astype(np.uint32))
        tables.append(pa.table([pa.array(column) for column in columns], schema=_WINDOWS))
    table = pa.concat_tables(tables).combine_chunks()
    order = np.argsort(table.column("key").to_numpy(), kind="stable")  # within a key, rows and words stay in order
    return (write_table(store, "windows.parquet", table.take(pa.array(order))),)


def _wanted(found: Windows, repeated: HashLookup) -> Bools:
    """[N] whether the anchor of a window is repeated; each anchor is looked up once."""
    if found.anchors.size == 0:
        return np.zeros(0, dtype=np.bool_)
    known: Bools = repeated.find(found.anchors[found.fresh]) >= 0
    wanted: Bools = known[np.cumsum(found.fresh) - 1]
    return wanted


def _first(store: Store, task: _Range) -> tuple[Part, ...]:
    table, slots = _read(store, task, _WINDOWS)
    order, starts = spans.equal_keys(table.column("key").to_numpy(), table.column("low").to_numpy())
    firsts = np.repeat(order[starts[:-1]], np.diff(starts))
    later = np.ones(order.size, dtype=np.bool_)
    later[starts[:-1]] = False
    rows, firsts = order[later], firsts[later]
    row, word = (table.column(name).to_numpy() for name in ("row", "word"))
    at = (slots.astype(np.uint64) << np.uint64(32)) | row
    columns = {"at": at[rows], "word": word[rows], "first": at[firsts], "first_word": word[firsts]}
    return (shuffle.write_sorted(store, "later.parquet", pa.table(columns, schema=LATER), ["at", "word"]),)
