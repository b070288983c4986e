"""Take fields, arrays and the dictionary out of a mapped file; workers share what they read of it.

Nothing is allocated for a size that the file claims and does not have. Does not belong here: what the fields mean
(`model_file`).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth_text.arrays import I64, U8
from plinth_text.compiled import compiled
from plinth_text.errors import ModelFileError

#: Bytes of a dictionary's entry besides its name: a zero, the count, the kind.
_ENTRY = 10


class MappedFile:
    """A file that is read from front to back. Arrays are views into the mapping, and may lie unaligned."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        empty = path.stat().st_size == 0  # which cannot be mapped
        self.data: U8 = np.zeros(0, np.uint8) if empty else np.asarray(np.memmap(path, np.uint8, mode="r"))

    def fields(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)).tobytes())

    def take(self, size: int) -> U8:
        if size < 0 or self.at + size > self.data.size:
            raise self.broken(f"{self.data.size} bytes", f"{size} more at byte {self.at}")
        self.at += size
        return self.data[self.at - size : self.at]

    def array(self, kind: str, count: int) -> npt.NDArray[Any]:
        return self.take(np.dtype(kind).itemsize * count).view(kind)

    def names(self, size: int, nwords: int) -> tuple[U8, I64, I64, I64]:
        """Entries of a dictionary, `nwords` words and then labels: bytes, and of each entry start, end and count."""
        if size * _ENTRY > self.data.size - self.at:
            raise self.broken(f"{self.data.size} bytes", f"{size} entries at byte {self.at}")
        starts, ends, counts = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
        data = self.data[self.at :]
        used = entries(data, nwords, starts, ends, counts)
        if used < 0:
            raise self.broken(f"a damaged dictionary at byte {self.at}", "words, then labels, each ended by a zero")
        self.at += used
        return data[:used], starts, ends, counts

    def broken(self, found: object, expected: object) -> ModelFileError:
        return ModelFileError(
            f"{self.path.name} is no fastText model that can be read here", found=found, expected=expected
        )


@compiled
def entries(data: U8, nwords: int, starts: I64, ends: I64, counts: I64) -> int:
    """Bytes of the dictionary; -1 where it is damaged."""
