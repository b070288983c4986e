"""Fractions of items (some items may have no score), corrections for multiple tests, and sample sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from plinth.corpus.slices.rates import wilson
from plinth.evaluation.statistics.estimate import (
    FEW,
    FEW_CLUSTERS,
    MISSING,
    Estimate,
    Floats,
    beta_quantile,
    binomial_cdf,
    checked,
    normal_cdf,
    normal_quantile,
    rounded,
)


def share(successes: int, n: int, *, level: float = 0.95) -> Estimate:
    """Return a fraction with Wilson's interval (1927), for items sampled independently.

    Raises:
        ValueError: there are no items, or more successes than items.
    """
    _check(successes, n)
    low, high = wilson(successes, n, normal_quantile((1 + level) / 2))
    return Estimate(
        value=successes / n, low=rounded(low), high=rounded(high), level=level, n=n, clusters=n,
        method="Wilson", flags=(FEW_CLUSTERS,) if n < FEW else (),
    )  # fmt: skip


def upper_share(successes: int, n: int, *, level: float = 0.95) -> float:
    """Return the one-sided exact upper limit of a fraction at confidence `level` (Clopper and Pearson 1934).

    Raises:
        ValueError: raised under the same conditions as by `share`.
    """
    _check(successes, n)
    return 1.0 if successes == n else rounded(beta_quantile(successes + 1, n - successes, level))


def lower_share(successes: int, n: int, *, level: float = 0.95) -> float:
    """Return the one-sided exact lower limit of a fraction at confidence `level` (Clopper and Pearson 1934).

    Raises:
        ValueError: raised under the same conditions as by `share`.
    """
    return rounded(1 - upper_share(n - successes, n, level=level))


def share_with_missing(successes: int, scored: int, missing: int, *, level: float = 0.95) -> Estimate:
    """Return the fraction of successes among all items if some have no score, without assumptions about missing scores.

    The value is the fraction among the scored items. The interval is valid for any scores of the missing items. It runs
    from Wilson's lower end with all missing items wrong to the upper end with all missing items right. The critical
    value is that of Imbens and Manski (2004), between the one-sided value (many missing) and the two-sided value (none
    missing). Both ends account for the randomness of missingness. Stretching the interval of the scored items would be
    too narrow.

    Raises:
        ValueError: raised under the same conditions as by `share`.
    """
    _check(successes, scored)
    if missing < 0:
        raise ValueError("the number of missing items must not be negative")
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
    """Return c with Phi(c + width) - Phi(-c) = level; `width` is the width of the unknown part in standard errors."""
    low, high = normal_quantile(level), normal_quantile((1 + level) / 2)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if normal_cdf(middle + width) - normal_cdf(-middle) < level else (low, middle)
    return high


def _check(successes: int, n: int) -> None:
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"expected 0 to {n} successes, not {successes}")


#: Number of discordant pairs from which the normal approximation applies (the usual rule for McNemar's test).
FEW_PAIRS = 25


def mcnemar(a_only: int, b_only: int, *, mid: bool = False) -> float:
    """Return the two-sided p-value of "each model is equally often the only correct one": binomial over discordant
    pairs (McNemar 1947).

    Args:
        a_only: number of items that only the first model answered correctly.
        b_only: number of items that only the second model answered correctly.
        mid: use the mid-p value (Fagerland, Lydersen and Laake 2013). Its error rate is closer to the nominal level,
            but may exceed it.

    Raises:
        ValueError: a number is negative.
    """
    if a_only < 0 or b_only < 0:
        raise ValueError("numbers of items must not be negative")
    count, fewer = a_only + b_only, min(a_only, b_only)
    if a_only == b_only:
        return 1.0
    tail = binomial_cdf(fewer, count, 0.5)
    if mid:
        tail -= math.comb(count, fewer) / 2 ** (count + 1)
    return min(1.0, 2 * tail)


def tango(a_only: int, b_only: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return the score interval of the difference between two paired fractions (Tango 1998); valid for few discordant
    pairs.

    Raises:
        ValueError: there are more discordant pairs than pairs.
    """
    if n < 1 or a_only + b_only > n:
        raise ValueError("a paired difference needs at least one pair")
    z, middle = normal_quantile((1 + level) / 2), (a_only - b_only) / n

    def statistic(difference: float) -> float:
        linear = (2 * n - a_only + b_only) * difference - a_only - b_only
        root = math.sqrt(max(0.0, linear**2 + 8 * n * b_only * difference * (1 - difference)))
        alone = (root - linear) / (4 * n)  # share that only b answers correctly, given the difference
        variance = n * (2 * alone + difference * (1 - difference))
        gap = a_only - b_only - n * difference
        return gap / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, gap) if gap else 0.0

    low = _crossing(lambda d: statistic(d) <= z, -1.0, middle)
    return low, _crossing(lambda d: statistic(d) < -z, middle, 1.0)


