"""Tables of documents: what a test does not say of a row has a plain value."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from plinth.records import Part
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.state import State

USUAL = {"uri": "u", "captured_at": None, "snapshot": "s", "licence": "MIT", "mime": "text/plain", "extra": "{}"}


def document_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows with at least a `text`; a missing id is derived from its SHA-256."""
    return pa.Table.from_pylist([_row(**row) for row in rows], schema=DOCUMENT_SCHEMA)


def document_part(ctx: State, rows: Iterable[Mapping[str, Any]], name: str = "part-00000.parquet") -> Part:
    """The same, stored."""
    return write_table(ctx.store, name, document_table(rows))


def _row(text: str, **given: Any) -> dict[str, Any]:
    made = {"id": hashlib.sha256(text.encode()).digest()[:16], "text": text, "source_bytes": len(text)}
    return made | USUAL | given
