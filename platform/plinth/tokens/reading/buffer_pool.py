"""Memory of batches that nobody looks at any more, for the batches that follow.

Fresh memory comes from the kernel page by page, at a fault each: of a step of 256 x 4,096 tokens that is more time than
copying the tokens. Whoever keeps a batch, or any view or tensor of it, keeps its array: only what nobody refers to is
handed out again.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Arrays that are remembered: those of a few steps that are ahead, in use, and on their way.
HELD = 16


class Arrays:
    """Arrays of one type, of one shape at a time."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._held: list[NDArray[Any]] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, int]) -> NDArray[Any]:
        """An array with any values in it."""
        with self._lock:
            if self._held and self._held[0].shape != shape:
                self._held = []
            for at in range(len(self._held)):
                if sys.getrefcount(self._held[at]) == 2:  # the list's and that of the call; a view would be a third
                    return self._held[at]
            made = np.empty(shape, self._dtype)
            if len(self._held) < HELD:
                self._held.append(made)
            return made
