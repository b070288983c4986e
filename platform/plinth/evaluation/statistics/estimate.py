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
from pydantic import Field

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
#: Below this share of the numbers that were added and subtracted, a spread is rounding.
ROUNDING = 1e-12
#: Ends of intervals are rounded to so many significant digits, so that the order in which a processor adds does not
#: show; values are sums without rounding (`math.fsum`).
DIGITS = 12


class Estimate(Frozen):
    """A value with its two-sided interval.

    `n` are rows, `clusters` what was sampled; `p` is the probability of at least this much if there were no effect,
    where the method tests. An interval without width, always flagged `DEGENERATE`, says nothing.

    `unit` and `freedom` say what follows at other levels: distances from the truth are Student's t with `freedom`
    degrees, times `unit`; of exact tests of pairs, which have no freedom, `unit` is what one pair alone can differ by.
    """

    value: float
    low: float
    high: float
    level: float = Field(0.95, gt=0, lt=1)
    n: int
    clusters: int
    method: str
    seed: int | None = None
    p: float | None = None
    unit: float | None = None
    freedom: float | None = None
    flags: tuple[str, ...] = ()

    def excludes(self, value: float = 0.0) -> bool:
        """Whether the interval rules a value out; one without width rules nothing out."""
        return self.low < self.high and not self.low <= value <= self.high

    def smallest_effect(self, power: float = 0.8, tests: int = 1) -> float | None:
        """The true effect that such a measurement would find with this power; None where it could find none.

        One of several `tests` must pass a stricter level (Bonferroni's, which is Holm's for the smallest p). Where the
        distribution at that level is not known, the interval's half width stands for its normal critical value.
        """
        if self.low == self.high:
            return None
        alpha = (1 - self.level) / tests
        if self.unit is not None and self.freedom is not None:
            return rounded(self.unit * _noncentral(critical(1 - alpha, self.freedom), self.freedom, power))
        usual, corrected = (normal_quantile(1 - one / 2) for one in (1 - self.level, alpha))
        by_width = (self.high - self.low) / 2 * (corrected + normal_quantile(power)) / usual
        if self.unit is None:
            return rounded(by_width)
        fewest = fewest_pairs(alpha)
        if fewest > self.clusters:
            return None
        by_pairs = beta_quantile(fewest, self.clusters - fewest + 1, power)  # so probable are that many, all alike
        return rounded(max(by_width, self.unit * by_pairs))


def _noncentral(critical: float, freedom: float, power: float) -> float:
    """Standard errors at which Student's t exceeds its critical value with this power (Johnson and Welch 1940)."""
    spread = math.sqrt(1 + critical**2 / (2 * freedom))
    return critical * (1 - 1 / (4 * freedom)) + normal_quantile(power) * spread


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
    if isinstance(clusters, np.ndarray) and clusters.dtype.kind in "iu":
        return np.unique(clusters, return_inverse=True)[1].astype(np.int64)
    labels = clusters.tolist() if isinstance(clusters, np.ndarray) else clusters
    numbers = {label: i for i, label in enumerate(sorted(set(labels)))}
    return np.fromiter((numbers[label] for label in labels), dtype=np.int64, count=rows)


def sums(values: Floats, codes: NDArray[np.int64]) -> Floats:
    """Sum of the values of each cluster, [C]."""
    return np.bincount(codes, weights=values).astype(np.float64)


def spread(residuals: Floats, total: float, size: float) -> float:
    """Standard error of a mean or ratio from residuals summed by cluster, [C], over the total of what divides.

    sqrt(C/(C-1) sum r^2) / total (Miller 2411.00640); exactly 0 of one cluster, and where it is rounding (`unrounded`).

    Args:
        size: sum of the magnitudes of all that was added and subtracted on the way to the residuals.
    """
    count = len(residuals)
    if count < 2:
        return 0.0
    return unrounded(math.sqrt(count / (count - 1) * float(residuals @ residuals)), size) / abs(total)


def unrounded(error: float, size: float) -> float:
    """The error, or exactly 0 where it is but the rounding of arithmetic with numbers of this size."""
    return error if error > ROUNDING * size else 0.0


def fewest_pairs(alpha: float) -> int:
    """Pairs that must differ, all the same way, before an exact test of them falls below alpha: 2 (1/2)^k < alpha."""
    return math.floor(1 - math.log2(alpha)) + 1


def critical(level: float, freedom: float) -> float:
    """Two-sided critical value of Student's t."""
    return student_quantile(freedom, (1 + level) / 2)


def two_sided(t: float, freedom: float) -> float:
    """Probability of a |t| of at least this, if nothing is there."""
    return 2 * student_cdf(freedom, -abs(t))


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
        unit=rounded(error) if error else None, freedom=rounded(freedom) if error else None,
    )  # fmt: skip


# Distribution functions as scipy has them, for the intervals of this package.
#
# scipy is imported at the first call: it takes half a second, which every command that loads the pipeline would pay.


def normal_quantile(p: float) -> float:
    """z with P(Z <= z) = p."""
    from scipy.special import ndtri

    return float(ndtri(p))


def normal_cdf(z: float) -> float:
    """P(Z <= z)."""
    from scipy.special import ndtr

    return float(ndtr(z))


def student_quantile(freedom: float, p: float) -> float:
    """t with P(T <= t) = p."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))


def student_cdf(freedom: float, t: float) -> float:
    """P(T <= t)."""
    from scipy.special import stdtr

    return float(stdtr(freedom, t))


def beta_quantile(a: float, b: float, p: float) -> float:
    """x with P(X <= x) = p, of Beta(a, b)."""
    from scipy.special import betaincinv

    return float(betaincinv(a, b, p))


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k), of n draws with probability p."""
    from scipy.special import bdtr

    return float(bdtr(k, n, p))


def gamma_tail(a: float, x: float) -> float:
    """P(X > x), of Gamma(a, 1)."""
    from scipy.special import gammaincc

    return float(gammaincc(a, x))
