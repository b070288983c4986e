"""Shares of items, of all or of those that could be scored."""

from __future__ import annotations

import math
from collections.abc import Callable

from plinth.corpus.slices.rates import wilson
from plinth.evaluation.statistics.estimate import (
    FEW,
    FEW_CLUSTERS,
    MISSING,
    Estimate,
    beta_quantile,
    binomial_cdf,
    normal_cdf,
    normal_quantile,
    rounded,
)


def share(successes: int, n: int, *, level: float = 0.95) -> Estimate:
    """A share with Wilson's interval (1927), of items that were sampled one by one.

    Raises:
        ValueError: no items, or more successes than items.
    """
    _check(successes, n)
    low, high = wilson(successes, n, normal_quantile((1 + level) / 2))
    return Estimate(
        value=successes / n, low=rounded(low), high=rounded(high), level=level, n=n, clusters=n,
        method="Wilson", flags=(FEW_CLUSTERS,) if n < FEW else (),
    )  # fmt: skip


def upper_share(successes: int, n: int, *, level: float = 0.95) -> float:
    """One-sided upper limit of a share that holds at least as often as `level` says (Clopper and Pearson 1934).

    Raises:
        ValueError: as `share`.
    """
    _check(successes, n)
    return 1.0 if successes == n else rounded(beta_quantile(successes + 1, n - successes, level))


def lower_share(successes: int, n: int, *, level: float = 0.95) -> float:
    """One-sided lower limit of a share (Clopper and Pearson 1934).

    Raises:
        ValueError: as `share`.
    """
    return rounded(1 - upper_share(n - successes, n, level=level))


def share_with_missing(successes: int, scored: int, missing: int, *, level: float = 0.95) -> Estimate:
    """The share of all items, of which some have no score: with nothing assumed of those.

    The value is the share of the scored. The interval holds whatever the missing would have scored: from Wilson's lower
    end with all of them wrong to his upper end with all of them right, at the critical value of Imbens and Manski
    (2004), which lies between the one-sided one (many missing) and the two-sided one (none). That items are missing
    by chance is part of both ends; an interval of the scored alone, stretched, is too narrow.

    Raises:
        ValueError: as `share`.
    """
    _check(successes, scored)
    if missing < 0:
        raise ValueError("a number of items is not negative")
    if not missing:
        return share(successes, scored, level=level)
    n, most = scored + missing, successes + missing
    error = max(math.sqrt(max(one * (n - one), n / 4) / n**3) for one in (successes, most))
    c = _imbens_manski(missing / n / error, level)
    return Estimate(
        value=successes / scored, low=rounded(wilson(successes, n, c)[0]),
        high=rounded(wilson(most, n, c)[1]), level=level, n=n, clusters=n, method="Imbens-Manski, Wilson",
        flags=(MISSING,),
    )  # fmt: skip


def _imbens_manski(width: float, level: float) -> float:
    """c with Phi(c + width) - Phi(-c) = level; `width` of the unknown part is in standard errors."""
    low, high = normal_quantile(level), normal_quantile((1 + level) / 2)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if normal_cdf(middle + width) - normal_cdf(-middle) < level else (low, middle)
    return high


def _check(successes: int, n: int) -> None:
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no share")


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
