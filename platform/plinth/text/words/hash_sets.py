"""Sets of 64-bit hashes for kernels: open addressing in a table that many texts share.

A set uses the first `slot_count` slots of `keys`, a power of two; set them to 0 before use. So the sets of small texts
stay in a part of the table that the cache holds. A slot of 0 is empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.compiled import kernel, njit

U64 = npt.NDArray[np.uint64]

#: FNV-1a, 64 bits (Fowler, Noll, Vo).
FNV, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: the high bits of a product depend on all bits


def slots(entries: int) -> U64:
    """Slots for sets of up to so many entries; untouched slots cost no memory."""
    return np.zeros(slot_count(entries), dtype=np.uint64)


@kernel
def slot_count(entries: int) -> int:
    """How many slots a set of so many entries uses: a power of two, at least twice as many."""
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


@njit(inline="always")
def shift_for(size: Any) -> Any:
    """How far to shift a spread hash to the number of one of `size` slots."""
    shift = 64
    while size > 1:
        size >>= 1
        shift -= 1
    return np.uint64(shift)


@njit(inline="always")
def slot_of(keys: Any, size: Any, shift: Any, value: Any) -> Any:
    """The slot that holds this hash (not 0), or the empty slot where it belongs."""
    slot = np.int64((value * _SPREAD) >> shift)
    while keys[slot] != 0 and keys[slot] != value:
        slot = (slot + 1) & (size - 1)
    return slot


@njit(inline="always")
def seen(keys: Any, size: Any, shift: Any, value: Any) -> Any:
    """Whether a hash is in the set; it is afterwards."""
    value = np.uint64(value) | np.uint64(value == 0)
    slot = slot_of(keys, size, shift, value)
    found = keys[slot] == value
    keys[slot] = value
    return found
