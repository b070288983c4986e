"""Documents of a bucket without those that an exclusion takes.

    look      per part, by columns and by texts: (row, entry) of what is taken; kept by the step cache
    rewrite   per part that has some: the part without them, and its rejects with them

A part that no entry touches stays the same blob, so all that was made of it stays too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import Item, TaskFn, run_items, sum_stats
from plinth.corpus.documents.drop_rows import drop_rows
from plinth.corpus.exclusions.entries import Exclusion
from plinth.corpus.exclusions.rules import ColumnRules, Hit, TextRules
from plinth.corpus.sources.record import TAKEDOWN, Reject
from plinth.records import Part, Step
from plinth.storage.parts import iter_batches, read_table, write_table
from plinth.storage.store import Store

VERSION = "2"
#: Rows that an exclusion takes, ascending, and the number of its entry.
TAKEN = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("entry", pa.int32(), nullable=False)])
Pair = tuple[Part, Part]


@dataclass(frozen=True)
class Dropped:
    """Parts with their rejects, without what was taken.

    Args:
        taken: documents by number of the entry.
        digest: identity of the entries that took something; empty where none did.
    """

    pairs: list[Pair]
    taken: dict[str, int] = field(default_factory=dict)
    digest: str = ""


def drop(ctx: Context, label: str, pairs: Sequence[Pair], entries: Sequence[Exclusion]) -> Dropped:
    """The parts and rejects of a bucket without documents that an exclusion takes."""
    found = look(ctx, label, [part for part, _ in pairs], entries)
    items, affected = [], [at for at, own in enumerate(found) if any(taken.rows for taken in own)]
    for at in affected:
        task = Rewrite(*pairs[at], found[at])
        items.append(Item(tuple(part.blob.sha256 for part in (*pairs[at], *found[at])), task, pairs[at][0].rows))
    step = Step(name="documents/takedown", version=VERSION)
    made = run_items(ctx, step, rewrite, items, label=f"{label} (takedown)") if items else []
    kept = list(pairs)
    for at, (part, rejects, *_) in zip(affected, made, strict=True):
        kept[at] = (part, rejects)
    taken = sum_stats(part.stats.get("taken", {}) for part, *_ in made)
    at_work = [entry.digest for entry in entries if str(entry.number) in taken]
    return Dropped(kept, dict(sorted(taken.items())), fingerprint.digest(at_work) if at_work else "")


def look(
    ctx: Context, label: str, parts: Sequence[Part], entries: Sequence[Exclusion]
) -> list[tuple[Part, ...]]:
    """Per part of documents, tables (`TAKEN`) of what is taken by columns and by text, where there are such rules."""
    columns, texts = ColumnRules.of(entries), TextRules.of(entries)
    looks: list[tuple[Step, TaskFn, str]] = []
    if columns:
        step = Step(name="documents/takedown/columns", version=VERSION, libraries=fingerprint.UNICODE)
        looks.append((step, partial(_by_columns, columns), columns.digest))
    if texts:
        step = Step(name="documents/takedown/texts", version=VERSION, libraries=fingerprint.UNICODE)
        looks.append((step, partial(_by_texts, texts), texts.digest))
    made = [
        run_items(ctx, step, fn, [Item((part.blob.sha256, digest), part, part.rows) for part in parts], label=label)
        for step, fn, digest in looks
    ]
    return [tuple(one for (one,) in own) for own in zip(*made, strict=True)] or [()] * len(parts)


@dataclass(frozen=True)
class Rewrite:
    """A part, its rejects, and what is taken of it."""

    part: Part
    rejects: Part
    taken: tuple[Part, ...]


def rewrite(store: Store, task: Rewrite) -> tuple[Part, Part]:
    """One part without what is taken, and its rejects with it; `taken` of its statistics counts by entry."""
    by_row = taken_rows(store, task.taken)

    def refuse(number: int, row: dict[str, Any]) -> Reject:
        detail = f"entry {by_row[number]} takes {row['id'].hex()}"
        return Reject(row["uri"], "part", TAKEDOWN, detail, row["source_bytes"])

    dropped: npt.NDArray[np.int64] = np.array(list(by_row), np.int64)
    part, rejects, _ = drop_rows(store, task.part, task.rejects, dropped, refuse)
    counts = sum_stats({str(entry): 1} for entry in by_row.values())
    return part.model_copy(update={"stats": {**part.stats, "taken": counts}}), rejects


def taken_rows(store: Store, taken: Sequence[Part]) -> dict[int, int]:
    """Entry by row, rows ascending; the first table that names a row counts."""
    rows: dict[int, int] = {}
    for table in taken:
        for row in read_table(store, table).to_pylist():
            rows.setdefault(row["row"], row["entry"])
    return dict(sorted(rows.items()))


def _by_columns(rules: ColumnRules, store: Store, part: Part) -> tuple[Part, ...]:
    batches = iter_batches(store, part, ["id", "uri", "licence"])
    return (_write(store, part, ((batch.num_rows, rules.look(batch)) for batch in batches)),)


def _by_texts(rules: TextRules, store: Store, part: Part) -> tuple[Part, ...]:
    batches = iter_batches(store, part, ["text"])
    return (_write(store, part, ((batch.num_rows, rules.look(batch.column("text"))) for batch in batches)),)


def _write(store: Store, part: Part, looks: Iterator[tuple[int, Iterator[Hit]]]) -> Part:
    rows, first = list[dict[str, int]](), 0
    for count, hits in looks:
        rows += ({"row": first + row, "entry": entry} for row, entry in hits)
        first += count
    return write_table(store, part.name, pa.Table.from_pylist(rows, schema=TAKEN))
