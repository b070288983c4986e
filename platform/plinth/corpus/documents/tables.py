"""Rows of documents: to record batches, in bounded memory, with the counts that manifests carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import pyarrow as pa

from plinth.corpus.sources.record import Reject
from plinth.storage.atomic import named_failures
from plinth.storage.parts import DOCUMENT_SCHEMA, REJECT_SCHEMA
from plinth.storage.store import Store

BATCH_ROWS = 1024
BATCH_BYTES = 16 * 2**20


def document_batches(rows: Iterable[tuple[Any, ...]], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    """Batches of DOCUMENT_SCHEMA out of its rows; `counts` receives documents, text_bytes and source_bytes."""
    held: list[tuple[Any, ...]] = []
    size = 0
    counts.update(documents=0, text_bytes=0, source_bytes=0)
    for row in rows:
        held.append(row)
        size += len(row[1])
        counts["source_bytes"] += row[7]
        if len(held) == BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch(held, DOCUMENT_SCHEMA, counts)
            held, size = [], 0
    if held:
        yield _batch(held, DOCUMENT_SCHEMA, counts)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema, counts: Counter[str]) -> pa.RecordBatch:
    columns = [pa.array(column, type=field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    text = columns[1]
    counts["documents"] += len(rows)
    counts["text_bytes"] += _data_bytes(text)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _data_bytes(text: pa.LargeStringArray) -> int:
    """UTF-8 bytes of a freshly made string column."""
    return int(text.buffers()[2].size) if text.buffers()[2] else 0


class RejectSpill:
    """Rejects on their way to a part, kept on disk: a hostile file may have more of them than memory holds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stack = ExitStack()
        self._held: list[Reject] = []
        self._counts: Counter[str] = Counter()
        self._bytes = 0

    def __enter__(self) -> RejectSpill:
        self._path = self._stack.enter_context(self._store.staging(".arrow"))
        self._stack.enter_context(named_failures(self._path))
        self._sink = self._stack.enter_context(pa.OSFile(str(self._path), "wb"))
        self._writer = pa.ipc.new_stream(self._sink, REJECT_SCHEMA)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, tb)

    def add(self, reject: Reject) -> None:
        """Keep one reject."""
        self._counts[reject.reason] += 1
        self._bytes += reject.source_bytes
        self._held.append(reject)
        if len(self._held) == BATCH_ROWS:
            self._flush()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Everything kept, in order; nothing can be added afterwards."""
        self._flush()
        self._writer.close()
        self._sink.close()
        with pa.OSFile(str(self._path), "rb") as source, pa.ipc.open_stream(source) as reader:
            yield from reader

    def stats(self) -> dict[str, Any]:
        """Rejects by reason, and the bytes of source they stand for."""
        return {"rejects": dict(sorted(self._counts.items())), "rejected_bytes": self._bytes}

    def _flush(self) -> None:
        if self._held:
            self._writer.write_batch(reject_batch(self._held))
            self._held = []


def reject_batch(rejects: Iterable[Reject]) -> pa.RecordBatch:
    """A batch of REJECT_SCHEMA."""
    rows = [
        {
            "uri": reject.uri.encode("utf-8", "backslashreplace").decode(),
            "where": reject.where,
            "reason": reject.reason,
            "detail": reject.brief,
            "source_bytes": reject.source_bytes,
        }
        for reject in rejects
    ]
    return pa.RecordBatch.from_pylist(rows, schema=REJECT_SCHEMA)
