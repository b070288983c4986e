"""Buffer pool that reuses the arrays of released batches.

Fresh memory comes from the kernel page by page, with a fault each: for a step of 256 x 4,096 tokens that takes longer
than copying the tokens. A batch, and any view or tensor of it, keeps its array: only an array without references is
reused.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Arrays of a pool: those of a few steps that are prefetched, in use, and on their way to the device.
MAX_ARRAYS = 16


class BufferPool:
    """Arrays of one type, of one shape at a time."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._arrays: list[NDArray[Any]] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, int]) -> NDArray[Any]:
        """An array of this shape; its values are undefined."""
        with self._lock:
            if self._arrays and self._arrays[0].shape != shape:
                self._arrays = []
            for at in range(len(self._arrays)):
                if sys.getrefcount(self._arrays[at]) == 2:  # the list's and the call's own; a view would be a third
                    return self._arrays[at]
            made = np.empty(shape, self._dtype)
            if len(self._arrays) < MAX_ARRAYS:
                self._arrays.append(made)
            return made
