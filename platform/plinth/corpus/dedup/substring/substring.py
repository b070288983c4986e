"""Passages of at least so many words that occurred before, as cuts: in other documents and in the same one.

    windows   every window of n words that is not the first of its words      `windows`
    verify    windows joined to passages, compared word for word              `substring_verify`
    sidecar   per part: the columns of `edits.SCHEMA`

A word is cut if it lies in a window of n words that occurred before in the order of bucket, part, row and word.
Every word that is cut stands, in the same surroundings, at an earlier place, and the earliest one stays. Lee et
al. 2022 find the same with a suffix array over the whole corpus in memory; here memory is one part, or one range
of keys. Words are compared in lower case and without the punctuation between them. Cuts are whole words with the
punctuation that clings to them, on code points: no character is cut. Text that earlier stages cut is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context
from plinth.compute.stage import Item, manifest, run_items
from plinth.corpus.dedup import document_numbers, edits, shuffle
from plinth.corpus.dedup.span_parameters import Substring
from plinth.corpus.dedup.substring import windows
from plinth.corpus.dedup.substring.substring_verify import SPANS, verify
from plinth.corpus.dedup.substring.windows import SlotTexts
from plinth.corpus.sidecars import Slot, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, read_table, write_batches
from plinth.storage.store import Store

ASSET = "dedup/substring"
VERSION = "1"
SCHEMA = edits.SCHEMA
REASONS = ("repeated_passage",)


def run(
    ctx: Context,
    params: Substring,
    documents: Mapping[str, Manifest],
    before: Manifest,
    *,
    range_rows: int = shuffle.RANGE_ROWS,
) -> Manifest:
    """Find repeated passages among the survivors of the stage before.

    Args:
        documents: `{b}/documents` by bucket.
        before: a manifest over all buckets with columns `survivor` and `text_bytes`, and `edits` if it cuts too.
        range_rows: rows one reduce task holds; bears on memory alone.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`. Statistics: `edits.STATS`, `spans` and `span_bytes` by reason,
        `buckets`, and `differing`: passages that the comparison of words refuted.

    Raises:
        IntegrityError: `before` does not belong to the documents; a part is damaged.
    """
    places = slots(documents, before=before)
    compared = [slot for slot in places if slot.bucket not in params.exclude]
    sides = [slot.sides["before"] for slot in compared]
    cuts: Sequence[Part | None] = (
        edits.columns(ctx, sides, ["edits"]) if "spans" in before.stats else [None] * len(sides)
    )
    sources = [SlotTexts(slot, params.min_tokens, cut) for slot, cut in zip(compared, cuts, strict=True)]
    layout, mask = document_numbers.layout(compared), document_numbers.mask(ctx, [(side, "survivor") for side in sides])
    later = windows.find(ctx, sources, mask, layout, range_rows)
    found = dict(zip([slot.number for slot in compared], verify(ctx, sources, later, layout), strict=True))
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"))
    items = []
    for slot in places:
        runs, side = found.get(slot.number), slot.sides["before"]
        keys = (slot.documents.blob.sha256, side.blob.sha256, runs.blob.sha256 if runs else "")
        items.append(Item(keys, _Task(slot, runs, "spans" in before.stats, params), slot.documents.rows))
    made = run_items(ctx, step, _sidecar, items, label=ASSET)
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()} | {before.asset: before}
    differing = sum(part.stats["differing"] for part in found.values())
    return manifest(ASSET, step, inputs, parts, edits.summary(parts, REASONS) | {"differing": differing})


@dataclass(frozen=True)
class _Task:
    slot: Slot
    passages: Part | None  # none where the bucket is excluded
    edited: bool  # whether the stage before has edits
    params: Substring


def _sidecar(store: Store, task: _Task) -> tuple[Part, ...]:
    runs = read_table(store, task.passages) if task.passages else SPANS.empty_table()
    stats = edits.no_stats(REASONS)
    part = write_batches(store, task.slot.documents.name, SCHEMA, _batches(store, task, runs, stats))
    return (part.model_copy(update={"stats": stats}),)


def _batches(store: Store, task: _Task, runs: pa.Table, stats: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    rows, first = runs.column("row").to_numpy(), 0
    names = ["survivor", "text_bytes"] + (["edits"] if task.edited else [])
    for before in iter_batches(store, task.slot.sides["before"], names):
        begin, end = np.searchsorted(rows, [first, first + before.num_rows])
        considered = before.column("survivor").to_numpy(zero_copy_only=False) & (task.passages is not None)
        cuts = [
            _Cuts(row - first, mine, before.column("edits")[row - first].as_py() if task.edited else [])
            for row, mine in _by_row(runs.slice(begin, end - begin))
        ]
        short = np.zeros(before.num_rows, dtype=np.bool_)
        docs = np.array([one.doc for one in cuts], dtype=np.int64)
        words, left, size = (np.array([getattr(one, n) for one in cuts]) for n in ("words", "left", "characters"))
        short[docs] = edits.too_little(task.params, np.ones_like(docs, dtype=np.bool_), words, left, size)
        yield edits.batch(before, considered, short, _marks(cuts), REASONS, stats)
        first += before.num_rows


def _by_row(runs: pa.Table) -> Iterator[tuple[int, list[dict[str, int]]]]:
    for row, found in groupby(runs.to_pylist(), key=itemgetter("row")):
        yield row, list(found)


class _Cuts:
    """The passages of one document joined where they overlap or touch.

    Args:
        doc: its row in the batch.
        runs: its passages, in order.
        earlier: what stages before cut; it is blank in the text that the passages were found in.
    """

    def __init__(self, doc: int, runs: list[dict[str, int]], earlier: list[dict[str, Any]]) -> None:
        self.doc = doc
        self.spans: list[list[int]] = []  # start_cp, end_cp, start_byte, end_byte
        self.words, self.characters = runs[0]["words"], runs[0]["characters"]
        known = 0  # words are cut up to here
        for run in runs:
            span = [run[name] for name in ("start_cp", "end_cp", "start_byte", "end_byte")]
            end = run["word"] + run["length"]
            self.words -= max(0, end - max(known, run["word"]))
            known = max(known, end)
            if self.spans and span[0] <= self.spans[-1][1]:
                self.spans[-1][1::2] = [max(pair) for pair in zip(self.spans[-1][1::2], span[1::2], strict=True)]
            else:
                self.spans.append(span)
        blank = [(edit["start_cp"], edit["end_cp"]) for edit in earlier]
        inside = [sum(max(0, min(b, end) - max(a, start)) for a, b in blank) for start, end, *_ in self.spans]
        self.removed = [last - first - n for (_, _, first, last), n in zip(self.spans, inside, strict=True)]
        gone = sum(end - start for start, end, *_ in self.spans) - sum(inside) + sum(b - a for a, b in blank)
        self.left = self.characters - gone


def _marks(cuts: list[_Cuts]) -> edits.Marks:
    flat = [(one.doc, *span[:2], removed) for one in cuts for span, removed in zip(one.spans, one.removed, strict=True)]
    table = np.array(flat, dtype=np.int64).reshape(-1, 4)
    start, end = table[:, 1].astype(np.int32), table[:, 2].astype(np.int32)
    return edits.Marks(table[:, 0], start, end, np.zeros(table.shape[0], dtype=np.int64), table[:, 3])
