"""Held-out documents and protected items: counted again, compared between models, shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.evaluation.comparison.pairs import Pairs, align, chosen, groups, labelled, part_table
from plinth.evaluation.measurement import Figures, Stats
from plinth.evaluation.parameters import PARENT_SLICES
from plinth.evaluation.slices import tables, totals
from plinth.evaluation.slices.tables import AXIS
from plinth.evaluation.slices.totals import in_order
from plinth.records import Manifest
from plinth.report.evaluation import BITS, MeasureGroup, Section, TextTable, measure
from plinth.storage.parts import named_table
from plinth.storage.store import Store

#: Columns of documents that are slices, where they are there.
AXES = ("bucket", "language", "domain", "length")
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    table = named_table(ctx.store, made, tables.DOCUMENTS)
    labels = np.array(table["bucket"].to_pylist(), dtype=object)
    counted = {name: _rates(table.filter(pa.array(labels == name))) for name in sorted(set(labels))}
    names = ("bytes", "model", "gzip", "trigram")
    return {name: {one: row[one] for one in names} for name, row in made.stats["slices"].items()}, counted


def _rates(table: pa.Table) -> dict[str, Any]:
    """Bytes of some documents, and bits per byte of model and baselines: ratios of sums, as `totals.row` has them."""
    size = int(pc.sum(table["bytes"]).as_py())
    sums = {name: totals.exact_sum(table[f"{name}_bits"].to_numpy()) for name in ("model", "gzip", "trigram")}
    return {"bytes": size, **{name: round(own / size, 6) for name, own in sums.items()}}


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Held-out documents, and items of protected sets by set."""
    documents = [_documents(part_table(store, made, "documents.parquet")) for made in (a, b)]
    yield align("slices", BITS, *documents, fewer_is_better=True, ratio=True)
    items = [part_table(store, made, "items.parquet") for made in (a, b)]
    for name, (ours, theirs) in groups("set", *items):
        sides = [_protected(side) for side in (ours, theirs)]
        yield align("protected", name, *sides, fewer_is_better=True, ratio=True)


def pairs_of_parent(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Held-out documents of the run that b came of, and that a began from."""
    documents = [_documents(part_table(store, made, "documents.parquet")) for made in (a, b)]
    yield align(PARENT_SLICES, BITS, *documents, fewer_is_better=True, ratio=True)


def _documents(table: pa.Table) -> pa.Table:
    names = table.schema.names
    axes = {name: name.removeprefix(AXIS) for name in names if name in AXES or name.startswith(AXIS)}
    columns: dict[str, Any] = {
        "item": _hexadecimal(table["id"]),
        "value": table["model_bits"],
        "weight": table["bytes"],
        "slices": labelled(table, axes),
    }
    return pa.table(columns | {to: table[name] for to, name in (("text", "text"), ("source", "uri")) if name in names})


def _hexadecimal(ids: pa.ChunkedArray) -> pa.Array:
    """Identities of 16 bytes as text of 32 digits."""
    if not len(ids):
        return pa.array([], pa.string())
    held = ids.combine_chunks()
    packed = np.frombuffer(held.buffers()[1], np.uint8)[16 * held.offset : 16 * (held.offset + len(held))]
    digits = _DIGITS[np.stack([packed >> 4, packed & 15], axis=1)]
    offsets = np.arange(0, digits.size + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(held), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits)))


def _protected(table: pa.Table) -> pa.Table:
    return chosen(table, "model_bits", "bytes", slices=labelled(table, {"status": "status"}))


def section(_: str, stats: Stats) -> Section:
    """Bits per byte by slice, of every axis, with gzip as the reference that everybody knows."""
    axes = {"bucket": stats["slices"]} | stats["axes"]
    own = axes.pop("bucket")
    groups = [_slices("all held-out text, then by bucket", "bucket", {"all": stats["overall"]} | own)]
    groups += [_slices(f"by {axis}", axis, rows) for axis, rows in axes.items() if len(rows) > 1]
    return Section(
        key="slices",
        title="Held-out text",
        lead="Bits of the model over bytes of text: comparable between tokenizers. Intervals resample documents.",
        groups=tuple(groups),
        tables=tuple(_items(stats.get("protected", {}))),
    )


def _slices(title: str, axis: str, rows: Mapping[str, Stats]) -> MeasureGroup:
    measures = (measure(name, rows[name], "model", reference=rows[name]["gzip"]) for name in in_order(axis, rows))
    return MeasureGroup(title=title, unit=BITS, better="lower", reference_name="gzip -9", measures=tuple(measures))


def _items(protected: Mapping[str, Mapping[str, Stats]]) -> Iterable[TextTable]:
    """Items of protected sets by whether training text held them."""
    rows = [
        (name, status, f"{row['items']:,}", f"{row['model']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}")
        for name, found in protected.items()
        for status, row in found.items()
    ]
    if rows:
        yield TextTable(
            title="Protected sets, by whether training text held the item",
            header=("set", "status", "items", BITS, "95% interval"),
            rows=tuple(rows),
        )
