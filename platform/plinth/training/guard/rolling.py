"""A window of numbers with its level and spread, both robust to spikes and to the trend.

Level is the median of the newest numbers. Spread is the median absolute difference of neighbours, scaled to the
standard deviation of normal noise: medians instead of means, so up to half of the window may be spikes and need
not be kept out (Leys et al. 2013, doi:10.1016/j.jesp.2013.03.013), and differences instead of deviations, so that
a loss that falls fast does not look like a noisy one (von Neumann et al. 1941, doi:10.1214/aoms/1177731677).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

#: Median absolute value of normal noise to its standard deviation: 1 / 0.6745. Differences have twice the variance.
DIFFERENCE_TO_SIGMA = 1.4826 / math.sqrt(2)

#: The level is that of the newest quarter of the window, of these many numbers at least.
LEVEL_SHARE, LEVEL_MINIMUM = 4, 8


class Rolling:
    """The newest `size` numbers."""

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self._values: deque[float] = deque(values, maxlen=size)
        self._newest = max(LEVEL_MINIMUM, size // LEVEL_SHARE)

    def add(self, value: float) -> None:
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def values(self) -> list[float]:
        """Oldest first."""
        return list(self._values)

    @property
    def level(self) -> float:
        """Median of the newest numbers."""
        return float(median(self.values[-self._newest :]))

    @property
    def sigma(self) -> float:
        """Robust standard deviation around the trend; 0 for fewer than two numbers."""
        steps = [abs(after - before) for before, after in pairwise(self._values)]
        return DIFFERENCE_TO_SIGMA * float(median(steps)) if steps else 0.0
