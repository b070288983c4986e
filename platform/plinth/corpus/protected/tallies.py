"""Counts by key over all parts: a map that writes sparse tables, and a reduce that opens a bounded number at a time.

A tally is a table of one `key` and columns that are summed, or of which the greatest counts. Merging is associative,
with a bound as well (min(a + b, bound)), so the result does not depend on how parts are grouped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, run_items
from plinth.corpus.dedup.run_tree import levels
from plinth.records import Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth_text.arrays import I64

#: By column what merging does to it.
How = Mapping[str, Literal["sum", "max"]]
COUNTED: How = {"documents": "sum"}


def sparse(store: Store, name: str, counts: I64, documents: int = 0) -> Part:
    """The counts above 0 by position, with the number of documents that were looked at."""
    key = np.flatnonzero(counts)
    return write_table(store, name, pa.table({"key": key, "documents": counts[key]}), stats={"looked_at": documents})


def dense(store: Store, parts: Sequence[Part], size: int, bound: int | None = None) -> I64:
    """[size] the counts of all parts together."""
    found = np.zeros(size, dtype=np.int64)
    for part in parts:
        table = read_table(store, part)
        found[table["key"].to_numpy()] += table["documents"].to_numpy()
    return found if bound is None else np.minimum(found, bound)


def narrowed(
    ctx: Context, step: Step, parts: Sequence[Part], label: str, how: How = COUNTED, bound: int | None = None
) -> tuple[Part, ...]:
    """At most as many tallies as one task opens, with the content of all.

    Args:
        step: of the merges; its parameters name the bound.
        how: columns and what is done to them.
        bound: sums stay at most this.
    """

    def merged(groups: Sequence[Sequence[Part]]) -> list[Part]:
        items = [Item(tuple(one.blob.sha256 for one in some), _Merge(tuple(some), how, bound)) for some in groups]
        return [made[0] for made in run_items(ctx, step, _merge, items, label=label)]

    return tuple(levels(parts, merged))


def merge(tables: Sequence[pa.Table], how: How = COUNTED, bound: int | None = None) -> pa.Table:
    """One row per key, by key."""
    table = pa.concat_tables(tables)
    found = table.group_by("key").aggregate(list(how.items())).sort_by("key")
    columns: dict[str, Any] = {"key": found["key"]}
    for name, what in how.items():
        column = found[f"{name}_{what}"].cast(table.schema.field(name).type)
        bounded = bound is not None and what == "sum"
        columns[name] = pc.min_element_wise(column, bound).cast(column.type) if bounded else column
    return pa.table(columns)


@dataclass(frozen=True)
class _Merge:
    parts: tuple[Part, ...]
    how: How
    bound: int | None


def _merge(store: Store, task: _Merge) -> tuple[Part, ...]:
    table = merge([read_table(store, part) for part in task.parts], task.how, task.bound)
    looked_at = sum(int(part.stats.get("looked_at", 0)) for part in task.parts)
    return (write_table(store, "tally.parquet", table, stats={"looked_at": looked_at}),)
