"""Find 64-bit hashes in a large sorted array: a bit filter in front of a binary search.

The filter has at least 16 bits per value, so 15 of 16 absent hashes cost one read of memory.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from plinth.compiled import njit
from plinth.text.words.ngrams import I64, U64


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
        _mark(table, self._filter, 64 - self._bits)

    def find(self, hashes: U64) -> I64:
        """For each hash its position in the table, or -1."""
        out = np.empty(hashes.size, dtype=np.int64)
        _find(self.table, self._filter, 64 - self._bits, hashes, out)
        return out


@njit(nogil=True, cache=True)
def is_sorted(table: U64) -> bool:
    """Whether every value is above the one before it."""
    ascending = True
    for i in range(1, table.size):
        ascending &= table[i - 1] < table[i]
    return ascending


@njit(nogil=True, cache=True)
def _mark(table: U64, bits: U64, shift: int) -> None:
    for value in table:
        bit = value >> uint64(shift)
        bits[bit >> uint64(6)] |= uint64(1) << (bit & uint64(63))


@njit(nogil=True, cache=True)
def _find(table: U64, bits: U64, shift: int, hashes: U64, out: I64) -> None:
    for i in range(hashes.size):
        value = hashes[i]
        bit = value >> uint64(shift)
        out[i] = -1
        if bits[bit >> uint64(6)] >> (bit & uint64(63)) & uint64(1):
            low, high = 0, table.size
            while low < high:
                middle = (low + high) >> 1
                if table[middle] < value:
                    low = middle + 1
                else:
                    high = middle
            if low < table.size and table[low] == value:
                out[i] = low
