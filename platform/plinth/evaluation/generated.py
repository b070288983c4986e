"""Text that a checkpoint wrote, as documents for annotators: they are no documents of the corpus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from plinth.compute.context import Context, manifest
from plinth.corpus.documents.documents import document_id
from plinth.records import Manifest, Step
from plinth.schemas import DOCUMENT_SCHEMA
from plinth.storage.parts import write_table


def documents(ctx: Context, bucket: str, texts: Mapping[str, str]) -> Manifest:
    """One part with a document for each text, by a URI of its own, in this order."""
    rows = [_document(bucket, uri, text) for uri, text in texts.items()]
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    return manifest(f"{bucket}/documents", Step(name=bucket, version="1"), {}, (part,))


def _document(bucket: str, uri: str, text: str) -> dict[str, Any]:
    return {
        "id": document_id(bucket, uri, text.encode()), "text": text, "uri": uri, "captured_at": None,
        "snapshot": bucket, "licence": "unknown", "mime": "text/plain", "source_bytes": len(text.encode()),
        "extra": "{}",
    }  # fmt: skip
