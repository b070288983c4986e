"""The same document in two parts of a bucket: the first stays, the others become rejects.

A page that the next snapshot captures unchanged is such a document: no failure, but text that the bucket has already,
which the funnel counts as duplicated. This is about identity (same address, same text); duplicates by content are found
by `dedup`.

    ids         per part, once and for all: its ids, sorted
    repeated    per range of ids: the rows whose id an earlier row has
    rewrite     per part that has some: the part without them, and its rejects with them
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup import shuffle, sorted_runs
from plinth.corpus.dedup.clusters import gather
from plinth.corpus.dedup.document_numbers import SlotNumbers
from plinth.corpus.dedup.run_tree import Range, RangeReader, reduce, tree
from plinth.corpus.documents.drop_rows import drop_rows
from plinth.corpus.sources.record import SEEN_BEFORE, Reject
from plinth.records import Frozen, Part, Step
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store

#: Runs of (upper half of the id, row, lower half), and of rows.
IDS, REPEATED = "ids", "repeated"


class Repeats(Frozen):
    """Rows to drop from one part, with its rejects."""

    part: Part
    rejects: Part
    rows: Part


def drop_repeats(
    ctx: Context, bucket: str, pairs: Sequence[tuple[Part, ...]], *, range_rows: int = shuffle.RANGE_ROWS
) -> list[tuple[Part, Part]]:
    """The parts and rejects of a bucket without documents that an earlier part holds already.

    Args:
        range_rows: ids one reduce task holds; bears on memory alone.
    """
    found = [(part, rejects) for part, rejects in pairs]
    if len(found) < 2:
        return found  # a part holds no document twice
    repeated = _repeated(ctx, f"{bucket}/documents", [part for part, _ in found], range_rows)
    affected = [index for index, rows in enumerate(repeated) if rows.rows]
    items = []
    for index in affected:
        task = Repeats(part=found[index][0], rejects=found[index][1], rows=repeated[index])
        inputs = tuple(part.blob.sha256 for part in (task.part, task.rejects, task.rows))
        items.append(Item(inputs=inputs, task=task, rows=task.rows.rows))
    step = Step(name="documents/repeats", version="4")
    results = run_items(ctx, step, rewrite, items, label=f"{bucket}/documents (repeats)") if items else []
    for index, (part, rejects) in zip(affected, results, strict=True):
        found[index] = (part, rejects)
    return found


def rewrite(store: Store, task: Repeats) -> tuple[Part, Part]:
    """One part without its repeats, and its rejects with them."""
    with sorted_runs.SortedRun(store, task.rows, REPEATED) as opened:
        (dropped,) = opened.all()

    def refuse(_: int, row: dict[str, Any]) -> Reject:
        detail = f"an earlier part of the bucket holds {row['id'].hex()}"
        return Reject(row["uri"], "part", SEEN_BEFORE, detail, row["source_bytes"])

    part, rejects, text_bytes = drop_rows(store, task.part, task.rejects, dropped.astype(np.int64), refuse)
    seen = task.part.stats.get("seen_before_bytes", 0) + text_bytes
    return part.model_copy(update={"stats": {**part.stats, "seen_before_bytes": seen}}), rejects


def _repeated(ctx: Context, label: str, parts: Sequence[Part], range_rows: int) -> list[Part]:
    """Per part, a run of the rows whose id an earlier row of the bucket has."""
    items = [Item((part.blob.sha256,), part, part.rows) for part in parts]
    made = run_items(ctx, Step(name="documents/ids", version="1"), _ids, items, label=f"{label} (ids)")
    numbers = SlotNumbers((0, *accumulate(part.rows for part in parts)))
    reader = RangeReader.over(ctx.store, IDS, tree(ctx, IDS, 3, [one[0] for one in made]), numbers)
    step = Step(name="documents/repeated", version="1")
    found = reduce(ctx, step, _later, reader, range_rows, f"{label} (repeated)")
    return gather(ctx, label, found, numbers, REPEATED, 1)


def _ids(store: Store, part: Part) -> tuple[Part, ...]:
    found = [pa.array([], pa.binary(16)), *(batch.column("id") for batch in iter_batches(store, part, ["id"]))]
    return (shuffle.write_halves(store, "ids.run", IDS, pa.chunked_array(found)),)


def _later(store: Store, task: Range) -> tuple[Part, ...]:
    first, (_, at, _) = task.read(store)
    return (sorted_runs.write(store, "repeated.run", REPEATED, [(np.sort(at[~first]),)], 1),)
