"""How much a probe's score can be trusted: its noise, its signal, and their ratio.

Noise is the standard deviation of the score over the last checkpoints of a run, as in signal-and-noise (Heineman et
al. 2025): what a step more or less changes. A score that still falls has its trend counted as noise, so the ratio is
too low rather than too high. Where runs that differ by their seed alone exist, the deviation over them counts if
greater.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

#: Checkpoints at the end of a run that noise is taken over, and the fewest that give one.
LAST, FEWEST = 5, 3


class Worth(NamedTuple):
    """Signal and noise of a probe in a run.

    Attributes:
        signal: score less control.
        noise: standard deviation of the score; None where too few checkpoints and no second seed exist.
        snr: |signal| / noise; None where noise is unknown, infinite where it is 0.
        checkpoints: how many the noise is over.
        seeds: how many runs the noise is over, where greater than that of checkpoints.
    """

    signal: float
    noise: float | None
    snr: float | None
    checkpoints: int
    seeds: int

    @property
    def decides(self) -> bool:
        """True if the probe may stop a run or close a gate: a positive signal, above a noise that is known."""
        return self.signal > 0 and self.snr is not None and self.snr >= 1


def worth(signal: float, scores: Sequence[float], seeds: Sequence[float] = ()) -> Worth:
    """Return the worth of a probe.

    Args:
        signal: its signal at the last checkpoint, in the unit of the scores.
        scores: its score at each checkpoint, oldest first.
        seeds: its score at the end of runs that differ by seed alone, this one among them.
    """
    last = scores[-LAST:]
    over_time = statistics.stdev(last) if len(last) >= FEWEST else None
    over_seeds = statistics.stdev(seeds) if len(seeds) >= 2 else None
    known = [value for value in (over_time, over_seeds) if value is not None]
    noise = max(known, default=None)
    ratio = None if noise is None else abs(signal) / noise if noise else math.inf
    widest = over_seeds is not None and over_seeds == noise
    return Worth(signal, noise, ratio, len(last), len(seeds) if widest else 0)


def spread_snr(models: Sequence[float], last: Sequence[float]) -> float:
    """Signal-to-noise ratio of a probe over several models, as signal-and-noise defines it (`snr/metrics.py`):
    (greatest difference of two models' scores / their mean) / (deviation of the last scores of a run / their mean).

    Args:
        models: the scores of at least two models.
        last: of one of them at its last checkpoints, at least two; the deviation is over their number, as published.
    """
    signal = (max(models) - min(models)) / statistics.fmean(models)
    noise = statistics.pstdev(last) / statistics.fmean(last)
    return signal / noise if noise else math.inf
