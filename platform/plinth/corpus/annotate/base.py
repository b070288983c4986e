"""What an annotator is: a pure function over batches of documents, and what the catalogue says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from plinth.records import Frozen


class NoParams(Frozen):
    """For annotators that have nothing to set."""


@dataclass(frozen=True)
class Annotator:
    """One sidecar's worth of scores, labels or spans.

    Args:
        name: of the sidecar, and the first half of its columns in policies (`name.column`).
        version: of the code; raise it when the same text would get other values.
        description: one sentence for the catalogue.
        source: the paper, project or library that the values follow.
        params: frozen model of the parameters; the recipe gives them by name.
        schema: columns of the sidecar.
        reads: columns of the documents that the function needs.
        annotate: `(batch with those columns, params) -> batch with the schema`, row for row.
    """

    name: str
    version: str
    description: str
    source: str
    params: type[Frozen]
    schema: pa.Schema
    reads: tuple[str, ...]
    annotate: Callable[[pa.RecordBatch, Any], pa.RecordBatch]
