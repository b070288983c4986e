"""Tables of scored documents, as the evaluation writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.evaluation.slices.tables import DOCUMENT_COLUMNS, on_grid


@pytest.fixture
def scored() -> Callable[[Sequence[dict[str, Any]]], pa.Table]:
    """A table of scored documents; what a row lacks is the same in all."""
    return _scored


def _scored(rows: Sequence[dict[str, Any]]) -> pa.Table:
    whole = []
    for number, given in enumerate(rows):
        row = {
            "bucket": "web",
            "language": "en",
            "domain": "a.example",
            "length": "< 1 KiB",
            "bytes": 100,
            "tokens": 25,
        }
        row |= {"id": number.to_bytes(16, "big"), "text": bytes(16), "uri": f"file:///{number}", "model_bits": 200.0}
        row |= {"gzip_bits": 300.0, "trigram_bits": 250.0, **given}
        whole.append(row | {"model_bits": float(on_grid(np.array([row["model_bits"]]))[0])})
    names = list(dict.fromkeys([*DOCUMENT_COLUMNS.names, *(name for row in rows for name in row)]))
    schema = pa.schema([_field(name) for name in names])
    return pa.Table.from_pylist(whole, schema)


def _field(name: str) -> pa.Field:
    return DOCUMENT_COLUMNS.field(name) if name in DOCUMENT_COLUMNS.names else pa.field(name, pa.string())
