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


def _protected(table: pa.Table) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in table.to_pylist():
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


def _probes(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Of every probe the bits of right answers and, where there is a choice, accuracy above chance; by template."""
    sides = [_table(store, made, "items.parquet").to_pylist() for made in (a, b)]
    for measure, value, weight in (("bits per byte", "bits", "bytes"), ("accuracy above chance", "centred", None)):
        scored = [_by_name(rows, "probe", value, weight) for rows in sides]
        for probe in sorted(set(scored[0]) & set(scored[1])):
            pair, fewer = (scored[0][probe], scored[1][probe]), weight is not None
            yield align("probes", f"{probe}: {measure}", *pair, fewer_is_better=fewer, ratio=fewer)


def _proxies(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Of every family of proxies the items that pass, and the bits of right answers."""
    sides = [_table(store, made, "items.parquet").to_pylist() for made in (a, b)]
    for measure, value, weight in (("passed", "passed", None), ("bits per byte", "bits", "bytes")):
        scored = [_by_name(rows, "family", value, weight) for rows in sides]
        for family in sorted(set(scored[0]) & set(scored[1])):
            pair, fewer = (scored[0][family], scored[1][family]), weight is not None
            yield align("proxies", f"{family}: {measure}", *pair, fewer_is_better=fewer, ratio=fewer)


def _by_name(rows: list[dict[str, Any]], name: str, value: str, weight: str | None) -> dict[str, Rows]:
    """Items that have a value, by probe or family."""
    found: dict[str, Rows] = {}
    for row in rows:
        if row[value] is not None:
            item = str(row.get("item", row.get("number")))
            found.setdefault(row[name], {})[item] = {
                "value": float(row[value]),
                "cluster": row.get("template", item),
                "status": row.get("status", ""),
                "text": row.get("prompt"),
                **({"weight": float(row[weight])} if weight else {}),
            }
    return found


READERS: Mapping[str, Reader] = {"evaluation": _evaluation, "probes": _probes, "proxies": _proxies, "tasks": _tasks}


def _table(store: Store, made: Manifest, name: str) -> pa.Table:
    """A part by its name; without rows where the asset has no such part."""
    parts = made.named(name)
    return read_table(store, parts[0]) if parts else pa.table({})
