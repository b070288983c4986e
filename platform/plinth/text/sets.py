"""Sets of 64-bit hashes for kernels: open addressing, reused without clearing.

A set is `keys` [capacity] and `stamps` [capacity]; an entry belongs to the set whose stamp it carries, so the
next set is a greater stamp. Small texts use the beginning of the table only, which stays in cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

#: FNV-1a, 64 bits (Fowler, Noll, Vo).
FNV, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def capacity(entries: int) -> int:
    """A power of two with room for twice as many entries."""
    return 1 << max(5, int(entries + 4).bit_length() + 1)


@njit(inline="always")
def mask_for(entries: Any, capacity: Any) -> Any:
    """Mask of the part of a table that so many entries need, twice over."""
    room = 16
    while room < 2 * entries + 4 and room < capacity:
        room *= 2
    return np.uint64(room - 1)


@njit(inline="always")
def seen(keys: Any, stamps: Any, stamp: Any, mask: Any, value: Any) -> Any:
    """Whether a hash is in the set of this stamp; it is afterwards."""
    slot = (value ^ (value >> np.uint64(31))) & mask
    while stamps[slot] == stamp:
        if keys[slot] == value:
            return True
        slot = (slot + np.uint64(1)) & mask
    stamps[slot] = stamp
    keys[slot] = value
    return False
