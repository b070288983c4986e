"""One part of a stream's document index: looked up by row group, so that a lookup costs the same at any size."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.storage.store import Store

GROUPS_HELD = 4
_START, _PART = 1, 3  # columns of `cut.INDEX_SCHEMA`


@dataclass(frozen=True)
class DocumentSpan:
    """Where a document lies in its stream, end-of-text included, and where its text lies."""

    id: str  # hexadecimal
    start: int
    tokens: int
    part: int  # curated part and row
    row: int


@dataclass(frozen=True)
class _Group:
    """Rows of one row group as columns."""

    ids: NDArray[np.void]
    starts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    parts: NDArray[np.int32]
    rows: NDArray[np.int32]

    def span(self, row: int) -> DocumentSpan:
        return DocumentSpan(
            self.ids[row].tobytes().hex(),
            int(self.starts[row]),
            int(self.tokens[row]),
            int(self.parts[row]),
            int(self.rows[row]),
        )


class IndexPart:
    """A part of the index. Its footer is read at once, row groups when they are needed.

    Args:
        near: a position of the stream whose row group is read with the footer, in one opening of the file.

    Raises:
        MissingError, IntegrityError: absent, torn, or not the Parquet file it claims to be.
    """

    def __init__(self, store: Store, part: Part, near: int | None = None) -> None:
        self._path, self._part = store.open_path(part.blob), part
        self._held: OrderedDict[int, _Group] = OrderedDict()
        with self._readable(), pa.OSFile(str(self._path)) as source, pq.ParquetFile(source) as file:
            self._footer = file.metadata
            groups = [self._footer.row_group(number) for number in range(self._footer.num_row_groups)]
            self._starts = [int(group.column(_START).statistics.min) for group in groups]
            numbers = [group.column(_PART).statistics for group in groups]
            if near is not None and groups:
                self._keep(max(0, bisect_right(self._starts, near) - 1), file)
        self._parts = [(int(one.min), int(one.max)) for one in numbers]
        self._rows = [0, *accumulate(group.num_rows for group in groups)]
        if self._rows[-1] != part.rows:
            raise IntegrityError(
                f"{self._path} ({part.name}) is short", found=f"{self._rows[-1]} rows", expected=f"{part.rows} rows"
            )

    def span(self, row: int) -> DocumentSpan:
        """The document of a row."""
        group = bisect_right(self._rows, row) - 1
        return self._group(group).span(row - self._rows[group])

    def documents(self, start: int, stop: int) -> Iterator[DocumentSpan]:
        """Documents that have tokens in `start` to `stop` of the stream."""
        for number in range(max(0, bisect_right(self._starts, start) - 1), len(self._starts)):
            if max(start, self._starts[number]) >= stop:
                return
            group = self._group(number)
            first = max(0, int(np.searchsorted(group.starts, start, side="right")) - 1)
            last = int(np.searchsorted(group.starts, stop, side="left"))
            for row in range(first, last):
                if group.starts[row] + group.tokens[row] > start:
                    yield group.span(row)

    def of_part(self, part: int) -> Iterator[DocumentSpan]:
        """Documents of a curated part, in order."""
        for number, (first, last) in enumerate(self._parts):
            if first <= part <= last:
                group = self._group(number)
                for row in np.flatnonzero(group.parts == part):
                    yield group.span(int(row))

    def _group(self, number: int) -> _Group:
        if number in self._held:
            self._held.move_to_end(number)
            return self._held[number]
        with (
            self._readable(),
            pa.OSFile(str(self._path)) as source,
            pq.ParquetFile(source, metadata=self._footer) as file,
        ):
            return self._keep(number, file)

    def _keep(self, number: int, file: pq.ParquetFile) -> _Group:
        table = file.read_row_group(number, use_threads=False)
        ids = table["id"].combine_chunks()
        ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
        data = np.frombuffer(ids.buffers()[1], dtype="V16")[ids.offset : ids.offset + len(ids)]
        group = _Group(data, *(table[name].to_numpy() for name in ("start", "tokens", "part", "row")))
        self._held[number] = group
        while len(self._held) > GROUPS_HELD:
            self._held.popitem(last=False)
        return group

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise IntegrityError(
                f"{self._path} ({self._part.name}) cannot be read as Parquet",
                found=error,
                expected=f"{self._part.rows} rows with SHA-256 {self._part.blob.sha256}",
                remedy="delete the file and run the same command again",
            ) from error
