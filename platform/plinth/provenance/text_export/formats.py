"""Rows to files: Parquet, or JSON lines, plain, gzipped or Zstandard. The same rows give the same bytes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from plinth.storage.destination import DigestWriter, Sink
from plinth.storage.parts import RowGroups, parquet_encoding

Write = Callable[[pa.Schema, Iterable[pa.RecordBatch], DigestWriter], None]


def write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: DigestWriter) -> None:
    """Row groups of bounded rows and bytes, Zstandard."""
    groups = RowGroups(schema)

    def filled() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from groups.add(batch)
        yield from groups.rest()

    with pq.ParquetWriter(pa.PythonFile(out, mode="w"), schema, **parquet_encoding(schema)) as file:
        for group in filled():
            file.write_batch(group, row_group_size=group.num_rows)


def write_jsonl(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: Sink) -> None:
    """One object per line, keys in the order of the columns; `metadata` is an object, times are ISO 8601."""
    for batch in batches:
        for row in batch.to_pylist():
            row["metadata"] = json.loads(row["metadata"])
            out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_text).encode() + b"\n")


def _gzipped(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: DigestWriter) -> None:
    with gzip.GzipFile("", "wb", 6, out, mtime=0) as packed:
        write_jsonl(schema, batches, packed)


def _zstandard(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: DigestWriter) -> None:
    with pa.CompressedOutputStream(pa.PythonFile(out, mode="w"), "zstd") as packed:
        write_jsonl(schema, batches, packed)


#: By the ending of a file's name, which is the name of the format.
FORMATS: Mapping[str, Write] = {
    "parquet": write_parquet,
    "jsonl": write_jsonl,
    "jsonl.gz": _gzipped,
    "jsonl.zst": _zstandard,
}


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON")
