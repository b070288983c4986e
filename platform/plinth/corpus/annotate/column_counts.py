"""Statistics of a sidecar's columns: of a part as it is written, and of all parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plinth.records import Part

#: Of a label column with more values than this, those that come later are counted together.
MAX_LABELS = 200
OTHER = "other"


class ColumnCounts:
    """Running statistics of a sidecar's columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self.documents = 0
        self.columns: dict[str, dict[str, Any]] = {}
        self.labels: dict[str, dict[str, int]] = {
            field.name: {} for field in schema if pa.types.is_string(field.type)
        }

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch."""
        self.documents += batch.num_rows
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_boolean(field.type):
                _merge(self.columns, field.name, {"true": pc.sum(column).as_py() or 0, "nulls": column.null_count})
            elif pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
                _merge(self.columns, field.name, _numbers(column))
            elif pa.types.is_list(field.type):
                lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
                facts = {"spans": int(lengths.sum()), "documents": int((lengths > 0).sum())}
                _merge(self.columns, field.name, facts)
            elif field.name in self.labels:
                counts = {str(row["values"]): row["counts"] for row in pc.value_counts(column).to_pylist()}
                _merge_labels(self.labels, field.name, counts)

    def stats(self) -> dict[str, Any]:
        """The statistics of the rows so far."""
        return _finished(self.documents, self.columns, self.labels)


def _finished(documents: int, columns: dict[str, dict[str, Any]], labels: dict[str, dict[str, int]]) -> dict[str, Any]:
    means = {name: round(facts["sum"] / facts["values"], 6) for name, facts in columns.items() if facts.get("values")}
    return {
        "documents": documents,
        "columns": {name: facts | ({"mean": means[name]} if name in means else {}) for name, facts in columns.items()},
        "labels": {name: dict(sorted(counts.items())) for name, counts in labels.items()},
    }


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


def _merge_labels(labels: dict[str, dict[str, int]], name: str, more: Mapping[str, int]) -> None:
    have = labels.setdefault(name, {})
    for label, count in sorted(more.items()):
        key = label if label in have or len(have) < MAX_LABELS else OTHER
        have[key] = have.get(key, 0) + count


def total(parts: Sequence[Part]) -> dict[str, Any]:
    """The statistics of all parts of a sidecar."""
    columns: dict[str, dict[str, Any]] = {}
    labels: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, facts in part.stats["columns"].items():
            _merge(columns, name, facts)
        for name, counts in part.stats["labels"].items():
            _merge_labels(labels, name, counts)
    return _finished(sum(part.stats["documents"] for part in parts), columns, labels)
