"""Exposure of canaries: how far their losses rank among those of references that the model never saw.

    rank      1 + references with a loss at or below the canary's: ties count against the canary
    exposure  log2 |R| - log2 rank, in bits (Carlini et al. 2019, arXiv:1802.08232)
    beyond    a canary below all references: -log2 of the CDF of a skew-normal fitted to the references, where that is
              more (as `secret_sharer/exposures.py` of TensorFlow Privacy)
    p         of a model that never saw them, exposures are exponential with mean 1 / ln 2 bits, so
              ln 2 times the sum over m canaries is Gamma(m, 1)

The p-value uses ranks alone: a fitted tail is a picture, not evidence. Ranks lie on a grid, so the sum is a little
below its limit, and the test is a little cautious.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plinth.evaluation.statistics.estimate import gamma_tail

Floats = NDArray[np.float64]

#: The two statistics that are shown of canaries, which answer different questions: whether the model remembers at all,
#: and whether it remembers what it saw a given number of times, which the gate `canaries` asks.
ALL_PLANTED = "p-value under no memorization, all planted canaries together"
PLANTED_TIMES = "p-value under no memorization, canaries planted {count}"

#: Points of the integral over a fitted tail, and the depth in nats to which it goes.
TAIL_POINTS, TAIL_DEPTH = 4001, 40.0


def ranks(bits: Floats, references: Floats) -> NDArray[np.int64]:
    """Rank of each loss [m] among references [r]: 1 … r + 1.

    Raises:
        ValueError: a loss that is not finite has no rank.
    """
    if not (np.isfinite(bits).all() and np.isfinite(references).all()):
        raise ValueError("losses that are not finite have no rank")
    return np.searchsorted(np.sort(references), bits, side="right").astype(np.int64) + 1


def exposures(found: NDArray[np.int64], references: int) -> Floats:
    """Exposure of ranks, in bits: log2 |R| of rank 1, about 0 of the last."""
    return math.log2(references) - np.log2(found)


def extended(bits: Floats, references: Floats) -> Floats:
    """Exposure in bits, of losses below all references by the fitted tail."""
    found = exposures(ranks(bits, references), len(references))
    below = bits < references.min()
    if below.any():
        from scipy import stats  # half a second, which every command that loads the pipeline would pay

        fitted = stats.skewnorm.fit(references)
        tail = np.array([-_log_cdf(float(one), *fitted) / math.log(2) for one in bits[below]])
        found[below] = np.maximum(found[below], tail)
    return found


def p_value(found: Floats) -> float:
    """Probability of exposures at least so large in sum, had the model seen none of the canaries; 1 without any."""
    return gamma_tail(len(found), math.log(2) * found.sum()) if len(found) else 1.0


def p_value_of_group(group: Mapping[str, Any]) -> float:
    """The same of canaries that were planted equally often, from their mean exposure in the stats."""
    return p_value(np.full(int(group["exposure"]["n"]), float(group["exposure"]["value"])))


def _log_cdf(value: float, shape: float, location: float, scale: float) -> float:
    """Logarithm of a skew-normal CDF far below its mode, where the CDF itself underflows: the density falls at least
    geometrically from `value` down, so an integral over the few nats below it is all."""
    from scipy import stats

    at = stats.skewnorm.logpdf(value, shape, location, scale)
    below = stats.skewnorm.logpdf(value - 1e-6 * scale, shape, location, scale)
    slope = (at - below) / 1e-6  # nats for each `scale`
    if not slope > 0:
        return float(stats.skewnorm.logcdf(value, shape, location, scale))
    depths = np.linspace(0.0, TAIL_DEPTH / slope, TAIL_POINTS)
    heights = np.exp(stats.skewnorm.logpdf(value - depths * scale, shape, location, scale) - at)
    return float(at + math.log(np.trapezoid(heights, depths) * scale))
