"""Measured manifests of two models as pairs, one reader for each asset that measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from plinth.evaluation.comparison.pairs import Pairs, align
from plinth.records import Manifest, Part
from plinth.storage.parts import read_table
from plinth.storage.store import Store

Rows = dict[str, dict[str, Any]]
Reader = Callable[[Store, Manifest, Manifest], Iterator[Pairs]]

BITS_PER_BYTE = "bits per byte"
#: Columns of documents that are slices, where they are there; and the beginning of those that a recipe names.
AXES, OWN_AXIS = ("bucket", "language", "domain", "length"), "slice_"
#: What lm-evaluation-harness itself made of likelihoods: bits of the right answer are a measure of their own.
_RIGHT_ANSWER = "bits per byte of the right answer"


def reader(asset: str) -> Reader | None:
    """The reader of an asset, or None where it measures nothing of a model."""
    return READERS.get(asset.partition("/")[0])


def read(store: Store, a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> list[Pairs]:
    """Pairs of every asset that both models were measured by, in the order of their names."""
    found: list[Pairs] = []
    for asset in sorted(set(a) & set(b)):
        one = reader(asset)
        found += one(store, a[asset], b[asset]) if one else ()
    return found


def _evaluation(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Held-out documents, and items of protected sets by set."""
    documents = [_documents(_table(store, made, "documents.parquet")) for made in (a, b)]
    yield align("slices", BITS_PER_BYTE, *documents, fewer_is_better=True, ratio=True)
    items = [_protected(_table(store, made, "items.parquet")) for made in (a, b)]
    for name in sorted(set(items[0]) & set(items[1])):
        yield align("protected", name, items[0][name], items[1][name], fewer_is_better=True, ratio=True)


def _documents(table: pa.Table) -> Rows:
    axes = [name for name in table.schema.names if name in AXES or name.startswith(OWN_AXIS)]
    return {
        row["id"].hex(): {
            "value": row["model_bits"],
            "weight": row["bytes"],
            "text": row.get("text"),
            "source": row.get("uri", ""),
            "slices": [f"{axis.removeprefix(OWN_AXIS)} {row[axis]}" for axis in axes],
        }
        for row in table.to_pylist()
    }


def _protected(table: pa.Table | None) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in table.to_pylist() if table is not None else ():
        found.setdefault(row["set"], {})[row["item"]] = {
            "value": row["model_bits"],
            "weight": row["bytes"],
            "status": row["status"],
            "slices": [f"status {row['status']}"],
        }
    return found


def _tasks(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Every metric of every task that is a mean or ratio over items, and the bits of the right answers."""
    ours, theirs = ({part.name.removesuffix(".parquet"): part for part in made.parts} for made in (a, b))
    for task in sorted(set(ours) & set(theirs)):
        scored = [_task(store, part[task]) for part in (ours, theirs)]
        for measure in sorted(set(scored[0]) & set(scored[1])):
            fewer = measure == _RIGHT_ANSWER or not _higher(ours[task], measure)
            ratio = any("weight" in row for row in scored[0][measure].values())
            pair = (scored[0][measure], scored[1][measure])
            yield align("tasks", f"{task}: {measure}", *pair, fewer_is_better=fewer, ratio=ratio)


def _task(store: Store, part: Part) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in read_table(store, part).to_pylist():
        item = row["hash"]
        if row["reason"] or row["document"] is None:
            continue  # damaged
        if row["bits"] is not None and row["bytes"]:
            right = {"value": row["bits"], "weight": row["bytes"], "cluster": item}
            found.setdefault(_RIGHT_ANSWER, {})[item] = right
        if row["score"] is not None:
            name = row["metric"] if row["filter"] == "none" else f"{row['metric']},{row['filter']}"
            weight = {} if row["weight"] is None else {"weight": row["weight"]}
            found.setdefault(name, {})[item] = {"value": row["score"], "cluster": item, **weight}
    return found


def _higher(part: Part, measure: str) -> bool:
    return bool(part.stats["metrics"].get(measure, {}).get("higher_is_better", True))


READERS: Mapping[str, Reader] = {"evaluation": _evaluation, "tasks": _tasks}


def _table(store: Store, made: Manifest, name: str) -> pa.Table | None:
    parts = made.named(name)
    return read_table(store, parts[0]) if parts else None
