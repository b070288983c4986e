"""Sets of 64-bit hashes for kernels (`hash_sets.h`): open addressing in a table that many texts share.

A set uses the first `slot_count` slots of `keys`, a power of two; set them to 0 before use. So the sets of small texts
stay in a part of the table that the cache holds. A slot of 0 is empty.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plinth_text.arrays import U64
from plinth_text.compiled import compiled

#: FNV-1a, 64 bits (Fowler, Noll, Vo).
FNV, PRIME = 0xCBF29CE484222325, 0x100000001B3


def slots(entries: int) -> U64:
    """Slots for sets of up to so many entries; untouched slots cost no memory."""
    return np.zeros(slot_count(entries), dtype=np.uint64)


@compiled
def slot_count(entries: int) -> int:
    """Return the number of slots of a set of so many entries: a power of two, at least twice as many."""


@compiled
def slot(keys: U64, value: int) -> int:
    """Return the slot that holds a hash (not 0) in a set that fills `keys`, or the empty slot where it belongs."""


@compiled
def repeats(values: U64, keys: U64, room: int, out: npt.NDArray[np.bool_]) -> None:
    """For tests: fill `out` with whether each value came before, by a set of `room` slots."""
