"""Estimates with intervals, sums of rows by cluster, and always-valid sequential tests.

    N  rows
    C  clusters
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from plinth.records import Frozen

Floats = NDArray[np.float64]
#: One label per row; None if every row is a cluster of its own.
Clusters = Sequence[Any] | NDArray[Any] | None

#: Flag: the standard error is exactly 0, or there is only one cluster. The spread is unknown, so no claim can be made.
DEGENERATE = "degenerate"
#: Flag: there are fewer than `FEW` clusters. The interval is Student's t, which assumes a normal distribution.
FEW_CLUSTERS = "few_clusters"
#: Flag: items are missing. The interval is valid for any scores that they might have had.
MISSING = "missing"

FEW = 10
#: A spread below this share of the summed magnitudes counts as rounding error.
ROUNDING = 1e-12
#: Significant digits of interval ends, so that the order of additions in a processor does not show; values are exact
#: sums (`math.fsum`).
DIGITS = 12


class Estimate(Frozen):
    """A value with its two-sided interval.

    `n` is the number of rows, `clusters` the number of clusters. `p` is the p-value of "no effect", if the method has a
    test. An interval of width 0 is always flagged `DEGENERATE` and carries no information.

    `unit` and `freedom` determine intervals at other levels: the error divided by `unit` follows Student's t with
    `freedom` degrees of freedom. Exact tests of pairs have no `freedom`; their `unit` is the maximum difference within
    one pair.
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
        """Return True if the interval excludes a value. An interval of width 0 excludes no value."""
        return self.low < self.high and not self.low <= value <= self.high

    def smallest_effect(self, power: float = 0.8, tests: int = 1) -> float | None:
        """Return the minimum detectable effect at this power, or None if no effect is detectable.

        With several `tests`, each must pass a stricter level (Bonferroni's level, which is Holm's for the smallest p).
        If the distribution at that level is unknown, the normal critical value is scaled to the interval's half width.
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
        by_pairs = beta_quantile(fewest, self.clusters - fewest + 1, power)  # share for that many pairs, all alike
        return rounded(max(by_width, self.unit * by_pairs))


def _noncentral(critical: float, freedom: float, power: float) -> float:
    """Return the effect, in standard errors, that Student's t detects with this power (Johnson and Welch 1940)."""
    spread = math.sqrt(1 + critical**2 / (2 * freedom))
    return critical * (1 - 1 / (4 * freedom)) + normal_quantile(power) * spread


def rounded(value: float) -> float:
    """Round to `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def checked(values: ArrayLike, like: Floats | None = None) -> Floats:
    """Return the values as FP64 [N] after checking them.

    Raises:
        ValueError: there are no values, a value is not finite, or the length differs from that of `like`.
    """
    out = np.asarray(values, dtype=np.float64)
    if out.ndim != 1 or not out.size or not np.isfinite(out).all():
        raise ValueError("expected at least one value, all finite, in one dimension")
    if like is not None and out.shape != like.shape:
        raise ValueError(f"{out.size} values for {like.size}")
    return out


def codes_of(clusters: Clusters, rows: int) -> NDArray[np.int64]:
    """Return each row's cluster number [N]; clusters are numbered in the order of their labels.

    Raises:
        ValueError: the number of labels is not `rows`.
    """
    if clusters is None:
        return np.arange(rows, dtype=np.int64)
    if len(clusters) != rows:
        raise ValueError(f"{len(clusters)} cluster labels for {rows} values")
    if isinstance(clusters, np.ndarray) and clusters.dtype.kind in "iu":
        return np.unique(clusters, return_inverse=True)[1].astype(np.int64)
    labels = clusters.tolist() if isinstance(clusters, np.ndarray) else clusters
    numbers = {label: i for i, label in enumerate(sorted(set(labels)))}
    return np.fromiter((numbers[label] for label in labels), dtype=np.int64, count=rows)


def sums(values: Floats, codes: NDArray[np.int64]) -> Floats:
    """Return the sum of the values in each cluster, [C]."""
    return np.bincount(codes, weights=values).astype(np.float64)


def spread(residuals: Floats, total: float, size: float) -> float:
    """Return the standard error of a mean or ratio from residuals summed by cluster, [C], and the total weight.

    The formula is sqrt(C/(C-1) sum r^2) / total (Miller 2411.00640). The result is exactly 0 for a single cluster, and
    if the error is only rounding error (`unrounded`).

    Args:
        size: sum of the magnitudes of all terms of the residuals.
    """
    count = len(residuals)
    if count < 2:
        return 0.0
    return unrounded(math.sqrt(count / (count - 1) * float(residuals @ residuals)), size) / abs(total)


def unrounded(error: float, size: float) -> float:
    """Return the error, or exactly 0 if it is only the rounding error of numbers with magnitude `size`."""
    return error if error > ROUNDING * size else 0.0


def fewest_pairs(alpha: float) -> int:
    """Return the smallest number of pairs with which an exact test can be significant: 2 (1/2)^k < alpha, if all k
    pairs differ in the same direction."""
    return math.floor(1 - math.log2(alpha)) + 1


def critical(level: float, freedom: float) -> float:
    """Return the two-sided critical value of Student's t."""
    return student_quantile(freedom, (1 + level) / 2)


