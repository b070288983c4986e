"""Documents by rule, counted in one pass: all that it fires on, first, and alone.

Kernels of the policy stage and of what-if. Rules fire seldom, so rows are skipped eight at a time.

Letters: R rules, D documents of a batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import uint64

from plinth.compiled import njit
from plinth.text.words.chunks import popcount

Bools = npt.NDArray[np.bool_]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

#: Columns of a tally: documents that a rule fires on, is the first on, is the only one on; then their bytes.
FIRES, FIRST, ALONE, FIRES_BYTES, FIRST_BYTES, ALONE_BYTES = range(6)


def tally(fires: Bools, size: I64) -> tuple[I64, I32, I64]:
    """Count what each rule does.

    Args:
        fires: [R, D].
        size: bytes of each document, [D].

    Returns:
        The first rule of each document, or -1 [D]; how many fire on it [D]; and the counts by rule [R, 6], see
        `FIRES` and those after it.
    """
    first = np.full(fires.shape[1], -1, dtype=np.int64)
    count = np.zeros(fires.shape[1], dtype=np.int32)
    counts = np.zeros((fires.shape[0], 6), dtype=np.int64)
    _tally(fires, np.ascontiguousarray(size, dtype=np.int64), first, count, counts)
    return first, count, counts


def lists(fires: Bools, count: I32) -> tuple[I32, I32]:
    """The rules that fire on each document as lists: offsets [D + 1], and numbers of rules in order."""
    offsets = np.zeros(count.size + 1, dtype=np.int32)
    np.cumsum(count, out=offsets[1:])
    values = np.empty(offsets[-1], dtype=np.int32)
    _fill(fires, offsets[:-1].copy(), values)
    return offsets, values


@njit(nogil=True, cache=True)
def _places(row: Bools, places: I64) -> int:
    """Where a rule fires, in order, into `places` [D]; returns how often."""
    count, eights = 0, row[: row.size // 8 * 8].view(np.uint64)
    for eight in range(eights.size):
        left = eights[eight]
        while left:  # the bits below its lowest one are eight times the number of the byte
            places[count] = 8 * eight + np.int64(popcount((left & (uint64(0) - left)) - uint64(1)) >> uint64(3))
            count += 1
            left &= left - uint64(1)
    for at in range(8 * eights.size, row.size):
        places[count] = at
        count += row[at]
    return count


@njit(nogil=True, cache=True)
def _tally(fires: Bools, size: I64, first: I64, count: I32, counts: I64) -> None:
    places = np.empty(size.size + 1, dtype=np.int64)
    for rule in range(fires.shape[0]):
        for at in places[: _places(fires[rule], places)]:
            counts[rule, 0] += 1
            counts[rule, 3] += size[at]
            if first[at] < 0:
                first[at] = rule
                counts[rule, 1] += 1
                counts[rule, 4] += size[at]
            count[at] += 1
    for at in range(size.size):
        if count[at] == 1:
            counts[first[at], 2] += 1
            counts[first[at], 5] += size[at]


@njit(nogil=True, cache=True)
def _fill(fires: Bools, cursor: I32, values: I32) -> None:
    places = np.empty(cursor.size + 1, dtype=np.int64)
    for rule in range(fires.shape[0]):
        for at in places[: _places(fires[rule], places)]:
            values[cursor[at]] = rule
            cursor[at] += 1
