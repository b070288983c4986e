"""Means and their differences, with standard errors clustered by what was sampled.

Miller 2024, "Adding Error Bars to Evals" (arXiv 2411.00640): SE = sqrt(C/(C-1) sum_c (sum_{i in c} s_i - mean)^2) / n,
with Student's t of C - 1 degrees of freedom. Differences between models on the same items are of pairs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plinth.evaluation.statistics.estimate import (
    DEGENERATE,
    Clusters,
    Estimate,
    Floats,
    checked,
    codes_of,
    critical,
    rounded,
    spread,
    student,
    sums,
)
from plinth.evaluation.statistics.pairs import FEW_PAIRS, mcnemar, tango
from plinth.evaluation.statistics.shares import share


def mean(values: ArrayLike, clusters: Clusters = None, *, level: float = 0.95) -> Estimate:
    """Mean of values [N]. Zeros or ones only: Wilson's interval of the clusters, flagged as degenerate.

    Raises:
        ValueError: no values, one that is not finite, or labels of another number.
    """
    rows = checked(values)
    middle, error, count = _mean_and_error(rows, clusters, _size(rows))
    found = student(middle, error, count - 1, level, n=len(rows), clusters=count, method="clustered t", test=False)
    if error == 0 and middle in (0.0, 1.0):
        edge = share(round(middle) * count, count, level=level)
        found = found.model_copy(update={"low": edge.low, "high": edge.high, "method": edge.method})
    return found


def paired_difference(a: ArrayLike, b: ArrayLike, clusters: Clusters = None, *, level: float = 0.95) -> Estimate:
    """Mean of a - b, [N] both, row by row of the same item; p is of "no difference".

    Where fewer than 25 clusters differ, all by as much, as right and wrong answers do, p is McNemar's exact one and the
    interval is Tango's, widened to 0 where p does not rule 0 out: 3 wins to 0 have p = 0.25, whatever their spread.

    Raises:
        ValueError: as `mean`.
    """
    left = checked(a)
    right = checked(b, left)
    gaps = left - right
    codes = codes_of(clusters, len(gaps))
    totals, sizes = sums(gaps, codes), np.bincount(codes)
    contested = totals[totals != 0]
    few = len(contested) < FEW_PAIRS and _alike(np.abs(contested)) and _alike(sizes)
    if few and (len(contested) or np.isin(left, (0.0, 1.0)).all()):
        scale = float(abs(contested[0])) / float(sizes[0]) if len(contested) else 1.0
        return _few_pairs(contested, scale, len(gaps), len(totals), level)
    middle, error, count = _mean_and_error(gaps, clusters, _size(left) + _size(right))
    return student(middle, error, count - 1, level, n=len(gaps), clusters=count, method="paired t", test=True)


def difference(
    a: ArrayLike, b: ArrayLike, clusters_a: Clusters = None, clusters_b: Clusters = None, *, level: float = 0.95
) -> Estimate:
    """Mean of a less mean of b, of different items (Welch 1947). On the same items, pair them: it is sharper.

    The error of a side whose values are all 0, or all 1, is that of Wilson's interval. Where any other side shows no
    spread, as one value does, nothing is known of the difference: no interval, no claim.

    Raises:
        ValueError: as `mean`.
    """
    left, right = checked(a), checked(b)
    mean_a, error_a, count_a = _own_error(left, clusters_a)
    mean_b, error_b, count_b = _own_error(right, clusters_b)
    error = math.hypot(error_a, error_b) if error_a and error_b else 0.0
    n, count = len(left) + len(right), min(count_a, count_b)
    parts = [(one**4, max(1, of - 1)) for one, of in ((error_a, count_a), (error_b, count_b)) if error]
    freedom = error**4 / sum(fourth / free for fourth, free in parts) if parts else 1.0
    return student(mean_a - mean_b, error, freedom, level, n=n, clusters=count, method="Welch t", test=True)


def _own_error(rows: Floats, clusters: Clusters) -> tuple[float, float, int]:
    """Mean, standard error and number of clusters; where all are alike and right or wrong, Wilson's error."""
    middle, error, count = _mean_and_error(rows, clusters, _size(rows))
    if error == 0 and middle in (0.0, 1.0):
        edge = share(round(middle) * count, count)
        error = (edge.high - edge.low) / (2 * critical(edge.level, math.inf))
    return middle, error, count


def _size(rows: Floats) -> float:
    return float(np.abs(rows).sum())


def _mean_and_error(rows: Floats, clusters: Clusters, size: float) -> tuple[float, float, int]:
    """Mean, its standard error, and the number of clusters; `size` as of `spread`."""
    codes = codes_of(clusters, len(rows))
    middle = math.fsum(rows) / len(rows)
    residuals = sums(rows - middle, codes)
    return middle, spread(residuals, len(rows), size), len(residuals)


def _alike(values: NDArray[Any]) -> bool:
    return bool(len(values) == 0 or (values == values[0]).all())


def _few_pairs(contested: Floats, scale: float, n: int, clusters: int, level: float) -> Estimate:
    """A difference that few clusters make, each of `scale` or -scale."""
    wins, losses = int((contested > 0).sum()), int((contested < 0).sum())
    p = mcnemar(wins, losses)
    low, high = (scale * end for end in tango(wins, losses, clusters, level))
    if p >= 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    flags = (DEGENERATE,) if clusters in (wins, losses) or not len(contested) else ()
    return Estimate(
        value=scale * (wins - losses) / clusters, low=rounded(low), high=rounded(high), level=level, n=n,
        clusters=clusters, method="exact McNemar", p=rounded(p), unit=scale, flags=flags,
    )  # fmt: skip
