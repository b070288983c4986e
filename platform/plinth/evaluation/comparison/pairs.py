"""Paired items: the same items measured on two models, stored as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.errors import IntegrityError
from plinth.evaluation.measurement import measurement_of
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.store import Store

CLEAN, CONTAMINATED, SUSPECTED = "clean", "contaminated", "suspected"
#: Statuses that mark an item as seen in training.
SEEN = (CONTAMINATED, SUSPECTED)

#: One row per item. `slices` are labels such as `bucket web`; `weight` is the denominator of a ratio of sums; `status`
#: is empty if the item was not searched for in training text; `source` identifies the item for readers.
ROWS = pa.schema(
    [
        pa.field("item", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("slices", pa.list_(pa.string()), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("weight", pa.float64(), nullable=False),
        pa.field("a", pa.float64(), nullable=False),
        pa.field("b", pa.float64(), nullable=False),
    ]
)
#: Columns that must be equal for both models.
_SAME = ("weight", "cluster", "text")


@dataclass(frozen=True)
class Pairs:
    """One measure on both models.

    Args:
        kind: kind of measure, such as `slices`; a key of the measurement's `headings`.
        measure: name within the kind.
        rows: table with the schema `ROWS`, sorted by item.
        fewer_is_better: True if the values are bits.
        ratio: True if the measure is a ratio of sums (values over `weight`, such as bits over bytes); otherwise values
            are averaged.
        only_a, only_b: number of items measured on one model only; they are excluded from differences.
    """

    kind: str
    measure: str
    rows: pa.Table
    fewer_is_better: bool
    ratio: bool
    only_a: int = 0
    only_b: int = 0

    def column(self, name: str) -> NDArray[np.float64]:
        """Return the numeric column `name` as FP64, [N]."""
        found: NDArray[np.float64] = self.rows[name].to_numpy()
        return found

    def clusters(self) -> NDArray[np.int64]:
        """Return the cluster number of each row [N], numbered by first appearance."""
        found: NDArray[np.int64] = _encoded(self.rows["cluster"])[0]
        return found

    def seen(self) -> NDArray[np.bool_]:
        """Return a mask [N] that is True for contaminated and suspected items."""
        known = pc.is_in(self.rows["status"], value_set=pa.array(SEEN))
        found: NDArray[np.bool_] = known.to_numpy()
        return found

    def where(self, kept: NDArray[np.bool_]) -> Pairs:
        """Return the pairs whose rows the mask `kept` selects."""
        return Pairs(self.kind, self.measure, self.rows.filter(pa.array(kept)), self.fewer_is_better, self.ratio)


def align(kind: str, measure: str, a: pa.Table, b: pa.Table, *, fewer_is_better: bool, ratio: bool) -> Pairs:
    """Pair the rows of two models by item. The n-th occurrence of an item in `a` is paired with its n-th occurrence in
    `b`.

    An item counts as unmeasured if its value is not finite or its weight is 0.

    Args:
        a, b: tables with the columns `item` and `value`, and optionally other columns of `ROWS` and `text`, which
            distinguishes items of the same name.

    Raises:
        IntegrityError: an item has a different weight, cluster or text in the two tables.
    """
    count_a, count_b = a.num_rows, b.num_rows
    a, b = _valued(a, ratio), _valued(b, ratio)
    ours, theirs = _joined(a["item"], b["item"])
    left, right = a.take(pa.array(ours)), b.take(pa.array(theirs))
    _require_same(measure, left, right)
    count = len(ours)
    columns = {
        "cluster": left["item"],
        "slices": pa.nulls(count, pa.list_(pa.string())).fill_null([]),
        "status": pa.repeat("", count),
        "source": pa.repeat("", count),
        "weight": np.ones(count),
        **{name: left[name] for name in left.schema.names},
        "a": left["value"],
        "b": right["value"],
    }
    table = pa.table({field.name: _cast(columns[field.name], field.type) for field in ROWS}, schema=ROWS)
    return Pairs(kind, measure, table, fewer_is_better, ratio, count_a - count, count_b - count)


def _valued(table: pa.Table, ratio: bool) -> pa.Table:
    known = pc.is_finite(table["value"])
    if ratio and "weight" in table.schema.names:
        known = pc.and_(known, pc.greater(table["weight"], 0))
    return table.filter(known)


def _cast(values: pa.Array | pa.ChunkedArray | NDArray[np.float64], kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    return pa.array(values, kind) if isinstance(values, np.ndarray) else values.cast(kind)


def _joined(a: pa.ChunkedArray, b: pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return two row-number arrays, for `a` and for `b`: the rows of the items that occur in both, sorted by item."""
    codes, names = _encoded(pa.chunked_array([*a.chunks, *b.chunks], pa.string()))
    rank = np.empty(len(names), dtype=np.int64)
    rank[pc.sort_indices(names).to_numpy()] = np.arange(len(names))
    codes, most = rank[codes], len(codes) + 1
    left, right = (own * most + _occurrence(own) for own in (codes[: len(a)], codes[len(a) :]))
    _, ours, theirs = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    return ours, theirs


