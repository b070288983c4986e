"""Edits between sequences of tokens (Levenshtein 1966): insertions, deletions and replacements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plinth_text.compiled import compiled


def edits(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the Levenshtein distance."""
    return distance(np.array(a, np.int64), np.array(b, np.int64), np.empty(len(b) + 1, np.int64))


@compiled
def distance(a: NDArray[np.int64], b: NDArray[np.int64], row: NDArray[np.int64]) -> int:
    """Return the Levenshtein distance; `row` is scratch memory of `b.size + 1` numbers."""
