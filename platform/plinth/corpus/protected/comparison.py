"""The two tasks of a part: what its documents hold of the items, and, when all parts are counted, the sidecar.

A pair of a document and an item is a **run** where both have 13 words in a row, some of them evidence, in a stretch
that holds enough of the item's weight; **alike** where a stretch holds most of the weight, in whatever order; **close**
where it holds less, but much. Forms filled in with other words are alike too, thousands of them: of an item that more
documents are alike than may hold an n-gram, that is no evidence, and neither is being close.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.corpus.protected import item_table, protected_index
from plinth.corpus.protected.match import Found, find
from plinth.corpus.protected.parameters import Protected
from plinth.corpus.protected.protected_index import Bools
from plinth.corpus.protected.training_text import Work, considered
from plinth.corpus.sidecars import Slot
from plinth.records import Part
from plinth.storage.parts import read_table, write_batches, write_table
from plinth.storage.store import Store

#: Reasons that the stage gives.
LEAKED, SOURCE, THINNED = REASONS = ("leaked", "benchmark_source", "downweighted")

#: Of the worst item; null where there is none.
SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string()),  # null where the document may stay
        pa.field("set", pa.string()),
        pa.field("item", pa.string()),
        pa.field("longest", pa.int32()),  # words in a row
        pa.field("word", pa.int32()),  # the document's word that they begin with
        pa.field("fuzzy", pa.float32()),  # share of the item's weight
    ]
)
STATS = ("considered", "suspects", *REASONS)
#: Pairs of a part, by row of the part.
PAIRS = pa.schema(
    [
        ("row", pa.int64()),
        ("item", pa.int64()),
        ("kind", pa.string()),  # a column of `item_table.PAIRS`
        ("longest", pa.int64()),
        ("word", pa.int64()),
        ("fuzzy", pa.float32()),
    ]
)
RUN, ALIKE, CLOSE = item_table.KINDS


def found(store: Store, work: Work) -> tuple[Part, ...]:
    """Two parts: the pairs of a part's documents, and their tally by item."""
    index, params = protected_index.read(store, work.index), work.params
    lookups, lengths, evident = index.lookups(), np.diff(index.starts), index.evident_words()
    tables, first = [PAIRS.empty_table()], 0
    for documents, would_train, denied in considered(store, work.slot, params):
        mask = would_train & ~denied
        pairs = find(documents.column("text").filter(pa.array(mask)), params.candidate_words, index, lookups)
        kind = _kind(pairs, lengths, evident, params)
        columns = [first + np.flatnonzero(mask)[pairs.documents], pairs.items, kind]
        columns += [pairs.longest, pairs.first, pairs.share]
        chosen = kind != ""
        tables.append(pa.table([pa.array(one[chosen], f.type) for one, f in zip(columns, PAIRS, strict=True)], PAIRS))
        first += documents.num_rows
    table = pa.concat_tables(tables)
    return (
        write_table(store, "pairs.parquet", table),
        write_table(store, "tally.parquet", item_table.tally(table)),
    )


def _kind(pairs: Found, lengths: Any, evident: Any, params: Protected) -> Any:
    """What each pair is; nothing where the two only share some words."""
    needed = np.minimum(params.longest_words, lengths[pairs.items])
    # a handful of words are everywhere: they are found as a run with what stands around them, or not at all
    enough = evident[pairs.items] >= params.min_words
    kind = np.full(pairs.items.size, "", dtype=object)
    kind[enough & (pairs.share >= params.suspect)] = CLOSE
    kind[enough & (pairs.share >= params.fuzzy)] = ALIKE
    kind[(pairs.longest >= needed) & (pairs.share >= params.longest_share)] = RUN
    return kind


@dataclass(frozen=True)
class Judge:
    """A part of documents with its sidecars, its pairs, and the table of the items."""

    slot: Slot
    params: Protected
    pairs: Part
    items: Part


def judged(store: Store, task: Judge) -> tuple[Part, ...]:
    """The sidecar of a part."""
    items = read_table(store, task.items)
    worst = _worst(read_table(store, task.pairs), items, task.params)
    stats = dict.fromkeys(STATS, 0)

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for documents, would_train, denied in considered(store, task.slot, task.params, ["id", "uri"]):
            stats["considered"] += int(would_train.sum())
            last = first + documents.num_rows
            mine = {row - first: worst[row] for row in range(first, last) if row in worst}
            yield _batch(documents, would_train & denied, mine, items, task.params, stats)
            first = last

    part = write_batches(store, task.slot.documents.name, SCHEMA, batches())
    return (part.model_copy(update={"stats": stats}),)


def _worst(pairs: pa.Table, items: pa.Table, params: Protected) -> dict[int, dict[str, Any]]:
    """By row its worst pair that is evidence: a leak before a suspect, then the larger share, the longer run, the first
    item."""
    alike, close = item_table.telling(items["alike"].to_numpy(), items["close"].to_numpy(), params)
    found: dict[int, dict[str, Any]] = {}
    counted = [
        row
        for row in pairs.to_pylist()
        if row["kind"] == RUN or (alike if row["kind"] == ALIKE else close)[row["item"]]
    ]
    for row in sorted(counted, key=lambda row: (row["kind"] == CLOSE, -row["fuzzy"], -row["longest"], row["item"])):
        found.setdefault(row["row"], row)
    return found


def _batch(
    documents: pa.RecordBatch,
    denied: Bools,
    worst: Mapping[int, Mapping[str, Any]],
    items: pa.Table,
    params: Protected,
    stats: dict[str, int],
) -> pa.RecordBatch:
    made: list[tuple[Any, ...]] = [(None,) * len(SCHEMA)] * documents.num_rows
    for row in np.flatnonzero(denied).tolist():
        stats[SOURCE] += 1
        made[row] = (SOURCE, *(None,) * (len(SCHEMA) - 1))
    for row, pair in worst.items():
        reason: str | None = LEAKED
        if pair["kind"] == CLOSE:
            stats["suspects"] += 1
            drawn = int.from_bytes(documents.column("id")[row].as_py()[12:16], "little") / 2**32
            reason = THINNED if drawn >= params.suspect_weight else None
        if reason:
            stats[reason] += 1
        names = (items[column][pair["item"]].as_py() for column in ("set", "item"))
        made[row] = (reason, *names, pair["longest"], pair["word"] if pair["longest"] else None, pair["fuzzy"])
    columns = [pa.array([one[i] for one in made], field.type) for i, field in enumerate(SCHEMA)]
    return pa.record_batch(columns, schema=SCHEMA)
