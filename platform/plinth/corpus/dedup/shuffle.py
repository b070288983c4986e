"""What global steps share: ranges of keys, some rows of a part, 16-byte values as two halves.

The map side of a global step writes one sorted run per part of documents; the reduce side reads one range of keys of
all of them. The ranges depend on the number of rows alone, and no output depends on the ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plinth.corpus.dedup import sorted_runs
from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64

#: Rows that one range should hold: about 200 MB while it is sorted.
RANGE_ROWS = 4_000_000
END = 2**64


def ranges(rows: int, range_rows: int = RANGE_ROWS) -> list[tuple[int, int]]:
    """Equal ranges of evenly spread keys, half open, so that each has about `range_rows` of `rows`."""
    count = max(1, -(-rows // range_rows))
    cuts = [END * i // count for i in range(count + 1)]
    return list(pairwise(cuts))


def iter_rows(
    store: Store, part: Part, columns: Sequence[str], rows: I64
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


def _damaged(part: Part, found: object, expected: object) -> IntegrityError:
    return IntegrityError(
        f"part {part.name} ({part.blob.md5}) cannot be trusted",
        found=found,
        expected=expected,
        remedy="delete the blob from the store and run the same command again",
    )


def write_halves(
    store: Store, name: str, kind: str, column: pa.ChunkedArray, identity: Mapping[str, Any] | None = None
) -> Part:
    """A run of (upper half, row, lower half) of a `binary(16)` column without nulls."""
    high, low = halves(column)
    order = sorted_runs.in_order(high, low)
    columns = (high[order], order.astype(np.uint64), low[order])
    return sorted_runs.write(store, name, kind, [columns], 3, identity)


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
