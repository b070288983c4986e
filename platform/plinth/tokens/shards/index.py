"""Document index of a stream, which has the position of every document. Look-ups take microseconds at any size.

A part of the index is an Arrow file with fixed-width columns and documents in stream order. Readers of many documents
map the file; readers of a few documents read only some of its byte ranges (`IndexLookup`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.storage.atomic import named_failures
from plinth.storage.store import Store

# Arrow files of one record batch that are mapped and read in place: any row of any column in constant time.
#
# The writer records where in the file each column begins, so a reader maps the file and parses nothing: opening takes
# microseconds, whatever the size. Other programs read a plain Arrow file (`pyarrow.ipc.open_file`, Polars).
#
# A mapping holds no file descriptor. Python's own `mmap` (and with it `numpy.memmap`) keeps one open for each, and a
# run over 10^12 tokens maps some 15,000 shards, where a process may often open 1,024 files.

#: Key of a part's statistics: byte of the file at which each buffer of its columns begins.
AT = "at"
_MAGIC = b"ARROW1"
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Mapping:
    """File mapped into memory until no object refers to its bytes."""

    def __init__(self, path: Path | str) -> None:
        self.address = 0
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(file).st_size
            address = _libc.mmap(None, self.size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0) if self.size else 0
        finally:
            os.close(file)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), f"cannot map {path}")
        self.address = address

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.size,), "typestr": "|u1", "data": (self.address, True)}

    def __del__(self) -> None:
        if self.address:
            _libc.munmap(self.address, self.size)


def map_file(path: Path | str) -> NDArray[np.uint8]:
    """Map the bytes of a file, read only, without keeping it open.

    Raises:
        OSError: the file cannot be opened or mapped.
    """
    mapping = _Mapping(path)
    return np.asarray(mapping) if mapping.size else np.empty(0, np.uint8)


def write_mapped(store: Store, name: str, batch: pa.RecordBatch, stats: dict[str, Any]) -> Part:
    """Write a batch without nulls as an uncompressed Arrow file. `stats["at"]` has the byte offset of each buffer.

    Raises:
        DiskFullError, WorkspaceError: the file cannot be written; no part of it becomes visible.
    """
    with store.staging(".arrow") as path:
        with named_failures(path):
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            data = map_file(path)
            written = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(data))).get_batch(0)
        buffers = [buffer for column in written.columns if batch.num_rows for buffer in column.buffers() if buffer]
        at = [buffer.address - data.ctypes.data for buffer in buffers]
        return Part(name=name, blob=store.put_file(path), rows=batch.num_rows, stats={**stats, AT: at})


def map_columns(store: Store, part: Part, what: str) -> tuple[NDArray[np.uint8], list[int]]:
    """Return the bytes of a part that `write_mapped` wrote, and the byte offset of each buffer.

    Raises:
        MissingError, IntegrityError: the file is absent, truncated, or not written by `write_mapped`.
    """
    path = store.open_path(part.blob)
    try:
        data = map_file(path)
    except OSError as error:
        raise IntegrityError(f"{path} ({part.name}) cannot be mapped", found=error) from error
    if data[: len(_MAGIC)].tobytes() != _MAGIC:
        raise _unknown(f"{path} ({part.name})", part, what)
    return data, places_of(part, what)


def places_of(part: Part, what: str) -> list[int]:
    """Return the byte offsets of a part's buffers in its file.

    Raises:
        IntegrityError: the file was not written by `write_mapped`.
    """
    if AT not in part.stats:
        raise _unknown(part.name, part, what)
    return list(part.stats[AT])


def _unknown(name: str, part: Part, what: str) -> IntegrityError:
    return IntegrityError(
        f"{name} is not {what}",
        expected=f"an Arrow file of {part.rows} rows, written by this version",
        remedy="rerun the stage that made it: the format has changed",
    )


#: A document of the index: its tokens (end-of-text included) are `start` to `start + tokens` of its stream, its text
#: is row `row` of curated part `part`.
INDEX_SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
    ]
)
DTYPES = (np.dtype("V16"), *(np.dtype(name) for name in ("<i8", "<i8", "<i4", "<i4")))
_WHAT = "an index of documents"
#: Documents of a batch when all are read.
BATCH_DOCUMENTS = 1 << 16


class DocumentSpan(NamedTuple):
    """Position of a document in its stream, including end-of-text, and the curated part and row of its text."""

    id: str  # hexadecimal
    start: int
    tokens: int
    part: int  # curated part and row
    row: int


@dataclass(frozen=True)
class DocumentSpans:
    """Positions of several documents, as columns of shape [n]."""

    ids: NDArray[np.void]
    starts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    parts: NDArray[np.int32]
    rows: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        return self.ids, self.starts, self.tokens, self.parts, self.rows

    def take(self, rows: slice | NDArray[Any]) -> DocumentSpans:
        """Return the documents in the rows `rows`."""
        return DocumentSpans(*(column[rows] for column in self.columns))

    def records(self) -> list[DocumentSpan]:
        """Return the documents as a list of `DocumentSpan`."""
        names = self.ids.tobytes().hex()
        ids = [names[at : at + 32] for at in range(0, len(names), 32)]
        return list(map(DocumentSpan, ids, *(column.tolist() for column in self.columns[1:])))


def write_index(store: Store, name: str, columns: Sequence[pa.Array], stats: dict[str, Any]) -> Part:
    """Write a part of the index from the columns of `INDEX_SCHEMA`."""
    return write_mapped(store, name, pa.RecordBatch.from_arrays(list(columns), schema=INDEX_SCHEMA), stats)


def open_part(store: Store, part: Part) -> DocumentSpans:
    """Map a part of the index, and return its documents.

    Raises:
        MissingError, IntegrityError: the part is absent, truncated, or not an index.
    """
    data, places = map_columns(store, part, _WHAT)
    return DocumentSpans(
        *(
            data[at : at + part.rows * dtype.itemsize].view(dtype)
            for at, dtype in zip(places if part.rows else [0] * len(DTYPES), DTYPES, strict=True)
        )
    )


def open_lookup(store: Store, part: Part) -> IndexLookup:
    """Open a part of the index for look-ups of single documents.

    Raises:
        MissingError, IntegrityError: the part is absent, truncated, or not an index.
    """
    return IndexLookup(store, part, places_of(part, _WHAT), tuple(dtype.itemsize for dtype in DTYPES), starts=1)


def of_part(documents: DocumentSpans, part: int) -> slice:
    """Return the rows of a curated part's documents. The rows of `documents` are sorted by curated part."""
    first, stop = np.searchsorted(documents.parts, np.array([part, part + 1], np.int32)).tolist()
    return slice(first, stop)


