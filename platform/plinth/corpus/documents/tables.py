"""Rows of documents: to record batches, in bounded memory, with the counts that manifests carry; parts without some of
their rows; documents that a bucket has twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compute.context import Context, Item, run_items
from plinth.corpus.dedup import shuffle, sorted_runs
from plinth.corpus.dedup.clusters import gather
from plinth.corpus.dedup.document_numbers import SlotNumbers
from plinth.corpus.dedup.run_tree import Range, RangeReader, reduce, tree
from plinth.corpus.sources.record import SEEN_BEFORE, Reject
from plinth.records import Frozen, Part, Step
from plinth.schemas import DOCUMENT_SCHEMA, REJECT_SCHEMA
from plinth.storage.atomic import named_failures
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store

BATCH_ROWS = 1024
BATCH_BYTES = 16 * 2**20


def document_batches(rows: Iterable[tuple[Any, ...]], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    """Batches of DOCUMENT_SCHEMA out of its rows; `counts` receives documents, text_bytes and source_bytes."""
    held: list[tuple[Any, ...]] = []
    size = 0
    counts.update(documents=0, text_bytes=0, source_bytes=0)
    for row in rows:
        held.append(row)
        size += len(row[1])
        counts["source_bytes"] += row[7]
        if len(held) == BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch(held, DOCUMENT_SCHEMA, counts)
            held, size = [], 0
    if held:
        yield _batch(held, DOCUMENT_SCHEMA, counts)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema, counts: Counter[str]) -> pa.RecordBatch:
    columns = [pa.array(column, type=field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    text = columns[1]
    counts["documents"] += len(rows)
    counts["text_bytes"] += _data_bytes(text)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _data_bytes(text: pa.LargeStringArray) -> int:
    """UTF-8 bytes of a freshly made string column."""
    return int(text.buffers()[2].size) if text.buffers()[2] else 0


class RejectSpill:
    """Rejects on their way to a part, kept on disk: a hostile file may have more of them than memory holds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stack = ExitStack()
        self._held: list[Reject] = []
        self._counts: Counter[str] = Counter()
        self._bytes = 0

    def __enter__(self) -> RejectSpill:
        self._path = self._stack.enter_context(self._store.staging(".arrow"))
        self._stack.enter_context(named_failures(self._path))
        self._sink = self._stack.enter_context(pa.OSFile(str(self._path), "wb"))
        self._writer = pa.ipc.new_stream(self._sink, REJECT_SCHEMA)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, tb)

    def add(self, reject: Reject) -> None:
        """Keep one reject."""
        self._counts[reject.reason] += 1
        self._bytes += reject.source_bytes
        self._held.append(reject)
        if len(self._held) == BATCH_ROWS:
            self._flush()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Everything kept, in order; nothing can be added afterwards."""
        self._flush()
        self._writer.close()
        self._sink.close()
        with pa.OSFile(str(self._path), "rb") as source, pa.ipc.open_stream(source) as reader:
            yield from reader

    def stats(self) -> dict[str, Any]:
        """Rejects by reason, and the bytes of source they stand for."""
        return {"rejects": dict(sorted(self._counts.items())), "rejected_bytes": self._bytes}

    def _flush(self) -> None:
        if self._held:
            self._writer.write_batch(reject_batch(self._held))
            self._held = []


def reject_batch(rejects: Iterable[Reject]) -> pa.RecordBatch:
    """A batch of REJECT_SCHEMA."""
    rows = [
        {
            "uri": reject.uri.encode("utf-8", "backslashreplace").decode(),
            "where": reject.where,
            "reason": reject.reason,
            "detail": reject.brief,
            "source_bytes": reject.source_bytes,
        }
        for reject in rejects
    ]
    return pa.RecordBatch.from_pylist(rows, schema=REJECT_SCHEMA)


def drop_rows(
    store: Store,
    part: Part,
    rejects: Part,
    dropped: npt.NDArray[np.int64],
    refuse: Callable[[int, dict[str, Any]], Reject],
) -> tuple[Part, Part, int]:
    """Write a part again without some rows, and its rejects with them.

    Args:
        dropped: [rows] to drop, ascending.
        refuse: the reject of a row, by its number in the part and its id, uri, source_bytes and text.

    Returns:
        The part, its rejects, and the bytes of text that are gone.
    """
    counts, refused = Counter[str](), list[Reject]()

    def kept() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in iter_batches(store, part):
            begin, end = np.searchsorted(dropped, [first, first + batch.num_rows])
            gone = np.zeros(batch.num_rows, dtype=np.bool_)
            gone[dropped[begin:end] - first] = True
            rows = batch.filter(pa.array(gone)).select(["id", "uri", "source_bytes", "text"]).to_pylist()
            for number, row in zip(dropped[begin:end].tolist(), rows, strict=True):
                counts.update(source_bytes=row["source_bytes"], text_bytes=len(row["text"].encode()))
                refused.append(refuse(number, row))
            yield batch.filter(pa.array(~gone))
            first += batch.num_rows

    made = write_batches(store, "part.parquet", DOCUMENT_SCHEMA, kept())
    stats = {key: part.stats[key] - counts[key] for key in ("text_bytes", "source_bytes")}
    reasons = Counter(rejects.stats["rejects"]) + Counter(reject.reason for reject in refused)
    with_them = write_batches(
        store,
        "rejects.parquet",
        REJECT_SCHEMA,
        [*iter_batches(store, rejects), reject_batch(refused)],
        stats={
            "rejects": dict(sorted(reasons.items())),
            "rejected_bytes": rejects.stats["rejected_bytes"] + counts["source_bytes"],
        },
    )
    made = made.model_copy(update={"stats": {**part.stats, "documents": made.rows, **stats}})
    return made, with_them, counts["text_bytes"]


# The same document in two parts of a bucket: the first stays, the others become rejects.
#
# A page that the next snapshot captures unchanged is such a document: no failure, but text that the bucket has already,
# which the funnel counts as duplicated. This is about identity (same address, same text); duplicates by content are
# found by `dedup`.
#
#     ids         per part, once and for all: its ids, sorted
#     repeated    per range of ids: the rows whose id an earlier row has
#     rewrite     per part that has some: the part without them, and its rejects with them

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
