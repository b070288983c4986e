"""Find documents in a part of an index by a few small reads of the file, at any size.

Interpolation search, mostly two or three reads; from the fourth read on every second one bisects, which bounds them by
2 log2 n for any lengths of documents. The file is read and not mapped: in a step of a thousand sequences every search
would touch a dozen cold pages, and a page fault costs more than a read of the block around it.
"""

from __future__ import annotations

import os
from itertools import count
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.storage.store import Store

#: Starts per read.
BLOCK = 1024


class IndexLookup:
    """A part of an index, open for reading; use it as a context.

    Args:
        places: byte of the file at which each column begins. widths: bytes of a value of each. starts: which column
            has the starts, int64 and ascending.

    Raises:
        MissingError, IntegrityError: absent, torn, or shorter than its columns.
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
        """First row and end of the documents that have tokens in `start` to `stop` of the stream."""
        begin, block = self._around(start)
        first = begin + max(0, int(block.searchsorted(start, "right")) - 1)
        if begin + len(block) < self._rows and block[-1] < stop:
            begin, block = self._around(stop - 1)
        return first, begin + int(block.searchsorted(stop, "left"))

    def values(self, first: int, stop: int) -> list[bytes]:
        """The bytes of each column in rows `first` to `stop`."""
        found = [os.pread(self._file, (stop - first) * width, at + first * width) for at, width in self._columns]
        if len(found[0]) != (stop - first) * self._columns[0][1]:
            raise self._short()
        return found

    def _around(self, token: int) -> tuple[int, NDArray[np.int64]]:
        """A block of starts that has the document of a token of this part, and the block's first row."""
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
        raise AssertionError("the search ends inside")

    def _short(self) -> IntegrityError:
        return IntegrityError(
            f"{self._path} ({self._part.name}) is not the index it should be",
            expected=f"{self._rows} rows with SHA-256 {self._part.blob.sha256}",
            remedy="delete the file and run the same command again",
        )
