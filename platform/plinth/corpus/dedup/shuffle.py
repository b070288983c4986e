"""Sorted parts: write a table sorted by a 64-bit key, read back one range of keys from many of them.

The map side of a global step writes one sorted part per part of documents; the reduce side reads, from all of
them, only the row groups that overlap its range. The ranges depend on the number of rows alone,
and no output depends on the ranges.

A row of documents is addressed by one number: slot << 32 | row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.storage.parts import write_table
from plinth.storage.store import Store

U64 = npt.NDArray[np.uint64]

#: Rows that one range should hold: about 200 MB while it is sorted.
RANGE_ROWS = 4_000_000
END = 2**64


def address(slot: int, rows: npt.NDArray[np.uint32]) -> U64:
    """Addresses of rows of one slot."""
    return np.uint64(slot << 32) | rows.astype(np.uint64)


def slot_range(slot: int) -> tuple[int, int]:
    """The range of addresses of one slot, half open."""
    return slot << 32, (slot + 1) << 32


def ranges(rows: int, range_rows: int = RANGE_ROWS) -> list[tuple[int, int]]:
    """Equal ranges of evenly spread keys, half open, so that each has about `range_rows` of `rows`."""
    count = max(1, -(-rows // range_rows))
    cuts = [END * i // count for i in range(count + 1)]
    return list(pairwise(cuts))


def write_sorted(store: Store, name: str, table: pa.Table, by: Sequence[str]) -> Part:
    """Write a table sorted by columns, the first of which is the uint64 key."""
    return write_table(store, name, table.sort_by([(column, "ascending") for column in by]).combine_chunks())


def read_range(store: Store, part: Part, key: str, low: int, high: int) -> pa.Table:
    """The rows of a sorted part with low <= key < high; only the row groups that may hold them are read.

    Raises:
        MissingError, IntegrityError: absent, torn, truncated, or not sorted by `key`.
    """
    path = store.open_path(part.blob)
    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows != part.rows:
                raise _damaged(part, f"{file.metadata.num_rows} rows", f"{part.rows} rows")
            groups = [group for group, first, last in _bounds(file, part, key) if first < high and last >= low]
            table = file.read_row_groups(groups) if groups else file.schema_arrow.empty_table()
    except (pa.ArrowException, OSError) as error:
        raise _damaged(part, error, f"Parquet with SHA-256 {part.blob.sha256}") from error
    keys = table.column(key).to_numpy()
    if np.any(keys[1:] < keys[:-1]):
        raise _damaged(part, "keys out of order", f"rows sorted by {key}")
    first = int(np.searchsorted(keys, np.uint64(low)))
    last = len(keys) if high >= END else int(np.searchsorted(keys, np.uint64(high)))
    return table.slice(first, last - first)


def iter_rows(
    store: Store, part: Part, columns: Sequence[str], rows: npt.NDArray[np.int64]
) -> Iterator[pa.RecordBatch]:
    """Some rows of a part, ascending; row groups that have none of them are not read.

    Raises:
        MissingError, IntegrityError: absent, torn, short, or not Parquet.
    """
    if rows.size == 0:
        return
    path, first = store.open_path(part.blob), 0
    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows != part.rows:
                raise _damaged(part, f"{file.metadata.num_rows} rows", f"{part.rows} rows")
            for group in range(file.metadata.num_row_groups):
                held = file.metadata.row_group(group).num_rows
                begin, end = np.searchsorted(rows, [first, first + held])
                if end > begin:
                    table = file.read_row_group(group, columns=list(columns)).combine_chunks()
                    yield table.to_batches()[0].take(pa.array(rows[begin:end] - first))
                first += held
    except (pa.ArrowException, OSError) as error:
        raise _damaged(part, error, f"Parquet with SHA-256 {part.blob.sha256}") from error


def _bounds(file: pq.ParquetFile, part: Part, key: str) -> Iterator[tuple[int, int, int]]:
    """Row group, its first and its last key; a file whose groups are not in order is refused."""
    column = file.schema_arrow.get_field_index(key)
    previous = 0
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            raise _damaged(part, f"row group {group} without bounds of {key}", "bounds in every row group")
        if statistics.min < previous:
            raise _damaged(part, f"row group {group} starts below the one before it", f"rows sorted by {key}")
        previous = statistics.max
        yield group, statistics.min, statistics.max


def _damaged(part: Part, found: object, expected: object) -> IntegrityError:
    return IntegrityError(
        f"sorted part {part.name} ({part.blob.md5}) cannot be trusted",
        found=found,
        expected=expected,
        remedy="delete the blob from the store and run the same command again",
    )


def binary16(high: U64, low: U64) -> pa.Array:
    """`binary(16)` from the two big-endian halves."""
    both = np.empty((high.size, 2), dtype=">u8")
    both[:, 0], both[:, 1] = high, low
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), high.size, [None, pa.py_buffer(both.tobytes())])


def halves(column: pa.Array | pa.ChunkedArray) -> tuple[U64, U64]:
    """The big-endian halves of a `binary(16)` column without nulls: comparing them compares the bytes."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    raw = np.frombuffer(column.buffers()[1], dtype=">u8")[2 * column.offset : 2 * (column.offset + len(column))]
    return raw[0::2].astype(np.uint64), raw[1::2].astype(np.uint64)
