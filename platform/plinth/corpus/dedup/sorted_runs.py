"""Sorted runs: tables of 64-bit columns, sorted by their first column, the key. One operation reads any range of keys.

    blocks    4,096 rows each, column after column; the last block may be shorter
    footer    first key and CRC-32 of every block, then JSON: kind, identity, columns
    tail      number of rows, length and CRC-32 of the footer, magic bytes

Steps over the whole corpus exchange data as sorted runs, because thousands of parts can be read by range without a
Parquet reader for each part. Reading a range takes one read of adjacent bytes, and reading a single key takes one
block. If a block that is read is damaged, an error is raised.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plinth import fingerprint
from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.storage.atomic import named_failures
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64

BLOCK_ROWS = 4096
END = 2**64

_MAGIC = b"PLNRUN01"
_TAIL = struct.Struct("<QII8s")  # rows, length of the footer, its CRC-32, magic


class SortedRunWriter:
    """Writer of a sorted run to an open file. Rows must be appended in order of their key."""

    def __init__(self, stream: IO[bytes], kind: str, columns: int, identity: Mapping[str, Any]) -> None:
        self.stream, self.columns, self.rows = stream, columns, 0
        self.header = {"kind": kind, "columns": columns, "identity": dict(identity)}
        self._waiting: list[list[U64]] = []
        self._waiting_rows = 0
        self._first: list[int] = []
        self._crcs: list[int] = []

    def append(self, *columns: U64) -> None:
        """Append rows, given as columns of equal length."""
        if len(columns) != self.columns or len({column.size for column in columns}) != 1:
            raise ValueError(f"expected {self.columns} columns of equal length")
        self._waiting.append([np.asarray(column, dtype="<u8") for column in columns])
        self._waiting_rows += columns[0].size
        if self._waiting_rows >= BLOCK_ROWS:
            self._flush(last=False)

    def close(self) -> None:
        """Write the buffered rows and the footer."""
        self._flush(last=True)
        blocks = np.array(self._first, dtype="<u8").tobytes() + np.array(self._crcs, dtype="<u4").tobytes()
        footer = blocks + fingerprint.canonical(self.header)
        self.stream.write(footer + _TAIL.pack(self.rows, len(footer), zlib.crc32(footer), _MAGIC))

    def _flush(self, *, last: bool) -> None:
        if not self._waiting_rows:
            return
        columns = [one[0] if len(one) == 1 else np.concatenate(one) for one in zip(*self._waiting, strict=True)]
        full = columns[0].size // BLOCK_ROWS
        size = columns[0].size if last else full * BLOCK_ROWS
        body = np.empty((full, self.columns, BLOCK_ROWS), dtype="<u8")
        for number, column in enumerate(columns):
            body[:, number] = column[: full * BLOCK_ROWS].reshape(full, BLOCK_ROWS)
        for block in body:
            self._block(block)
        if size > full * BLOCK_ROWS:
            self._block(np.stack([column[full * BLOCK_ROWS :] for column in columns]))
        self.rows += size
        self._waiting = [[column[size:] for column in columns]]
        self._waiting_rows = columns[0].size - size

    def _block(self, block: U64) -> None:
        data = block.data.cast("B")
        self._first.append(int(block[0, 0]))
        self._crcs.append(zlib.crc32(data))
        self.stream.write(data)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    with named_failures(path):
        yield


def write(
    store: Store, name: str, kind: str, chunks: Sequence[Sequence[U64]] | Iterator[Sequence[U64]], columns: int,
    identity: Mapping[str, Any] | None = None, stats: Mapping[str, Any] | None = None,
) -> Part:  # fmt: skip
    """Write a sorted run from chunks of rows, each a sequence of columns, in order of the key.

    Args:
        kind: kind of the rows; a reader must name the same kind.
        columns: number of columns, including the key.
        identity: version and parameters that the values depend on; a reader may require the same identity.

    Raises:
        DiskFullError, WorkspaceError: writing failed; no part of the run is stored.
    """
    with store.staging(".run") as path:
        with _named(path):
            stream = path.open("wb")
        with stream:
            writer = SortedRunWriter(stream, kind, columns, identity or {})
            for chunk in chunks:  # a failure in here is the caller's failure to read
                with _named(path):
                    writer.append(*chunk)
            with _named(path):
                writer.close()
                stream.flush()
        blob = store.put_file(path)
    return Part(name=name, blob=blob, rows=writer.rows, stats=dict(stats or {}))


class SortedRun:
    """Sorted run that is open for reading.

    Args:
        kind, identity: required kind and identity of the run; if None, every kind or identity is accepted.

    Raises:
        MissingError, IntegrityError: the run is missing, incomplete or damaged, or has a different kind or identity.
    """

    def __init__(
        self, store: Store, part: Part, kind: str | None = None, identity: Mapping[str, Any] | None = None
    ) -> None:
        self.part, path = part, store.open_path(part.blob)
        self._file = os.open(path, os.O_RDONLY)
        try:
            self._read_footer(kind, identity)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SortedRun:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file of the run."""
        with suppress(OSError):
            os.close(self._file)

    def slice(self, low: int, high: int) -> tuple[U64, ...]:
        """Return the columns of the rows with low <= key < high.

        Raises:
            IntegrityError: a block is damaged or its keys are out of order.
        """
        first, last = self._within(low, high)
        return _between(self._blocks(first, last), low, high)

    def _within(self, low: int, high: int) -> tuple[int, int]:
        """Return the half-open range of blocks that may have rows with low <= key < high."""
        first = max(0, int(np.searchsorted(self.first, np.uint64(low))) - 1)
        last = self.first.size if high >= END else int(np.searchsorted(self.first, np.uint64(high)))
        return first, max(first, last)

    def all(self) -> tuple[U64, ...]:
        """Return the columns of all rows."""
        return self._blocks(0, self.first.size)

    def chunks(self, rows: int = 2**20, low: int = 0, high: int = END) -> Iterator[tuple[U64, ...]]:
        """Yield the rows with low <= key < high in order, about `rows` at a time. Rows with the same key may come in
        several chunks."""
        first, last = self._within(low, high)
        step = max(1, rows // BLOCK_ROWS)
        for start in range(first, last, step):
            yield _between(self._blocks(start, min(last, start + step)), low, high)

    def _blocks(self, first: int, last: int) -> tuple[U64, ...]:
        if last <= first:
            return tuple(np.empty(0, np.uint64) for _ in range(self.columns))
        stride = BLOCK_ROWS * self.columns * 8
        rows = min(self.rows, last * BLOCK_ROWS) - first * BLOCK_ROWS
        data = os.pread(self._file, rows * self.columns * 8, first * stride)
        while len(data) < rows * self.columns * 8:  # a read of 2 GB or more may come in pieces
            more = os.pread(self._file, rows * self.columns * 8 - len(data), first * stride + len(data))
            if not more:
                raise self._damaged(f"{len(data)} bytes", f"{rows * self.columns * 8} bytes from block {first}")
            data += more
        view = memoryview(data)
        for block in range(first, last):
            if zlib.crc32(view[(block - first) * stride : (block - first + 1) * stride]) != self.crcs[block]:
                raise self._damaged(f"a different checksum in block {block}", "the bytes that were written")
        full = rows // BLOCK_ROWS
        body = np.frombuffer(data, dtype="<u8", count=full * BLOCK_ROWS * self.columns)
        body = body.reshape(full, self.columns, BLOCK_ROWS)
        rest = np.frombuffer(data, dtype="<u8", offset=full * stride).reshape(self.columns, -1)
        columns = tuple(np.concatenate([body[:, c].reshape(-1), rest[c]]) for c in range(self.columns))
        if np.any(columns[0][1:] < columns[0][:-1]):
            raise self._damaged(f"keys are out of order after block {first}", "rows sorted by key")
        return columns

    def _read_footer(self, kind: str | None, identity: Mapping[str, Any] | None) -> None:
        size = self.part.blob.bytes
        tail = os.pread(self._file, _TAIL.size, max(0, size - _TAIL.size))
        if len(tail) < _TAIL.size or not tail.endswith(_MAGIC):
            raise self._damaged("a file without the end mark of a run", f"a run that ends in {_MAGIC.decode()}")
        self.rows, length, crc, _ = _TAIL.unpack(tail)
        footer = os.pread(self._file, length, max(0, size - _TAIL.size - length))
        blocks = -(-self.rows // BLOCK_ROWS)
        if zlib.crc32(footer) != crc or length < 12 * blocks:
            raise self._damaged("a damaged footer", "the bytes that were written")
        self.first = np.frombuffer(footer, dtype="<u8", count=blocks)
        self.crcs = np.frombuffer(footer, dtype="<u4", count=blocks, offset=8 * blocks)  # no list: 52 bytes a block
        header = json.loads(footer[12 * blocks :])
        self.kind, self.columns, self.identity = header["kind"], header["columns"], header["identity"]
        wanted = self.identity if identity is None else json.loads(fingerprint.canonical(identity))
        if (self.kind, self.identity) != (kind or self.kind, wanted):
            raise IntegrityError(
                f"sorted run {self.part.name} ({self.part.blob.md5}) has an unexpected kind or unexpected parameters",
                found=f"{self.kind} {self.identity}",
                expected=f"{kind} {dict(identity) if identity is not None else ''}".rstrip(),
                remedy="it was written by another version or with other parameters: run the stage again",
            )
        if self.rows != self.part.rows:
            raise self._damaged(f"{self.rows} rows", f"{self.part.rows} rows")
        if np.any(self.first[1:] < self.first[:-1]):
            raise self._damaged("blocks out of order", "rows sorted by key")

    def _damaged(self, found: object, expected: object) -> IntegrityError:
        return IntegrityError(
            f"run {self.part.name} ({self.part.blob.md5}) cannot be trusted",
            found=found,
            expected=expected,
            remedy="delete the blob from the store and run the same command again",
        )


def _between(columns: tuple[U64, ...], low: int, high: int) -> tuple[U64, ...]:
    begin = int(np.searchsorted(columns[0], np.uint64(low)))
    end = columns[0].size if high >= END else int(np.searchsorted(columns[0], np.uint64(high)))
    return tuple(column[begin:end] for column in columns)


def in_order(key: U64, *ties: U64) -> I64:
    """Return the row positions that sort the rows by key, and rows with equal keys by the other columns. The order does
    not depend on the processor."""
    order = np.argsort(key)
    ordered = key[order]
    equal = ordered[1:] == ordered[:-1]
    if np.any(equal) and ties:
        among = np.zeros(key.size, dtype=np.bool_)
        among[1:] |= equal
        among[:-1] |= equal
        places = np.flatnonzero(among)
        mine = order[places]
        order[places] = mine[np.lexsort((*(tie[mine] for tie in reversed(ties)), key[mine]))]
    return order


# What global steps share: ranges of keys, some rows of a part, 16-byte values as two halves.
#
# The map side of a global step writes one sorted run per part of documents; the reduce side reads one range of keys of
# all of them. The ranges depend on the number of rows alone, and no output depends on the ranges.

#: Rows that one range should hold: about 200 MB while it is sorted.
RANGE_ROWS = 4_000_000


def ranges(rows: int, range_rows: int = RANGE_ROWS) -> list[tuple[int, int]]:
    """Split the key space into half-open ranges of equal width. If keys are uniformly distributed, each range has about
    `range_rows` rows."""
    count = max(1, -(-rows // range_rows))
    cuts = [END * i // count for i in range(count + 1)]
    return list(pairwise(cuts))


def iter_rows(
    store: Store, part: Part, columns: Sequence[str], rows: I64
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part whose numbers are in `rows` (ascending), batch by batch. Row groups without any of these
    rows are not read.

    Raises:
        MissingError, IntegrityError: the part is missing, incomplete, too short, or not Parquet.
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
    """Write a `binary(16)` column without nulls as a sorted run of (upper half, row, lower half)."""
    high, low = halves(column)
    order = in_order(high, low)
    columns = (high[order], order.astype(np.uint64), low[order])
    return write(store, name, kind, [columns], 3, identity)


def binary16(high: U64, low: U64) -> pa.Array:
    """Return a `binary(16)` column from its two big-endian halves."""
    both = np.empty((high.size, 2), dtype=">u8")
    both[:, 0], both[:, 1] = high, low
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), high.size, [None, pa.py_buffer(both.tobytes())])


def halves(column: pa.Array | pa.ChunkedArray) -> tuple[U64, U64]:
    """Return the two big-endian halves of a `binary(16)` column without nulls. The halves sort in the same order as the
    bytes."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    raw = np.frombuffer(column.buffers()[1], dtype=">u8")[2 * column.offset : 2 * (column.offset + len(column))]
    return raw[0::2].astype(np.uint64), raw[1::2].astype(np.uint64)
