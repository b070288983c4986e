"""Shared by the stages that cut spans: their sidecar, groups of equal keys, and edits from marks.

`survivor` is what the stage before left, less the documents of which too little remains after the cuts; so each
stage of the cascade reads the sidecar of the one before it and writes its own for the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context, Item, add_stats, run_items, sum_stats
from plinth.corpus.dedup.parameters import Remainder
from plinth.records import Part, Step
from plinth.storage.parts import EDIT_TYPE, read_table, write_table
from plinth.storage.store import Store
from plinth_text.arrays import I32, I64, U64, Bools

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
    """Spans of a batch, by document and position; K of them.

    Args:
        doc: [K] row in the batch, ascending.
        start_cp, end_cp: [K] code points, half open, disjoint and sorted within a document.
        reason: [K] index into the stage's reasons.
        removed: [K] bytes of UTF-8 that the span takes out.
    """

    doc: I64
    start_cp: I32
    end_cp: I32
    reason: I64
    removed: I64


def columns(ctx: Context, parts: Sequence[Part], names: Sequence[str]) -> list[Part]:
    """Some columns of sidecars: what else changes in them costs nothing further."""
    step = Step(name="dedup/columns", version="1", params={"names": list(names)})
    items = [Item((part.blob.sha256,), (part, tuple(names)), part.rows) for part in parts]
    return [made[0] for made in run_items(ctx, step, _columns, items, label="dedup columns")]


def _columns(store: Store, task: tuple[Part, tuple[str, ...]]) -> tuple[Part, ...]:
    part, names = task
    return (write_table(store, part.name, read_table(store, part, list(names))),)


def no_stats(reasons: Sequence[str]) -> dict[str, Any]:
    """Statistics of nothing: `STATS`, and spans and their bytes by reason, of surviving documents."""
    return dict.fromkeys(STATS, 0) | {name: dict.fromkeys(reasons, 0) for name in ("spans", "span_bytes")}


def batch(
    before: pa.RecordBatch, considered: Bools, short: Bools, marks: Marks, reasons: Sequence[str], stats: dict[str, Any]
) -> pa.RecordBatch:
    """Rows of the sidecar, counted.

    Args:
        before: `survivor` and `text_bytes` of the stage before; N rows.
        considered: [N] documents that were compared.
        short: [N] whether too little is left of the document once its marks are cut.
        marks: of considered documents.
        stats: from `no_stats`; counted on.
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
    """The marks as cuts, one list per row."""
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(np.bincount(marks.doc, minlength=rows), out=offsets[1:])
    empty = pa.array([""], pa.string()).take(pa.array(np.zeros(marks.doc.size, dtype=np.int64)))
    named = pa.array(list(reasons), pa.string()).take(pa.array(marks.reason))
    fields = list(EDIT_TYPE.value_type)
    values = pa.StructArray.from_arrays([pa.array(marks.start_cp), pa.array(marks.end_cp), empty, named], fields=fields)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=EDIT_TYPE)


def too_little(params: Remainder, edited: Bools, words: I64, left: I64, size: I64) -> Bools:
    """Documents with too little left: of cut ones, fewer than `min_words` words or `min_share` of `size`.

    Args:
        edited: [N] whether anything is cut.
        words: [N] words left.
        left, size: [N] characters left, and all there were before any cut.
    """
    return edited & ((words < params.min_words) | (left < params.min_share * size))


def equal_keys(key: U64, low: U64) -> tuple[I64, I64]:
    """Sort by 128-bit keys, stably.

    Returns:
        order [N], and starts [G + 1] of the groups of equal keys in that order.
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
    """Statistics of all parts, and `buckets` with those of each (the first piece of a part's name)."""
    listed = tuple(parts)
    names = sorted({part.name.split("/", 1)[0] for part in listed})
    empty: Mapping[str, Any] = no_stats(reasons)
    buckets = {
        name: sum_stats([empty, *(part.stats for part in listed if part.name.startswith(f"{name}/"))]) for name in names
    }
    return sum_stats([empty, add_stats(listed)]) | {"buckets": buckets}
