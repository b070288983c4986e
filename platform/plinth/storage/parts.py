"""Tables to and from Parquet blobs in the content store, and schemas of tables shared by several stages.

Bytes are deterministic: equal rows and row groups give equal blobs, in any process.
Does not belong here: columns of one stage, which are defined next to its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plinth.errors import IntegrityError
from plinth.records import Manifest, Part
from plinth.storage.atomic import named_failures
from plinth.storage.store import Store

# Arrow schemas of tables shared by several stages: documents, rejects, edits.
#
# A module of their own, so that users of records alone (`plinth.records`) do not load Arrow.
# Does not belong here: columns of one stage, which are next to its code.

#: Columns of a document part, in order. `id` is 16 bytes of SHA-256 over bucket, uri and content.
DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),
        pa.field("captured_at", pa.timestamp("us", tz="UTC")),
        pa.field("snapshot", pa.string(), nullable=False),
        pa.field("licence", pa.string(), nullable=False),  # SPDX expression, or "unknown"
        pa.field("mime", pa.string(), nullable=False),
        pa.field("source_bytes", pa.int64(), nullable=False),  # bytes of the raw record
        pa.field("extra", pa.string(), nullable=False),  # JSON object
    ]
)

#: A record that could not become a document: `detail` is the finding, `where` the record or offset.
REJECT_SCHEMA = pa.schema(
    [
        pa.field("uri", pa.string(), nullable=False),
        pa.field("where", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("source_bytes", pa.int64(), nullable=False),
    ]
)

#: A change of a document's text. Offsets are Unicode code points in `text`, half open.
EDIT_TYPE = pa.list_(
    pa.struct(
        [
            pa.field("start_cp", pa.int32(), nullable=False),
            pa.field("end_cp", pa.int32(), nullable=False),
            pa.field("replacement", pa.string(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
        ]
    )
)


# Tables to and from Parquet blobs in the content store.
#
# Bytes are deterministic: equal rows and row groups give equal blobs, in any process.

#: Rows per group for readers of a row, a range of keys, or texts batch by batch.
ROW_GROUP_ROWS = 4096
#: Rows per group for readers of whole numeric columns: a sixteenth of the footer, and half the time per value.
SCORE_GROUP_ROWS = 1 << 16
ROW_GROUP_BYTES = 64 * 2**20


def write_table(store: Store, name: str, table: pa.Table, *, stats: Mapping[str, Any] | None = None) -> Part:
    """Write a table as one Parquet blob."""
    return write_batches(store, name, table.schema, table.to_batches(max_chunksize=ROW_GROUP_ROWS), stats=stats)


def write_batches(
    store: Store,
    name: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    stats: Mapping[str, Any] | None = None,
    group_rows: int | None = None,
) -> Part:
    """Write a stream of record batches as one Parquet blob; memory is bounded by one row group.

    Args:
        group_rows: maximum rows per row group; default `ROW_GROUP_ROWS`.

    Raises:
        DiskFullError, WorkspaceError: the blob cannot be written; nothing becomes visible.
    """
    with PartWriter(store, name, schema, group_rows) as writer:
        for batch in batches:  # an error here is the caller's read error
            writer.write(batch)
        return writer.finish(stats)


def write_arrow(store: Store, name: str, table: pa.Table, *, stats: Mapping[str, Any] | None = None) -> Part:
    """Write a table as one Arrow file with a single batch, for memory mapping (`pyarrow.ipc.open_file`).

    Raises:
        DiskFullError, WorkspaceError: the file cannot be written; nothing becomes visible.
    """
    whole = table.combine_chunks()
    with store.staging(".arrow") as path:
        with named_failures(path), pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
            writer.write_table(whole)
        return Part(name=name, blob=store.put_file(path), rows=whole.num_rows, stats=dict(stats or {}))


class PartWriter:
    """Writer of one Parquet blob in batches, for callers with several open blobs. It buffers one row group in memory.

    Use it as a context manager; without `finish` nothing becomes visible.

    Raises:
        DiskFullError, WorkspaceError: the blob cannot be written; nothing becomes visible.
    """

    def __init__(self, store: Store, name: str, schema: pa.Schema, group_rows: int | None = None) -> None:
        self.name, self.schema, self.rows = name, schema, 0
        self._store, self._groups, self._open = store, RowGroups(schema, group_rows), ExitStack()

    def __enter__(self) -> PartWriter:
        self._path = self._open.enter_context(self._store.staging(".parquet"))
        with named_failures(self._path):
            self._file = pq.ParquetWriter(self._path, self.schema, **parquet_encoding(self.schema))
        return self

    def __exit__(self, *failure: object) -> None:
        with self._open, suppress(OSError):  # the file is discarded; its footer does not matter
            self._file.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._append(self._groups.add(batch))

    def finish(self, stats: Mapping[str, Any] | None = None) -> Part:
        """Close the file and move it into the store."""
        self._append(self._groups.rest())
        with named_failures(self._path):
            self._file.close()
        blob = self._store.put_file(self._path)
        return Part(name=self.name, blob=blob, rows=self.rows, stats=dict(stats or {}))

    def _append(self, groups: Iterable[pa.RecordBatch]) -> None:
        for group in groups:
            with named_failures(self._path):
                self._file.write_batch(group, row_group_size=group.num_rows)
            self.rows += group.num_rows


def read_table(store: Store, part: Part, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a part as a table, or some of its columns.

    Raises:
        MissingError, IntegrityError: the blob is absent, truncated, or not Parquet.
    """
    batches = list(iter_batches(store, part, columns))
    return pa.Table.from_batches(batches, schema=batches[0].schema) if batches else _empty(store, part, columns)


