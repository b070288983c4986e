"""The same document in two parts of a bucket: the first stays, the others become rejects.

A page that the next snapshot captures unchanged is such a document: no failure, but text that the bucket has already,
which the funnel counts as duplicated. This is about identity (same address, same text); duplicates by content are found
by `dedup`.

    ids         per part, once and for all: its ids, sorted
    repeated    per range of ids: the rows whose id an earlier row has
    rewrite     per part that has some: the part without them, and its rejects with them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup import shuffle, sorted_runs
from plinth.corpus.dedup.clusters import gather
from plinth.corpus.dedup.document_numbers import SlotNumbers
from plinth.corpus.dedup.run_tree import Range, RangeReader, reduce, tree
from plinth.corpus.documents.tables import reject_batch
from plinth.corpus.sources.record import SEEN_BEFORE, Reject
from plinth.records import DOCUMENT_SCHEMA, REJECT_SCHEMA, Frozen, Part, Step
from plinth.storage.parts import iter_batches, write_batches
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
    step = Step(name="documents/repeats", version="3")
    results = run_items(ctx, step, rewrite, items, label=f"{bucket}/documents (repeats)") if items else []
    for index, (part, rejects) in zip(affected, results, strict=True):
        found[index] = (part, rejects)
    return found


def rewrite(store: Store, task: Repeats) -> tuple[Part, Part]:
    """One part without its repeats, and its rejects with them."""
    with sorted_runs.SortedRun(store, task.rows, REPEATED) as opened:
        (dropped,) = opened.all()
    counts, refused = Counter[str](), list[Reject]()

    def kept() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in iter_batches(store, task.part):
            begin, end = np.searchsorted(dropped, np.array([first, first + batch.num_rows], dtype=np.uint64))
            repeat = np.zeros(batch.num_rows, dtype=np.bool_)
            repeat[dropped[begin:end].astype(np.int64) - first] = True
            for row in batch.filter(pa.array(repeat)).select(["id", "uri", "source_bytes", "text"]).to_pylist():
                counts.update(source_bytes=row["source_bytes"], text_bytes=len(row["text"].encode()))
                detail = f"an earlier part of the bucket holds {row['id'].hex()}"
                refused.append(Reject(row["uri"], "part", SEEN_BEFORE, detail, row["source_bytes"]))
            yield batch.filter(pa.array(~repeat))
            first += batch.num_rows

    part = write_batches(store, "part.parquet", DOCUMENT_SCHEMA, kept())
    stats = {key: task.part.stats[key] - counts[key] for key in ("text_bytes", "source_bytes")}
    stats["seen_before_bytes"] = task.part.stats.get("seen_before_bytes", 0) + counts["text_bytes"]
    reasons = Counter(task.rejects.stats["rejects"]) + Counter({SEEN_BEFORE: len(refused)})
    rejects = write_batches(
        store,
        "rejects.parquet",
        REJECT_SCHEMA,
        [*iter_batches(store, task.rejects), reject_batch(refused)],
        stats={
            "rejects": dict(sorted(reasons.items())),
            "rejected_bytes": task.rejects.stats["rejected_bytes"] + counts["source_bytes"],
        },
    )
    return part.model_copy(update={"stats": {"documents": part.rows, **stats}}), rejects


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
