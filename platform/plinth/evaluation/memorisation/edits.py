"""Edits between sequences of tokens (Levenshtein 1966): insertions, deletions and replacements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plinth.compiled import njit


def edits(a: Sequence[int], b: Sequence[int]) -> int:
    """The fewest that make one of the other."""
    return int(_distance(np.array(a, np.int64), np.array(b, np.int64)))


@njit(cache=True, nogil=True)
def _distance(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    row = np.arange(len(b) + 1)
    for i in range(len(a)):
        before = row[0]
        row[0] = i + 1
        for j in range(len(b)):
            kept = before + (a[i] != b[j])
            before = row[j + 1]
            row[j + 1] = min(kept, before + 1, row[j] + 1)
    return int(row[-1])