def named_table(store: Store, made: Manifest, name: str) -> pa.Table:
    """Return the part with this name of a manifest as a table.

    Raises:
        IntegrityError: there is no part with that name, or it cannot be read.
    """
    for part in made.parts:
        if part.name == name:
            return read_table(store, part)
    raise IntegrityError(f"{made.asset} {made.digest[:12]} has no {name}")


def iter_batches(
    store: Store,
    part: Part,
    columns: Sequence[str] | None = None,
    rows: int = ROW_GROUP_ROWS,
    labels: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of a part in row order; the row count is compared with the record at the end.

    Args:
        columns: columns to read; default all.
        rows: rows per batch.
        labels: string columns to read as Arrow dictionaries, which is four times as fast if a few values repeat.

    Raises:
        MissingError, IntegrityError: the blob is absent, truncated, or not Parquet, or has too few rows.
    """
    path = store.open_path(part.blob)
    seen = 0
    try:
        with pa.OSFile(str(path)) as source, pq.ParquetFile(source, read_dictionary=list(labels or ())) as file:
            _require(file.schema_arrow, columns, part)
            batches = file.iter_batches(rows, columns=list(columns) if columns else None, use_threads=False)
            for batch in _whole(batches, rows) if labels else batches:
                seen += batch.num_rows
                yield batch
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, part, error) from error
    if seen != part.rows:
        raise IntegrityError(f"{path} ({part.name}) is short", found=f"{seen} rows", expected=f"{part.rows} rows")


def _whole(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of exactly `rows` rows with one dictionary each, because Arrow splits batches at row groups."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.num_rows for one in held) == rows:
            yield _as_one(held)
            held = []
    if held:
        yield _as_one(held)


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]


def iter_aligned(
    store: Store,
    *sources: tuple[Part, Sequence[str]],
    rows: int = ROW_GROUP_ROWS,
    labels: Sequence[Sequence[str]] | None = None,
) -> Iterator[tuple[pa.RecordBatch, ...]]:
    """Yield batches of several parts in parallel: a part of documents and its sidecars, row by row.

    Args:
        sources: parts, each with the columns to read.
        rows: rows per batch.
        labels: labels of each source, as in `iter_batches`.

    Raises:
        MissingError, IntegrityError: the parts have different rows, or a part cannot be read, as in `iter_batches`.
    """
    own = labels or [()] * len(sources)
    readers = [iter_batches(store, *source, rows, names) for source, names in zip(sources, own, strict=True)]
    for batches in zip_longest(*readers):
        if len({batch.num_rows if batch is not None else 0 for batch in batches}) > 1:
            raise IntegrityError(
                "parts of one table differ in their rows",
                found=", ".join(f"{part.name} {part.rows}" for part, _ in sources),
                expected="the same rows in the same order",
                remedy="rerun the stage of the sidecar; its input has changed",
            )
        yield batches


def read_row(store: Store, part: Part, row: int, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """Return one row as plain Python values; only its row group is read.

    Raises:
        MissingError, IntegrityError: the blob is absent, truncated, not Parquet, or without that row or column.
    """
    path = store.open_path(part.blob)
    try:
        with pq.ParquetFile(path) as file:
            _require(file.schema_arrow, columns, part)
            first = 0
            for group in range(file.num_row_groups):
                held = file.metadata.row_group(group).num_rows
                if first <= row < first + held:
                    table = file.read_row_group(group, columns=list(columns) if columns else None)
                    return dict(table.slice(row - first, 1).to_pylist()[0])
                first += held
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, part, error) from error
    raise IntegrityError(f"{path} ({part.name}) has no row {row}", found=f"{first} rows", expected=f"{part.rows} rows")


def _require(schema: pa.Schema, columns: Sequence[str] | None, part: Part) -> None:
    """Refuse unknown columns, which Parquet readers silently skip."""
    lacking = sorted({column.split(".")[0] for column in columns or ()} - set(schema.names))
    if lacking:
        raise IntegrityError(
            f"{part.name} has no column {lacking}",
            found=f"columns {schema.names}",
            expected=f"columns {list(columns or ())}",
            remedy="the part was written by another version of its stage: run the same command again",
        )


def _unreadable(path: Path, part: Part, error: BaseException) -> IntegrityError:
    return IntegrityError(
        f"{path} ({part.name}) cannot be read as Parquet",
        found=error,
        expected=f"{part.rows} rows with SHA-256 {part.blob.sha256}",
        remedy="delete the file and run the same command again",
    )


def _empty(store: Store, part: Part, columns: Sequence[str] | None) -> pa.Table:
    schema = pq.read_schema(store.open_path(part.blob))
    table = schema.empty_table()
    return table.select(list(columns)) if columns else table


class RowGroups:
    """Grouping of rows that does not depend on the caller's batches, so that equal rows give equal bytes.

    A group ends with the row that fills it, in rows or in bytes, so that book-sized texts stay bounded too.
    """

    def __init__(self, schema: pa.Schema, rows: int | None = None) -> None:
        self.schema, self.most = schema, rows or ROW_GROUP_ROWS
        self.waiting: list[pa.RecordBatch] = []
        self.rows = self.size = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the groups that these rows complete."""
        weights = np.cumsum(_row_bytes(batch))
        start, before = 0, 0
        while start < batch.num_rows:
            by_bytes = int(np.searchsorted(weights, before + ROW_GROUP_BYTES - self.size)) + 1
            stop = min(batch.num_rows, start + self.most - self.rows, max(by_bytes, start + 1))
            self.waiting.append(batch.slice(start, stop - start))
            self.rows, self.size = self.rows + stop - start, self.size + int(weights[stop - 1]) - before
            start, before = stop, int(weights[stop - 1])
            if self.rows == self.most or self.size >= ROW_GROUP_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows as a group."""
        if self.rows:
            yield pa.Table.from_batches(self.waiting, schema=self.schema).combine_chunks().to_batches()[0]
        self.waiting, self.rows, self.size = [], 0, 0


def parquet_encoding(schema: pa.Schema) -> dict[str, Any]:
    """Return Parquet options for a schema.

    Texts are compressed with zstd, and tables of scores with LZ4, which reads faster. Strings repeat, so they use
    dictionaries; numbers seldom repeat and read twice as fast without.
    """
    text = any(pa.types.is_large_string(field.type) for field in schema)
    labels = [path for field in schema for path in _labels(field.name, field.type)]
    return {"compression": "zstd" if text else "lz4", "use_dictionary": labels or False}


def _labels(path: str, kind: pa.DataType) -> list[str]:
    """Return Parquet's paths of the string columns in a column."""
    if pa.types.is_list(kind):
        return _labels(f"{path}.list.element", kind.value_type)
    if pa.types.is_struct(kind):
        return [found for field in kind for found in _labels(f"{path}.{field.name}", field.type)]
    return [path] if pa.types.is_string(kind) else []


def _row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return bytes of strings and lists in each row, [rows]; fixed-width values are bounded by the number of rows."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        if _is_text(column.type) or pa.types.is_nested(column.type):
            total += _value_bytes(column)
    return total


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _value_bytes(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return bytes of each value, [values], without offsets and bitmaps."""
    kind = values.type
    if _is_text(kind) or pa.types.is_list(kind):
        measure = pc.binary_length if _is_text(kind) else pc.list_value_length
        lengths: npt.NDArray[np.int64] = pc.fill_null(measure(values), 0).to_numpy(zero_copy_only=False)
        if _is_text(kind):
            return lengths
        ends = np.concatenate([[0], np.cumsum(_value_bytes(values.flatten()))])
        sizes: npt.NDArray[np.int64] = np.diff(ends[np.concatenate([[0], np.cumsum(lengths)])])
        return sizes
    width = kind.bit_width // 8 if pa.types.is_primitive(kind) else 0
    total = np.full(len(values), width, dtype=np.int64)
    for child in values.flatten() if pa.types.is_struct(kind) else ():
        total += _value_bytes(child)
    return total
