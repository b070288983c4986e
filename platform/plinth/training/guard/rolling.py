"""A window of numbers with its median and spread.

Median and MAD (median absolute deviation) instead of mean and standard deviation: up to half of the window may
be spikes without moving them, so a spike neither hides the next one nor has to be kept out (Leys et al. 2013,
doi:10.1016/j.jesp.2013.03.013).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

#: MAD of a normal distribution in standard deviations: 1 / 0.6745.
MAD_TO_SIGMA = 1.4826


class Rolling:
    """The newest `size` numbers."""

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self._values: deque[float] = deque(values, maxlen=size)

    def add(self, value: float) -> None:
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def values(self) -> list[float]:
        """Oldest first."""
        return list(self._values)

    @property
    def median(self) -> float:
        return float(median(self._values))

    @property
    def sigma(self) -> float:
        """Robust standard deviation."""
        centre = self.median
        return MAD_TO_SIGMA * float(median(abs(value - centre) for value in self._values))