def _crossing(after: Callable[[float], bool], low: float, high: float) -> float:
    """Return, by bisection, the point between `low` and `high` from which on a condition is true."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if after(middle) else (middle, high)
    return (low + high) / 2


def holm(p_values: ArrayLike) -> Floats:
    """Return p-values [T] adjusted for multiple tests (Holm 1979). Rejecting hypotheses with an adjusted p below alpha
    controls the familywise error rate.

    Raises:
        ValueError: there are no values, or a value is outside [0, 1].
    """
    given = checked(p_values)
    if ((given < 0) | (given > 1)).any():
        raise ValueError("p-values must be between 0 and 1")
    order = np.argsort(given, kind="stable")
    stepped = np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1))
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def spending_level(number: int, alpha: float) -> float:
    """Return the level of a test in an unbounded stream of tests, by alpha-spending: alpha gamma_t.

    The probability that the stream rejects any true null hypothesis is at most alpha, because the gamma_t sum to 1
    (union bound; Tian and Ramdas 2021, "Online control of the familywise error rate", arXiv:1910.04900, section 3).
    The bound needs no assumption about the dependence between the tests. The weights telescope, gamma_t =
    1 / log2(t + 1) - 1 / log2(t + 2), and fall almost as slowly as a summable series can: gamma_200 is 1 / 8,000.

    Args:
        number: place t of the test in the stream, from 1.

    Raises:
        ValueError: the number is below 1, or alpha is not a probability.
    """
    return spent_alpha(number, alpha) - spent_alpha(number - 1, alpha)


def spent_alpha(tests: int, alpha: float) -> float:
    """Return the share of alpha that the first tests of a stream have spent (`spending_level`).

    Raises:
        ValueError: the number of tests is below 0, or alpha is not a probability.
    """
    _check_level(alpha, alpha)
    if tests < 0:
        raise ValueError("a stream of tests starts at number 1")
    return alpha * (1 - 1 / math.log2(tests + 2))


def smallest_effect(error: float, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """Return the minimum detectable effect of a two-sided test at this power, from the standard error of the estimate.

    Raises:
        ValueError: the standard error is not above 0, or power or alpha is not a probability.
    """
    _check_level(power, alpha)
    if not 0 < error < math.inf:
        raise ValueError("the minimum detectable effect is unknown if the standard error is 0")
    return (normal_quantile(1 - alpha / 2) + normal_quantile(power)) * error


def sample_size(
    effect: float,
    variance: float,
    *,
    noise_a: float = 0.0,
    noise_b: float = 0.0,
    samples_a: int = 1,
    samples_b: int = 1,
    power: float = 0.8,
    alpha: float = 0.05,
) -> int:
    """Return the number of items that a paired comparison needs to detect `effect` (Miller 2411.00640, equation 9).

    Args:
        effect: difference of means to detect.
        variance: variance, over items, of the difference between the two models' expected scores.
        noise_a, noise_b: variance of a sample's score around the expected score of its item, for each model.
        samples_a, samples_b: samples per item for each model.
        power, alpha: power and level of the two-sided test.

    Raises:
        ValueError: the effect or the variance is 0, a variance is below 0, a number is not finite, there is less than
            one sample per item, or power or alpha is not a probability.
    """
    _check_level(power, alpha)
    variances = (variance, noise_a, noise_b)
    if min(samples_a, samples_b) < 1 or not all(0 <= one < math.inf for one in variances):
        raise ValueError("variances must be finite and at least 0, with at least one sample per item")
    whole = variance + noise_a / samples_a + noise_b / samples_b
    if not math.isfinite(effect) or not effect or not whole:
        raise ValueError("the effect and the variance must be above 0 and finite")
    return math.ceil((normal_quantile(1 - alpha / 2) + normal_quantile(power)) ** 2 * whole / effect**2)


def _check_level(power: float, alpha: float) -> None:
    if not (0 < power < 1 and 0 < alpha < 1):
        raise ValueError(f"power and alpha must be between 0 and 1, not {power} and {alpha}")
