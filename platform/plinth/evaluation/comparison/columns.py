"""Measured tables as columns that `pairs.align` takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from plinth.evaluation.comparison.pairs import Pairs, align
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.store import Store


def part_table(store: Store, made: Manifest, name: str) -> pa.Table:
    """A part by its name; without rows or columns where the asset has no such part."""
    parts = made.named(name)
    return read_table(store, parts[0]) if parts else pa.table({})


def groups(column: str, *tables: pa.Table) -> Iterator[tuple[str, list[pa.Table]]]:
    """The rows of each value of a column by name; none of a table that lacks the value, or has no columns."""
    known = [table for table in tables if column in table.schema.names]
    if known:
        every = [table if column in table.schema.names else known[0].slice(0, 0) for table in tables]
        names = set[str]().union(*(pc.unique(table[column]).to_pylist() for table in every))
        for name in sorted(names):
            yield name, [table.filter(pc.equal(table[column], name)) for table in every]


def chosen(
    table: pa.Table,
    value: str,
    weight: str | None = None,
    *,
    item: str = "item",
    cluster: str | None = None,
    text: str | None = None,
    slices: pa.Array | None = None,
) -> pa.Table:
    """Items with their values, from columns of these names; status and weight where the table has them."""
    names = {"item": item, "value": value, "weight": weight, "cluster": cluster, "text": text, "status": "status"}
    found = {to: table[name] for to, name in names.items() if name in table.schema.names}
    found |= {to: pc.cast(found[to], pa.float64()) for to in ("value", "weight") if to in found}
    found |= {"item": pc.cast(found["item"], pa.string())} | ({} if slices is None else {"slices": slices})
    return pa.table(found)


def by_name(
    kind: str, name: str, measure: str, sides: Sequence[pa.Table], value: str, weight: str | None, **columns: str
) -> Iterator[Pairs]:
    """Pairs of the items that have a value, by probe or family."""
    for group, own in groups(name, *sides):
        known = [side.filter(pc.is_valid(side[value])) for side in own]
        if any(len(side) for side in known):
            pair, ratio = [chosen(side, value, weight, **columns) for side in known], weight is not None
            yield align(kind, f"{group}: {measure}", *pair, fewer_is_better=ratio, ratio=ratio)
