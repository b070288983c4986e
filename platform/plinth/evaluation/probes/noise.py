"""Reliability of a probe's score: noise, signal, and signal-to-noise ratio.

Noise is the standard deviation of the score over the last checkpoints of a run (Heineman et al. 2025,
signal-and-noise): the change in the score that a few more or fewer steps cause. The trend of a falling score counts as
noise, so the ratio is an underestimate. If runs that differ only by seed are available, noise is the larger of the two
deviations: over checkpoints, and over seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

#: Number of checkpoints at the end of a run from which noise is estimated, and the minimum number.
LAST, FEWEST = 5, 3


class Worth(NamedTuple):
    """Signal and noise of a probe in a run.

    Attributes:
        signal: score minus control.
        noise: standard deviation of the score; None with too few checkpoints and no second seed.
        snr: |signal| / noise; None if the noise is unknown, infinite if the noise is 0.
        checkpoints: number of checkpoints from which the noise was estimated.
        seeds: number of runs with different seeds from which the noise was estimated; 0 if seeds did not determine it.
    """

    signal: float
    noise: float | None
    snr: float | None
    checkpoints: int
    seeds: int

    @property
    def decides(self) -> bool:
        """True if the probe can stop a run or fail a gate: its noise is known, and its signal is positive and larger
        than the noise."""
        return self.signal > 0 and self.snr is not None and self.snr >= 1


def worth(signal: float, scores: Sequence[float], seeds: Sequence[float] = ()) -> Worth:
    """Return signal, noise and signal-to-noise ratio of a probe.

    Args:
        signal: signal at the last checkpoint, in the unit of the scores.
        scores: score at each checkpoint, oldest first.
        seeds: scores at the end of runs that differ by seed alone, this run included.
    """
    last = scores[-LAST:]
    over_time = statistics.stdev(last) if len(last) >= FEWEST else None
    over_seeds = statistics.stdev(seeds) if len(seeds) >= 2 else None
    known = [value for value in (over_time, over_seeds) if value is not None]
    noise = max(known, default=None)
    ratio = None if noise is None else abs(signal) / noise if noise else math.inf
    widest = over_seeds is not None and over_seeds == noise
    return Worth(signal, noise, ratio, len(last), len(seeds) if widest else 0)