def two_sided(t: float, freedom: float) -> float:
    """Return the two-sided p-value: the probability under the null hypothesis that |t| is at least this large."""
    return 2 * student_cdf(freedom, -abs(t))


def student(
    value: float, error: float, freedom: float, level: float, *, n: int, clusters: int, method: str, test: bool
) -> Estimate:
    """Return an estimate whose error follows Student's t. If the error is 0, the estimate is flagged and has no p."""
    flags = (*((DEGENERATE,) if error == 0 else ()), *((FEW_CLUSTERS,) if clusters < FEW else ()))
    half = critical(level, freedom) * error if error else 0.0
    p = (two_sided(value / error, freedom) if error else 1.0) if test else None
    return Estimate(
        value=value, low=rounded(value - half) if half else value, high=rounded(value + half) if half else value,
        level=level, n=n, clusters=clusters, method=method, p=None if p is None else rounded(p), flags=flags,
        unit=rounded(error) if error else None, freedom=rounded(freedom) if error else None,
    )  # fmt: skip


# Distribution functions of scipy, for the intervals of this package.
#
# scipy is imported at the first call: its import takes half a second, for every command that loads the pipeline.


def normal_quantile(p: float) -> float:
    """Return z with P(Z <= z) = p for a standard normal Z."""
    from scipy.special import ndtri

    return float(ndtri(p))


def normal_cdf(z: float) -> float:
    """Return P(Z <= z) for a standard normal Z."""
    from scipy.special import ndtr

    return float(ndtr(z))


def student_quantile(freedom: float, p: float) -> float:
    """Return t with P(T <= t) = p for Student's t with `freedom` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))


def student_cdf(freedom: float, t: float) -> float:
    """Return P(T <= t) for Student's t with `freedom` degrees of freedom."""
    from scipy.special import stdtr

    return float(stdtr(freedom, t))


