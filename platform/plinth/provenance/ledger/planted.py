"""Rows of the ledger for planted copies: documents that no filter judged. Their decision is `canary`, so that no count
of what is trained on has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from plinth.corpus.canaries.parameters import BUCKET
from plinth.provenance.ledger.columns import hexadecimal
from plinth.provenance.ledger.placement import TokenPlaces, Tokens
from plinth.records import Part
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store

DECISION = "canary"
_READ = ["id", "uri", "captured_at", "snapshot", "licence", "mime", "source_bytes"]


@dataclass(frozen=True)
class PlantedTask:
    """A part of planted text, its places in the shards, and the ledger's schema."""

    part: Part
    tokens: Tokens
    schema: pa.Schema
    weight: float | None
    epochs: float | None


def write_planted(store: Store, task: PlantedTask) -> tuple[Part, ...]:
    """Rows of the ledger beside a part of planted text."""
    return (write_batches(store, task.part.name, task.schema, _batches(store, task)),)


def _batches(store: Store, task: PlantedTask) -> Iterator[pa.RecordBatch]:
    places = TokenPlaces(store, BUCKET, task.part.name, task.tokens)
    for batch in iter_batches(store, task.part, _READ):
        rows = batch.num_rows
        row: dict[str, Any] = {name: batch.column(name) for name in _READ[1:]}
        row |= {"id": hexadecimal(batch.column("id")), "text_bytes": batch.column("source_bytes")}
        row |= _same(rows, bucket=BUCKET, domain=BUCKET, decision=DECISION, edits=0, edited_characters=0)
        row |= _same(rows, mixture_weight=task.weight, mixture_epochs=task.epochs, may_train=True)
        row["fired"] = [[]] * rows
        row |= places.of(batch.column("id"), pa.array([True] * rows))
        yield _filled(row, rows, task.schema)


def _same(rows: int, **values: Any) -> dict[str, Sequence[Any]]:
    return {name: [value] * rows for name, value in values.items()}


def _filled(row: dict[str, Any], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of the schema; columns without a value are null."""
    columns = []
    for field in schema:
        value = row.get(field.name)
        column = pa.nulls(rows, field.type) if value is None else value
        columns.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