class DocumentIndex:
    """Document index of one stream. Opening reads nothing; parts are mapped when they are first needed.

    Args:
        parts: index parts of the stream, in order.

    Raises:
        MissingError, IntegrityError: a part is absent, truncated, or not an index; raised when the part is first read.
    """

    def __init__(self, store: Store, parts: Sequence[Part]) -> None:
        self._store, self.parts = store, parts
        self._starts = np.array([part.stats["start"] for part in parts], np.int64)
        self._open: dict[int, DocumentSpans] = {}

    def part(self, number: int) -> DocumentSpans:
        """Return all documents of an index part, mapped into memory."""
        if number not in self._open:
            self._open[number] = open_part(self._store, self.parts[number])
        return self._open[number]

    def within(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> tuple[NDArray[np.int64], DocumentSpans]:
        """Return the documents that have tokens in the given ranges of the stream.

        Args:
            starts, stops: [m] start and end (exclusive) of each range; no range is empty.

        Returns:
            [n] number of the range for each document, ascending, and the documents, in stream order within a range.
        """
        first = np.maximum(np.searchsorted(self._starts, starts, side="right") - 1, 0)
        spread = np.searchsorted(self._starts, stops, side="left") - first  # parts that contain a range
        ranges, parts = np.repeat(np.arange(len(starts)), spread), _ranges(first, spread)
        order = np.argsort(parts, kind="stable")
        counts, found = np.zeros(len(order), np.int64), [[b""] for _ in DTYPES]
        begins, ends = starts[ranges[order]].tolist(), stops[ranges[order]].tolist()
        edges = [0, *(np.flatnonzero(np.diff(parts[order])) + 1).tolist(), len(order)] if len(order) else []
        for begin, end in pairwise(edges):
            with open_lookup(self._store, self.parts[int(parts[order[begin]])]) as lookup:
                for at in range(begin, end):
                    own = lookup.rows(begins[at], ends[at])
                    counts[at] = own[1] - own[0]
                    for column, values in zip(found, lookup.values(*own), strict=True):
                        column.append(values)
        columns = (np.frombuffer(b"".join(column), dtype) for column, dtype in zip(found, DTYPES, strict=True))
        every = DocumentSpans(*columns)
        owner = np.repeat(ranges[order], counts)
        sequence = np.argsort(owner, kind="stable")
        return owner[sequence], every.take(sequence)

    def batches(self) -> Iterator[DocumentSpans]:
        """Yield all documents in stream order, at most `BATCH_DOCUMENTS` at a time."""
        for number in range(len(self.parts)):
            yield from _cut(self.part(number))

    def find(self, id_: bytes, part: int | None = None) -> list[DocumentSpan]:
        """Return the documents with this id, in one curated part if `part` is given, otherwise in all."""
        wanted = np.frombuffer(id_, np.uint64)
        found = []
        for number in self._covering(part):
            documents = self.part(number)
            own = slice(0, len(documents)) if part is None else of_part(documents, part)
            halves = documents.ids[own].view(np.uint64).reshape(-1, 2)
            rows = np.flatnonzero((halves[:, 0] == wanted[0]) & (halves[:, 1] == wanted[1]))
            found += documents.take(rows + own.start).records()
        return found

    def of_part(self, part: int) -> Iterator[DocumentSpan]:
        """Yield the documents of a curated part, in order."""
        for number in self._covering(part):
            documents = self.part(number)
            yield from documents.take(of_part(documents, part)).records()

    def _covering(self, part: int | None) -> list[int]:
        """Return the numbers of the index parts that have documents of a curated part."""
        spans = [one.stats["parts"] for one in self.parts]
        return [number for number, (first, last) in enumerate(spans) if part is None or first <= part <= last]


def _ranges(first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers `first[i]` to `first[i] + counts[i]` (exclusive) for every i, joined in one array."""
    return np.asarray(np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts))


def _cut(documents: DocumentSpans) -> Iterator[DocumentSpans]:
    edges = [*range(0, len(documents), BATCH_DOCUMENTS), len(documents)]
    return (documents.take(slice(first, last)) for first, last in pairwise(edges))


# Find documents in a part of an index by a few small reads of the file, at any size.
#
# Interpolation search, mostly two or three reads; from the fourth read on every second one bisects, which bounds them
# by 2 log2 n for any lengths of documents. The file is read and not mapped: in a step of a thousand sequences every
# search would touch a dozen cold pages, and a page fault costs more than a read of the block around it.

#: Starts per read.
BLOCK = 1024


class IndexLookup:
    """Context manager for look-ups in one part of an index, by small reads of its file.

    Args:
        places: byte offset of each column in the file.
        widths: bytes per value of each column.
        starts: number of the column with the starts, which are int64 and ascending.

    Raises:
        MissingError, IntegrityError: the file is absent, truncated, or shorter than its columns.
    """

    def __init__(self, store: Store, part: Part, places: list[int], widths: tuple[int, ...], starts: int) -> None:
        self._path, self._part, self._rows = store.open_path(part.blob), part, part.rows
        self._columns, self._at = list(zip(places, widths, strict=True)), places[starts]
        self._first = int(part.stats["start"])
        self._stop = self._first + int(part.stats["tokens"])

    def __enter__(self) -> IndexLookup:
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first row and end (exclusive) of the documents that have tokens in `start` to `stop` of the
        stream."""
        begin, block = self._around(start)
        first = begin + max(0, int(block.searchsorted(start, "right")) - 1)
        if begin + len(block) < self._rows and block[-1] < stop:
            begin, block = self._around(stop - 1)
        return first, begin + int(block.searchsorted(stop, "left"))

    def values(self, first: int, stop: int) -> list[bytes]:
        """Return the bytes of each column, from row `first` to `stop` (exclusive)."""
        found = [os.pread(self._file, (stop - first) * width, at + first * width) for at, width in self._columns]
        if len(found[0]) != (stop - first) * self._columns[0][1]:
            raise self._short()
        return found

    def _around(self, token: int) -> tuple[int, NDArray[np.int64]]:
        """Return a block of document starts that includes the document at `token`, and the block's first row."""
        low, high, below, above = 0, self._rows, self._first, self._stop
        for tried in count():
            bisect = tried > 2 and tried % 2
            guess = (low + high) // 2 if bisect else low + (token - below) * (high - low) // max(1, above - below)
            begin = min(max(low, guess - BLOCK // 2), max(low, high - BLOCK))
            block = np.frombuffer(os.pread(self._file, 8 * min(BLOCK, high - begin), self._at + 8 * begin), np.int64)
            if not len(block):
                raise self._short()
            if token < block[0] and begin > low:
                high, above = begin, int(block[0])
            elif begin + len(block) < high and token >= block[-1]:
                low, below = begin + len(block) - 1, int(block[-1])
            else:
                return begin, block
        raise AssertionError("unreachable: the search always ends in the loop")

    def _short(self) -> IntegrityError:
        return IntegrityError(
            f"{self._path} ({self._part.name}) does not have the rows of the recorded index",
            expected=f"{self._rows} rows with SHA-256 {self._part.blob.sha256}",
            remedy="delete the file and run the same command again",
        )