def beta_quantile(a: float, b: float, p: float) -> float:
    """Return x with P(X <= x) = p, for Beta(a, b)."""
    from scipy.special import betaincinv

    return float(betaincinv(a, b, p))


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return P(X <= k) for n draws with success probability p."""
    from scipy.special import bdtr

    return float(bdtr(k, n, p))


def gamma_tail(a: float, x: float) -> float:
    """Return P(X > x) for Gamma(a, 1)."""
    from scipy.special import gammaincc

    return float(gammaincc(a, x))


# Always-valid test of a mean, with its interval. It can be evaluated after every observation.
#
# A mixture sequential probability ratio test (Robbins 1970; Johari, Pekelis and Walsh 2015) in the form with unknown
# variance: with g = 1 + n tau^2 and nu = n - 1, the likelihood ratio of "the mean is N(0, tau^2) standard deviations"
# against "it is 0" is
#
#     BF = g^(-1/2) ((1 + t^2 / nu) / (1 + t^2 / (nu g)))^(n/2)
#
# of Student's t alone (Lai 1976; Wang and Ramdas 2023, "Anytime-valid t-tests"). Under "it is 0" and normal
# differences, BF ever exceeds 1/alpha with probability at most alpha, at any number of interim analyses. Binary values
# and heavy tails keep that level in simulations; exponential values (skewness 2) reject in 7% of runs at alpha = 5%,
# and keep the level when the first analysis is after 100 observations.


class Sequential(Frozen):
    """Immutable state of a sequential test, which can be stored between interim analyses.

    `effect` is tau: the effect size, in standard deviations, for which the test has the highest power. There is one
    observation per cluster, such as a difference on a document, request or item. Interim analyses before observation
    `first_look` are ignored.
    """

    effect: float = 0.2
    level: float = 0.95
    n: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean
    p: float = 1.0  # smallest so far
    above: float = 1.0  # smallest so far while the mean was above 0
    first_look: int = 2

    def add(self, values: ArrayLike) -> Sequential:
        """Return the state after further observations, in order. `p` is computed as if the test was evaluated after
        each observation.

        Raises:
            ValueError: a value is not finite.
        """
        n, mean, squares, p, above = self.n, self.mean, self.squares, self.p, self.above
        for value in np.asarray(values, dtype=np.float64).ravel().tolist():
            if not math.isfinite(value):
                raise ValueError("a sequential test needs finite values")
            n += 1
            step = value - mean  # Welford 1962
            mean += step / n
            squares += step * (value - mean)
            now = _p(n, mean, squares, self.effect) if n >= self.first_look else 1.0
            p, above = min(p, now), min(above, now) if mean > 0 else above
        return self.model_copy(update={"n": n, "mean": mean, "squares": squares, "p": p, "above": above})

    @property
    def decided(self) -> bool:
        """True if any interim analysis so far rejected "no effect" at the level of the test."""
        return self.p <= 1 - self.level

    @property
    def exceeded(self) -> bool:
        """True if any interim analysis so far rejected "the mean is at most 0" at the level of the test."""
        return self.above <= 1 - self.level

    @property
    def estimate(self) -> Estimate:
        """Mean, with an interval that is valid simultaneously at all interim analyses.

        Raises:
            ValueError: there are no observations.
        """
        if not self.n:
            raise ValueError("nothing was observed")
        half = self._half_width()
        unknown = not 0 < half < math.inf
        flags = (*((DEGENERATE,) if unknown else ()), *((FEW_CLUSTERS,) if self.n < FEW else ()))
        half = 0.0 if unknown else half
        low, high = (rounded(self.mean - half), rounded(self.mean + half)) if half else (self.mean, self.mean)
        return Estimate(
            value=self.mean, low=low, high=high, level=self.level, n=self.n, clusters=self.n,
            method="mixture SPRT, always valid", p=rounded(self.p), flags=flags,
        )  # fmt: skip

    def _half_width(self) -> float:
        """Return the distance from the mean at which the likelihood ratio reaches 1 / alpha, or infinity if it never
        does."""
        if self.n < 2:
            return math.inf
        g = 1 + self.n * self.effect**2
        k = math.exp((math.log(g) - 2 * math.log(1 - self.level)) / self.n)
        return math.sqrt(self.squares * (k - 1) / (1 - k / g) / self.n) if k < g else math.inf


def _p(n: int, mean: float, squares: float, effect: float) -> float:
    """Return the always-valid p-value: 1 / Bayes factor, at most 1. It is 1 as long as the values have no variance."""
    if n < 2 or squares <= 0:
        return 1.0
    g, ratio = 1 + n * effect**2, n * mean**2 / squares  # t^2 / nu
    log = -0.5 * math.log(g) + n / 2 * (math.log1p(ratio) - math.log1p(ratio / g))
    return math.exp(-max(0.0, log))


def sequential_power(shift: float, *, effect: float, level: float, most: int, draws: int = 4000) -> float:
    """Return the probability that a sequential test exceeds 0 within `most` observations, for normal observations.

    The probability is the share of simulated tests with a fixed seed; its standard error is at most 0.008.

    Args:
        shift: true mean, in standard deviations of one observation.
        effect, level: as in `Sequential`.
    """
    values = np.random.default_rng(0).standard_normal((draws, most)) + shift
    n = np.arange(2, most + 1)
    means = np.cumsum(values, axis=1)[:, 1:] / n
    squares = np.cumsum(values**2, axis=1)[:, 1:] - n * means**2
    g, ratio = 1 + n * effect**2, n * means**2 / squares
    log = -0.5 * np.log(g) + n / 2 * (np.log1p(ratio) - np.log1p(ratio / g))
    return float(((log >= -math.log(1 - level)) & (means > 0)).any(axis=1).mean())


# Always-valid test that later values have the same distribution as earlier values.
#
# A conformal test martingale (Vovk, Nouretdinov and Gammerman 2003): the rank of every later value among all values so
# far, with random tie-breaking, is uniform and independent of earlier ranks as long as all values are exchangeable,
# whatever their distribution. The wealth of bets against uniform ranks is a martingale, so it ever reaches 1 / alpha
# with probability at most alpha (Ville 1939). The reference may be small: it is ranked, not used for estimation.
#
# The bet is the mean of epsilon p^(epsilon - 1) over epsilons, once on larger and once on smaller values: wealth grows
# if ranks cluster at either end. A share 1 / (k (k + 1)) of the stake is reserved for a change at the k-th possible
# start, so a long period without change does not hide a later one.
#
#     m  values of reference
#     n  later values

#: Bets against uniform ranks, from aggressive to cautious.
EPSILONS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def ranks(reference: ArrayLike, later: ArrayLike, draws: ArrayLike) -> Floats:
    """Return the rank of each later value, [n]: the fraction of all values so far that are larger.

    Args:
        reference: earlier values.
        later: later values, in order.
        draws: uniform numbers on [0, 1), [n]: the fraction of tied values, including the value itself, that counts as
            larger. The draws must not depend on the values.

    Raises:
        ValueError: there is no reference or no later value, a value is not finite, or the number of draws is wrong.
    """
    held, new = sorted(checked(reference).tolist()), checked(later)
    shares = checked(draws, new)
    found = np.empty(len(new))
    for at, (value, share) in enumerate(zip(new.tolist(), shares.tolist(), strict=True)):
        insort(held, value)
        first, last = bisect_left(held, value), bisect_right(held, value)
        found[at] = (len(held) - last + share * (last - first)) / len(held)
    return np.clip(found, 1e-12, 1.0)


def wealth(uniform: ArrayLike, starts: Sequence[int] = (0,)) -> Floats:
    """Return the log wealth of a gambler who bets against uniform ranks, after each rank, [n].

    Args:
        uniform: ranks, which are uniform if the values are exchangeable.
        starts: possible starts of a change, increasing from 0; chosen independently of the ranks.

    Raises:
        ValueError: there is no rank, a rank is outside [0, 1], or the starts do not increase from 0.
    """
    found = checked(uniform)
    if found.min() < 0 or found.max() > 1 or list(starts) != sorted({0, *starts}) or starts[-1] >= len(found):
        raise ValueError("ranks must be between 0 and 1, and starts must increase from 0")
    total = np.full(len(found), -np.log(len(starts) + 1))  # reserve for later starts
    for k, start in enumerate(starts, 1):
        own = np.concatenate([np.zeros(start), _bet(found[start:])])
        total = np.logaddexp(total, own - np.log(k * (k + 1)))
    return total


def _bet(found: Floats) -> Floats:
    """Return the log wealth after each rank, [n], of bets that start at the first rank."""
    bets = np.array(EPSILONS)[:, None]
    sides = [np.log(bets) + (bets - 1) * np.log(np.clip(one, 1e-12, 1.0)) for one in (found, 1 - found)]
    paths = np.concatenate([np.cumsum(one, axis=1) for one in sides])
    top = paths.max(axis=0)
    return np.asarray(top + np.log(np.exp(paths - top).mean(axis=0)))


def exchangeable_p(reference: ArrayLike, later: ArrayLike, draws: ArrayLike, starts: Sequence[int] = (0,)) -> Floats:
    """Return the always-valid p-value of exchangeability after each later value, [n].

    Each result is the smallest p-value so far, and remains valid under optional stopping.

    Raises:
        ValueError: raised under the same conditions as by `ranks` and `wealth`.
    """
    return np.minimum(1.0, np.exp(-np.maximum.accumulate(wealth(ranks(reference, later, draws), starts))))
