"""Run an annotator over the parts of a bucket, and count what it found."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.stage import Item, manifest, renamed, run_items
from plinth.context import Context
from plinth.corpus.annotate.base import Annotator
from plinth.corpus.annotate.registry import annotator, parameters
from plinth.errors import StageError
from plinth.records import Frozen, Manifest, Part, Step
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store

#: Rows handed to an annotator at once.
BATCH_ROWS = 1024
#: Label columns with more values than this are not counted by value.
MAX_LABELS = 200


@dataclass(frozen=True)
class _Task:
    name: str
    params: Frozen
    documents: Part


def run(
    ctx: Context, bucket_name: str, annotator_name: str, raw_params: Mapping[str, Any], documents: Manifest
) -> Manifest:
    """The sidecar of one annotator over one bucket.

    Returns:
        Manifest of `part-*`, aligned with those of `documents`. Statistics: `documents`, and by column
        `columns` (values, nulls, sum, min, max of numbers; true of booleans) and `labels` (counts by value).

    Raises:
        RecipeError: no such annotator or parameter.
        StageError: the annotator did not return a row for each document.
    """
    chosen, params = annotator(annotator_name), parameters(annotator_name, raw_params)
    step = Step(
        name=f"annotate/{annotator_name}",
        version=chosen.version,
        # Character classes come from Python's tables: another Unicode version is another function.
        params={"params": params.model_dump(mode="json"), "unicode": unicodedata.unidata_version},
    )
    parts = documents.named("part-")
    items = [Item((part.blob.sha256,), _Task(annotator_name, params, part), part.rows) for part in parts]
    asset = f"{bucket_name}/{annotator_name}"
    made = [done[0] for done in run_items(ctx, step, _annotate, items, label=asset)]
    inputs = {f"{bucket_name}/documents": documents}
    return manifest(asset, step, inputs, renamed(made, "part"), _total(made))


def _annotate(store: Store, task: _Task) -> tuple[Part, ...]:
    chosen = annotator(task.name)
    counts = _Counts(chosen)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(store, task.documents, chosen.reads, BATCH_ROWS):
            made = chosen.annotate(batch, task.params)
            if made.num_rows != batch.num_rows or not made.schema.equals(chosen.schema):
                raise StageError(
                    f"annotator {task.name} broke its contract",
                    found=f"{made.num_rows} rows of {made.schema.names}",
                    expected=f"{batch.num_rows} rows of {chosen.schema.names}",
                )
            counts.add(made)
            yield made

    part = write_batches(store, "part.parquet", chosen.schema, batches())
    return (part.model_copy(update={"stats": counts.stats()}),)


class _Counts:
    """Running statistics of a sidecar's columns."""

    def __init__(self, chosen: Annotator) -> None:
        self.documents = 0
        self.columns: dict[str, dict[str, Any]] = {}
        self.labels: dict[str, dict[str, int]] = {
            field.name: {} for field in chosen.schema if pa.types.is_string(field.type)
        }

    def add(self, batch: pa.RecordBatch) -> None:
        self.documents += batch.num_rows
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_boolean(field.type):
                _merge(self.columns, field.name, {"true": pc.sum(column).as_py() or 0, "nulls": column.null_count})
            elif pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
                _merge(self.columns, field.name, _numbers(column))
            elif field.name in self.labels:
                found = self.labels[field.name]
                for row in pc.value_counts(column).to_pylist():
                    if row["values"] in found or len(found) < MAX_LABELS:
                        found[row["values"]] = found.get(row["values"], 0) + row["counts"]

    def stats(self) -> dict[str, Any]:
        labels = {name: dict(sorted(counts.items())) for name, counts in self.labels.items()}
        return {"documents": self.documents, "columns": self.columns, "labels": labels}


def _numbers(column: pa.Array) -> dict[str, Any]:
    if len(column) == column.null_count:
        return {"values": 0, "nulls": column.null_count, "sum": 0}
    limits = pc.min_max(column).as_py()
    return {
        "values": len(column) - column.null_count,
        "nulls": column.null_count,
        "sum": round(float(pc.sum(column).as_py()), 6),
        **limits,
    }


def _merge(columns: dict[str, dict[str, Any]], name: str, more: Mapping[str, Any]) -> None:
    have = columns.setdefault(name, {})
    for key, value in more.items():
        if key == "min":
            have[key] = min(have.get(key, value), value)
        elif key == "max":
            have[key] = max(have.get(key, value), value)
        else:
            have[key] = have.get(key, 0) + value


def _total(parts: list[Part]) -> dict[str, Any]:
    total: dict[str, Any] = {"documents": 0, "columns": {}, "labels": {}}
    for part in parts:
        total["documents"] += part.stats["documents"]
        for name, facts in part.stats["columns"].items():
            _merge(total["columns"], name, facts)
        for name, counts in part.stats["labels"].items():
            _merge(total["labels"], name, counts)
    return total
