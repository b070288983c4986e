"""Find 64-bit hashes in a large sorted array: a bit filter in front of a binary search.

The filter has at least 16 bits per value, so 15 of 16 absent hashes cost one read of memory.
"""

from __future__ import annotations

import numpy as np

from plinth_text.arrays import I64, U64
from plinth_text.compiled import compiled


class HashLookup:
    """Positions of hashes in `table`.

    Args:
        table: sorted, without repeats; may be memory-mapped. Hashes must be evenly spread.

    Raises:
        ValueError: when the table is not sorted.
    """

    def __init__(self, table: U64) -> None:
        if not is_sorted(table):
            raise ValueError("the table of hashes is not sorted, or repeats a value")
        self.table = table
        self._bits = max(10, int(16 * table.size).bit_length())
        self._filter = np.zeros((1 << self._bits) // 64, dtype=np.uint64)
        mark(table, self._filter, 64 - self._bits)

    def find(self, hashes: U64) -> I64:
        """For each hash its position in the table, or -1."""
        out = np.empty(hashes.size, dtype=np.int64)
        find(self.table, self._filter, 64 - self._bits, hashes, out)
        return out


@compiled
def is_sorted(table: U64) -> bool:
    """Return whether every value is above the one before it."""


@compiled
def mark(table: U64, bits: U64, shift: int) -> None:
    """Set the bit of every value in a filter."""


@compiled
def find(table: U64, bits: U64, shift: int, hashes: U64, out: I64) -> None:
    """Fill `out` with the position of each hash in the table, or -1."""
