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
