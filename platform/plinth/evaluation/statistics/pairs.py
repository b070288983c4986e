"""Pairs of right and wrong answers, of which few differ."""

from __future__ import annotations

import math
from collections.abc import Callable

from plinth.evaluation.statistics.distributions import binomial_cdf, normal_quantile

#: With so many pairs that differ, the normal approximation serves (the rule that McNemar's test is taught with).
FEW_PAIRS = 25


def mcnemar(a_only: int, b_only: int, *, mid: bool = False) -> float:
    """Two-sided p of "each is as often right alone": binomial over the pairs that differ (McNemar 1947).

    Args:
        a_only: items that only the first answered rightly.
        b_only: items that only the second did.
        mid: count half of what was seen (Fagerland, Lydersen and Laake 2013): nearer to its level and no longer
            guaranteed to keep it.

    Raises:
        ValueError: a negative number.
    """
    if a_only < 0 or b_only < 0:
        raise ValueError("numbers of items are not negative")
    count, fewer = a_only + b_only, min(a_only, b_only)
    if a_only == b_only:
        return 1.0
    tail = binomial_cdf(fewer, count, 0.5)
    if mid:
        tail -= math.comb(count, fewer) / 2 ** (count + 1)
    return min(1.0, 2 * tail)


def tango(a_only: int, b_only: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of the difference of two paired shares (Tango 1998): holds where few of n pairs differ, or none.

    Raises:
        ValueError: more pairs differ than there are.
    """
    if n < 1 or a_only + b_only > n:
        raise ValueError("a paired difference needs pairs")
    z, middle = normal_quantile((1 + level) / 2), (a_only - b_only) / n

    def statistic(difference: float) -> float:
        linear = (2 * n - a_only + b_only) * difference - a_only - b_only
        root = math.sqrt(max(0.0, linear**2 + 8 * n * b_only * difference * (1 - difference)))
        alone = (root - linear) / (4 * n)  # share that only b has, given the difference
        variance = n * (2 * alone + difference * (1 - difference))
        gap = a_only - b_only - n * difference
        return gap / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, gap) if gap else 0.0

    low = _crossing(lambda d: statistic(d) <= z, -1.0, middle)
    return low, _crossing(lambda d: statistic(d) < -z, middle, 1.0)


def _crossing(after: Callable[[float], bool], low: float, high: float) -> float:
    """Where a condition that holds from some point on begins to hold, by halving."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if after(middle) else (middle, high)
    return (low + high) / 2
