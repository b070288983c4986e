"""A number with its interval, and rows summed by cluster.

N  rows
C  clusters
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtr, stdtrit

from plinth.records import Frozen

Floats = NDArray[np.float64]
#: One label per row; None where every row is a cluster of its own.
Clusters = Sequence[Any] | NDArray[Any] | None

#: The standard error is exactly 0, or there is one cluster: nothing is known of the spread, so no claim follows.
DEGENERATE = "degenerate"
#: Fewer than `FEW` clusters: the interval rests on Student's t, and hence on a normal distribution.
FEW_CLUSTERS = "few_clusters"
#: Items are missing, and the interval holds for whatever they would have scored.
MISSING = "missing"

FEW = 10
#: Below this share of what it is of, a standard error is rounding.
ROUNDING = 1e-12
#: Ends of intervals are rounded to so many significant digits, so that the order in which a processor adds does not
#: show; values are sums without rounding (`math.fsum`).
DIGITS = 12


class Estimate(Frozen):
    """A value with its two-sided interval.

    `n` are rows, `clusters` what was sampled; `p` is the probability of at least this much if there were no effect,
    where the method tests. An interval without width, always flagged `DEGENERATE`, says nothing.
    """

    value: float
    low: float
    high: float
    level: float = 0.95
    n: int
    clusters: int
    method: str
    seed: int | None = None
    p: float | None = None
    flags: tuple[str, ...] = ()

    def excludes(self, value: float = 0.0) -> bool:
        """Whether the interval rules a value out; one without width rules nothing out."""
        return self.low < self.high and not self.low <= value <= self.high

    def smallest_effect(self, power: float = 0.8, tests: int = 1) -> float | None:
        """The effect that such an interval would have excluded 0 at, with this power; None without a width.

        Half of the width stands for the critical value times the standard error. One of several `tests` must pass a
        stricter level (Bonferroni's, which is Holm's for the smallest p).
        """
        if self.low == self.high:
            return None
        critical, corrected = (float(ndtri(1 - (1 - self.level) / 2 / m)) for m in (1, tests))
        return rounded((self.high - self.low) / 2 * (corrected + float(ndtri(power))) / critical)


def rounded(value: float) -> float:
    """The value to `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def checked(values: ArrayLike, like: Floats | None = None) -> Floats:
    """Values as FP64 [N].

    Raises:
        ValueError: none, one that is not finite, or another number than of `like`.
    """
    out = np.asarray(values, dtype=np.float64)
    if out.ndim != 1 or not out.size or not np.isfinite(out).all():
        raise ValueError("a statistic needs at least one value, all of them finite, in one dimension")
    if like is not None and out.shape != like.shape:
        raise ValueError(f"{out.size} values beside {like.size}")
    return out


def codes_of(clusters: Clusters, rows: int) -> NDArray[np.int64]:
    """Number of each row's cluster, [N], clusters in the order of their labels.

    Raises:
        ValueError: another number of labels than of rows.
    """
    if clusters is None:
        return np.arange(rows, dtype=np.int64)
    if len(clusters) != rows:
        raise ValueError(f"{len(clusters)} labels of clusters beside {rows} values")
    labels = clusters.tolist() if isinstance(clusters, np.ndarray) else clusters
    numbers = {label: i for i, label in enumerate(sorted(set(labels)))}
    return np.fromiter((numbers[label] for label in labels), dtype=np.int64, count=rows)


def sums(values: Floats, codes: NDArray[np.int64]) -> Floats:
    """Sum of the values of each cluster, [C]."""
    return np.bincount(codes, weights=values).astype(np.float64)


def spread(residuals: Floats, total: float) -> float:
    """Standard error of a mean or ratio from residuals summed by cluster, [C], over the total of what divides.

    sqrt(C/(C-1) sum r^2) / total (Miller 2411.00640); exactly 0 where the residuals are rounding.
    """
    count = len(residuals)
    if count < 2:
        return 0.0
    return math.sqrt(count / (count - 1) * float(residuals @ residuals)) / abs(total)


def critical(level: float, freedom: float) -> float:
    """Two-sided critical value of Student's t."""
    return float(stdtrit(freedom, (1 + level) / 2))


def two_sided(t: float, freedom: float) -> float:
    """Probability of a |t| of at least this, if nothing is there."""
    return float(2 * stdtr(freedom, -abs(t)))


def student(
    value: float, error: float, freedom: float, level: float, *, n: int, clusters: int, method: str, test: bool
) -> Estimate:
    """An estimate whose error follows Student's t. Where the error is 0: flagged, and without any claim."""
    flags = (*((DEGENERATE,) if error == 0 else ()), *((FEW_CLUSTERS,) if clusters < FEW else ()))
    half = critical(level, freedom) * error if error else 0.0
    p = (two_sided(value / error, freedom) if error else 1.0) if test else None
    return Estimate(
        value=value, low=rounded(value - half) if half else value, high=rounded(value + half) if half else value,
        level=level, n=n, clusters=clusters, method=method, p=None if p is None else rounded(p), flags=flags,
    )  # fmt: skip
