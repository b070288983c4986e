"""Documents by rule, counted in one pass: all that it fires on, first, and alone.

Kernels of the policy stage and of what-if. Rules fire seldom, so rows are skipped eight at a time.

Letters: R rules, D documents of a batch.
"""

from __future__ import annotations

import numpy as np

from plinth_text.arrays import I32, I64, Bools
from plinth_text.compiled import compiled

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
    places = np.empty(fires.shape[1] + 1, dtype=np.int64)
    count_rules(fires, np.ascontiguousarray(size, dtype=np.int64), places, first, count, counts)
    return first, count, counts


def lists(fires: Bools, count: I32) -> tuple[I32, I32]:
    """The rules that fire on each document as lists: offsets [D + 1], and numbers of rules in order."""
    offsets = np.zeros(count.size + 1, dtype=np.int32)
    np.cumsum(count, out=offsets[1:])
    values = np.empty(offsets[-1], dtype=np.int32)
    list_rules(fires, np.empty(count.size + 1, dtype=np.int64), offsets[:-1].copy(), values)
    return offsets, values


@compiled
def count_rules(fires: Bools, size: I64, places: I64, first: I64, count: I32, counts: I64) -> None:
    """Fill in what `tally` returns. `places`: scratch, [D + 1]."""


@compiled
def list_rules(fires: Bools, places: I64, cursor: I32, values: I32) -> None:
    """Fill in the rules of each document from `cursor` on, which advances. `places`: scratch, [D + 1]."""
