"""Shares of items, of all or of those that could be scored."""

from __future__ import annotations

import math

from plinth.corpus.slices.rates import wilson
from plinth.evaluation.statistics.distributions import beta_quantile, normal_cdf, normal_quantile
from plinth.evaluation.statistics.estimate import FEW, FEW_CLUSTERS, MISSING, Estimate, rounded


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
