"""Intervals of what only a whole set has (F1, BLEU): from its values over bootstrap samples of the items."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from plinth.evaluation.statistics.estimate import DEGENERATE, FEW, FEW_CLUSTERS, Estimate, checked, rounded


def from_replicates(value: float, replicates: ArrayLike, *, n: int, seed: int, level: float = 0.95) -> Estimate:
    """The percentile interval (Efron 1979) of a statistic of N items.

    Args:
        value: of all items.
        replicates: its values over samples of N items with replacement, drawn with `seed`.
        n: items.
        seed: of the draws.
        level: of the interval.

    Raises:
        ValueError: no replicates, or one that is not finite.
    """
    drawn = checked(replicates)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]).tolist()
    flags = (*((DEGENERATE,) if low == high else ()), *((FEW_CLUSTERS,) if n < FEW else ()))
    return Estimate(
        value=rounded(value), low=rounded(min(low, value)), high=rounded(max(high, value)), level=level, n=n,
        clusters=n, method="percentile bootstrap", seed=seed, flags=flags,
    )  # fmt: skip


def prediction(
    value: float, replicates: ArrayLike, residuals: ArrayLike, *, n: int, seed: int, level: float = 0.8
) -> Estimate:
    """The interval that a new observation falls into: a residual is drawn for each replicate and added to it.

    Args:
        value: foretold from all items.
        replicates: the same from samples of the items.
        residuals: of the items, as large as those of new ones.
        n: items.
        seed: of the draws.
        level: of the interval.

    Raises:
        ValueError: no replicates or residuals, or one that is not finite.
    """
    drawn = checked(replicates)
    noise = np.random.default_rng(seed).choice(checked(residuals), len(drawn))
    found = from_replicates(value, drawn + noise, n=n, seed=seed, level=level)
    return found.model_copy(update={"method": "percentile bootstrap of a new observation"})
