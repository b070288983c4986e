"""Parquet: one record per row, text in a column the recipe names; the other columns as `fields` says.

A file, or the row groups of a piece with the footer, is first copied to a temporary file and compared with
the inventory: random access cannot be checked while it reads. Then row groups are streamed page by
page, and only columns that are used.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import IO, Any

from plinth.corpus.sources.cuts import row_group_start
from plinth.corpus.sources.fields import Fields
from plinth.corpus.sources.parameters import Source
from plinth.corpus.sources.record import RawRecord, Reader, Reject
from plinth.errors import SourceError
from plinth.storage.files import CHUNK_BYTES, SourceFile, opened

BUFFER_BYTES = 1 << 20
BATCH_BYTES, BATCH_ROWS = 16 * 2**20, 1024
#: Bounds on what a footer may make the reader allocate.
THRIFT_BYTES, THRIFT_ITEMS = 64 * 2**20, 10**6
#: A column of a row group that declares to inflate to more than this many times `max_bytes` is refused unread.
MAX_COLUMN_FACTOR = 1024


def read_parquet(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """The rows of a file, or of the row groups that begin in a piece, in row order.

    Raises:
        SourceError: the file has no column of the name that the recipe gives, or two columns of one name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile(prefix="plinth-parquet-") as copy:
        _copied(file, copy)
        row = 0
        try:
            found = pq.ParquetFile(
                copy,
                pre_buffer=False,
                buffer_size=BUFFER_BYTES,
                thrift_string_size_limit=THRIFT_BYTES,
                thrift_container_size_limit=THRIFT_ITEMS,
                page_checksum_verification=True,
            )
            columns = _columns(file, source, found.schema_arrow)
            unread = [name for name in found.schema_arrow.names if name not in columns]
            fields = Fields(file, source, licence, max_bytes, unread)
            for index in range(found.num_row_groups):
                group = found.metadata.row_group(index)
                first, row = row, row + group.num_rows
                if not _begins_in(file, group, index):
                    continue
                yield from _rows(found, index, columns, fields, first, max_bytes, file)
        except (pa.ArrowException, OSError, ValueError, RecursionError, MemoryError) as error:
            yield Reject(file.name, f"row {row}", "broken_parquet", f"{error}", file.bytes)


def _copied(file: SourceFile, copy: IO[bytes]) -> None:
    """The bytes of a file or piece at their own places; between piece and footer the copy is sparse."""
    copy.seek(file.start)
    with opened(file) as raw:
        while data := raw.read(CHUNK_BYTES):
            copy.write(data)
            if raw.tell() == file.bytes and file.tail:
                copy.seek(file.whole - file.tail)
    copy.seek(0)


def _begins_in(file: SourceFile, group: Any, index: int) -> bool:
    if not file.whole:
        return True
    # Nothing before the first group counts, and an empty group has no place of its own.
    start = row_group_start(group)
    return (file.start <= start < file.start + file.bytes) if group.num_rows else False


def _columns(file: SourceFile, source: Source, schema: Any) -> list[str]:
    """The columns to read: scalars and nested ones but for bytes and lists of numbers (images, embeddings), those that
    hold what the recipe names, and `media`.

    Raises:
        SourceError: the text's column is not there, or two columns have one name.
    """
    if twice := [name for name, count in Counter(_names(schema)).items() if count > 1]:
        raise SourceError(
            f"{file.uri} has two columns called {twice[0]!r}",
            found=f"columns {', '.join(schema.names)}",
            expected="one column of each name, for a row keeps one value per name",
            remedy="rename or remove one of the columns in the file",
        )
    named = (source.text_field, source.uri_field, source.date_field, source.licence_field)
    outer = {name if name in schema.names else name.partition(".")[0] for name in named if name} | {"media"}
    if source.text_field not in schema.names and source.text_field.partition(".")[0] not in schema.names:
        raise SourceError(
            f"{file.uri} has no column {source.text_field!r}",
            found=f"columns {', '.join(schema.names)}",
            expected=f"a column of text called {source.text_field!r}",
            remedy="name the column in the recipe: `fields: {text: …}` of the source",
        )
    return [field.name for field in schema if field.name in outer or not _is_payload(field.type)]


def _names(fields: Iterable[Any], outer: str = "") -> Iterator[str]:
    """The names of columns, and of fields inside of them by their path."""
    import pyarrow.types as types

    for field in fields:
        yield outer + field.name
        if types.is_struct(field.type):
            yield from _names(field.type, f"{outer}{field.name}.")


def _is_payload(kind: Any) -> bool:
    """Bytes, or a list of numbers: no metadata of a text, and often larger than it."""
    import pyarrow.types as types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return bool(types.is_primitive(kind.value_type)) or _is_payload(kind.value_type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _rows(
    found: Any, index: int, columns: list[str], fields: Fields, first: int, max_bytes: int, file: SourceFile
) -> Iterator[RawRecord | Reject]:
    group = found.metadata.row_group(index)
    chunks = [group.column(i) for i in range(group.num_columns)]
    size = sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.partition(".")[0] in columns)
    if size > MAX_COLUMN_FACTOR * max_bytes:
        detail = f"row group {index} inflates to {size} bytes"
        yield Reject(file.name, f"rows from {first + 1}", "too_large", detail, file.bytes)
        return
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(size, 1)))
    number = first
    for batch in found.iter_batches(batch_size=rows, row_groups=[index], columns=columns, use_threads=False):
        for row in _plain(batch):
            number += 1
            where = f"row {number}"
            if row is None:
                detail = "not UTF-8 in a column of text, or a time out of range"
                yield Reject(f"{file.name}#R{number}", where, "broken_record", detail)
                continue
            yield fields.record(row, f"R{number}", where, sum(len(v) for v in row.values() if isinstance(v, str)))


def _plain(batch: Any) -> Iterator[dict[str, Any] | None]:
    """Rows as Python values; None for a row whose values Python cannot hold."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):
        for row in range(batch.num_rows):
            try:
                yield batch.slice(row, 1).to_pylist()[0]
            except (ValueError, OverflowError):
                yield None


READER = Reader(
    name="parquet",
    description="Parquet: one record per row.",
    read=read_parquet,
    suffixes=(".parquet", ".parq"),
)