def _encoded(names: pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Return an integer code for each name, numbered by first appearance, and the distinct names."""
    found = pa.chunked_array(names.chunks, names.type).combine_chunks().dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), found.dictionary


def _occurrence(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each code the number of equal codes before it, [N]."""
    order = np.argsort(codes, kind="stable")
    ranked = codes[order]
    found = np.empty(len(codes), dtype=np.int64)
    found[order] = np.arange(len(codes)) - np.searchsorted(ranked, ranked)
    return found


def _require_same(measure: str, a: pa.Table, b: pa.Table) -> None:
    for name in _SAME:
        known = [side[name] for side in (a, b) if name in side.schema.names]
        if not known:
            continue
        ours, theirs = known if len(known) == 2 else (known[0], pa.nulls(a.num_rows, known[0].type))
        same = pc.or_(pc.fill_null(pc.equal(ours, theirs), False), pc.and_(pc.is_null(ours), pc.is_null(theirs)))
        if len(a) and not pc.all(same).as_py():
            at = pc.index(same, False).as_py()
            raise IntegrityError(
                f"{measure}: the two models were measured on different items",
                found=f"{name} of item {a['item'][at]}: {str(ours[at])[:80]} and {str(theirs[at])[:80]}",
                expected="the same items, from the same corpus with the same limits",
                remedy="run `plinth model compare A B`, which measures both models on the same items",
            )


def labelled(table: pa.Table, axes: dict[str, str]) -> pa.Array:
    """Return the slice labels of every row: one label per column in `axes` (axis name by column), such as `bucket
    web`."""
    named = [
        pc.binary_join_element_wise(axis, pc.cast(table[column], pa.string()), " ") for column, axis in axes.items()
    ]
    rows, count = table.num_rows, len(axes)
    every = pa.chunked_array([chunk for one in named for chunk in one.chunks], pa.string())
    by_row = (np.arange(rows)[:, None] + rows * np.arange(count)).ravel()
    offsets = pa.array(np.arange(rows + 1) * count, pa.int32())
    return pa.ListArray.from_arrays(offsets, every.take(pa.array(by_row)).combine_chunks())


def largest_slices(pairs: Pairs, most: int) -> tuple[dict[str, NDArray[np.int64]], int]:
    """Return the rows of the `most` largest slices per axis, by weight, and the number of slices omitted.

    The axis is the first word of a label. A slice with all rows, or with the same rows as another slice, is redundant:
    it is left out and not counted as omitted.
    """
    lists = pairs.rows["slices"].combine_chunks()
    owner = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    codes, labels = _encoded(pa.chunked_array([pc.list_flatten(lists)], pa.string()))
    weights = np.bincount(codes, weights=pairs.column("weight")[owner], minlength=len(labels))
    first_words = pc.list_element(pc.split_pattern(labels, " ", max_splits=1), 0)
    ranked = pa.table({"axis": first_words, "weight": -weights, "label": labels})
    order = pc.sort_indices(ranked, [(name, "ascending") for name in ranked.schema.names]).to_numpy()
    axis, _ = _encoded(pa.chunked_array([first_words.take(pa.array(order))], pa.string()))
    kept = order[_occurrence(axis) < most]
    by_label, found, known = np.argsort(codes, kind="stable"), dict[str, NDArray[np.int64]](), set[bytes]()
    bounds = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(labels)))])
    for label, code in sorted(zip(labels.take(pa.array(kept)).to_pylist(), kept.tolist(), strict=True)):
        rows = owner[by_label[bounds[code] : bounds[code + 1]]]
        if len(rows) < pairs.rows.num_rows and rows.tobytes() not in known:
            known.add(rows.tobytes())
            found[label] = rows
    return found, len(labels) - len(kept)


def part_table(store: Store, made: Manifest, name: str) -> pa.Table:
    """Return the table in the manifest's part `name`, or an empty table if the manifest does not have this part."""
    parts = made.named(name)
    return read_table(store, parts[0]) if parts else pa.table({})


def groups(column: str, *tables: pa.Table) -> Iterator[tuple[str, list[pa.Table]]]:
    """Yield each value of a column with the matching rows of every table.

    A table that lacks the column or the value contributes no rows.
    """
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
    """Return a table of items with values and weights from the named columns, and with contamination statuses if
    known."""
    names = {"item": item, "value": value, "weight": weight, "cluster": cluster, "text": text, "status": "status"}
    found = {to: table[name] for to, name in names.items() if name in table.schema.names}
    found |= {to: pc.cast(found[to], pa.float64()) for to in ("value", "weight") if to in found}
    found |= {"item": pc.cast(found["item"], pa.string())} | ({} if slices is None else {"slices": slices})
    return pa.table(found)


def by_name(
    kind: str, name: str, measure: str, sides: Sequence[pa.Table], value: str, weight: str | None, **columns: str
) -> Iterator[Pairs]:
    """Yield the pairs of each probe or task family. Items without a value are omitted."""
    for group, own in groups(name, *sides):
        known = [side.filter(pc.is_valid(side[value])) for side in own]
        if any(len(side) for side in known):
            pair, ratio = [chosen(side, value, weight, **columns) for side in known], weight is not None
            yield align(kind, f"{group}: {measure}", *pair, fewer_is_better=ratio, ratio=ratio)


# Measurements of two models as pairs.
#
# Readers work on Arrow and numpy columns; one measure is in memory at a time.

Reader = Callable[[Store, Manifest, Manifest], Iterator[Pairs]]


def reader(asset: str) -> Reader | None:
    """Return the function that reads the pairs of an asset, or None if the asset has no comparable measure."""
    found = measurement_of(asset)
    return found.pairs if found else None


def read(store: Store, a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> Iterator[Pairs]:
    """Yield the pairs of every asset that measured both models, in order of asset name. Measures without any pair are
    included.

    Raises:
        IntegrityError: the models were measured on different items.
    """
    for asset in sorted(set(a) & set(b)):
        if one := reader(asset):
            yield from one(store, a[asset], b[asset])
