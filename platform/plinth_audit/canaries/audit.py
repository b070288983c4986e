"""Statistics of canary losses: exposure by rank among references, and a lower bound on epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plinth.evaluation.statistics.estimate import beta_quantile, gamma_tail
from plinth.records import Frozen

# Exposure of canaries: the rank of their losses among the losses of references that the model never saw.
#
#     rank      1 + references with a loss at or below the canary's: ties count against the canary
#     exposure  log2 |R| - log2 rank, in bits (Carlini et al. 2019, arXiv:1802.08232)
#     beyond    a canary below all references: -log2 of the CDF of a skew-normal fitted to the references, where that is
#               more (as `secret_sharer/exposures.py` of TensorFlow Privacy)
#     p         of a model that never saw them, exposures are exponential with mean 1 / ln 2 bits, so
#               ln 2 times the sum over m canaries is Gamma(m, 1)
#
# The p-value uses ranks alone: a fitted tail is a picture, not evidence. Ranks lie on a grid, so the sum is a little
# below its limit, and the test is a little cautious.

Floats = NDArray[np.float64]

#: Two statistics: memorization of any planted canary, and of canaries with a given number of repetitions, which the
#: gate `canaries` uses.
ALL_PLANTED = "p-value under no memorization, over all planted canaries"
PLANTED_TIMES = "p-value under no memorization, canaries planted {count}"

#: Number of points of the integral over a fitted tail, and its depth in nats.
TAIL_POINTS, TAIL_DEPTH = 4001, 40.0


def ranks(bits: Floats, references: Floats) -> NDArray[np.int64]:
    """Return the rank of each canary's loss [m] among the reference losses [r], from 1 (lowest) to r + 1.

    Raises:
        ValueError: a loss is not finite.
    """
    if not (np.isfinite(bits).all() and np.isfinite(references).all()):
        raise ValueError("canary and reference losses must be finite numbers")
    return np.searchsorted(np.sort(references), bits, side="right").astype(np.int64) + 1


def exposures(found: NDArray[np.int64], references: int) -> Floats:
    """Return the exposure in bits for each rank: log2 of the number of references for rank 1, about 0 for the last
    rank."""
    return math.log2(references) - np.log2(found)


def extended(bits: Floats, references: Floats) -> Floats:
    """Return the exposure of each canary loss, in bits.

    If a loss is lower than all reference losses, its exposure comes from the tail of a distribution fitted to them.
    """
    found = exposures(ranks(bits, references), len(references))
    below = bits < references.min()
    if below.any():
        from scipy import stats  # takes half a second, which every command that loads the pipeline would need

        fitted = stats.skewnorm.fit(references)
        tail = np.array([-_log_cdf(float(one), *fitted) / math.log(2) for one in bits[below]])
        found[below] = np.maximum(found[below], tail)
    return found


def exposure_p_value(found: Floats) -> float:
    """Return the p-value of the sum of canary exposures under no memorization, or 1 if there are no canaries."""
    return gamma_tail(len(found), math.log(2) * found.sum()) if len(found) else 1.0


def p_value_of_group(group: Mapping[str, Any]) -> float:
    """Return the p-value of a group of canaries with equal repetitions, computed from the group's mean exposure."""
    return exposure_p_value(np.full(int(group["exposure"]["n"]), float(group["exposure"]["value"])))


def _log_cdf(value: float, shape: float, location: float, scale: float) -> float:
    """Return the logarithm of a skew-normal CDF far below its mode, where the CDF itself underflows.

    The density falls at least geometrically below `value`, so an integral over a few nats is enough.
    """
    from scipy import stats

    at = stats.skewnorm.logpdf(value, shape, location, scale)
    below = stats.skewnorm.logpdf(value - 1e-6 * scale, shape, location, scale)
    slope = (at - below) / 1e-6  # nats per `scale`
    if not slope > 0:
        return float(stats.skewnorm.logcdf(value, shape, location, scale))
    depths = np.linspace(0.0, TAIL_DEPTH / slope, TAIL_POINTS)
    heights = np.exp(stats.skewnorm.logpdf(value - depths * scale, shape, location, scale) - at)
    return float(at + math.log(np.trapezoid(heights, depths) * scale))


# A lower bound on epsilon from one run (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training
# Run", arXiv:2305.08846, theorem 2.1 and corollary 5.4).
#
# A fair coin decided for every canary if it was included. An auditor of the model guesses some of the coins. If
# training were epsilon-DP with respect to a canary with all its copies, each guess would be correct with probability at
# most e^eps / (1 + e^eps), independent of the others, so v correct of r guesses bound epsilon from below. The bound is
# valid for any rule that sees the model but not the coins; the number of guesses may depend on the model.
#
#     in    the loss ranks among the lowest 1% of references
#     out   any other canary of a group in which at least a quarter were guessed in; otherwise no guess
#
# For (epsilon, delta)-DP the probability of v correct guesses of r has an additional term in delta, and r is fixed in
# advance (`extremes`):
#
#     P(v or more) <= P(B >= v) + 2 m delta max_i P(v > B >= v - i) / i        B ~ Bin(r, e^eps / (1 + e^eps))
#
# The bound is a minimum of the leakage; a bound of 0 does not prove that nothing leaks.

IN_SHARE, GROUP_SHARE = 0.01, 0.25
#: Bisection steps in the search for a bound.
HALVINGS = 60


class Claim(Frozen):
    """Privacy claim to audit: training is (epsilon, delta)-DP with respect to each canary."""

    canaries: int = Field(ge=1, description="Number m of canaries, each planted or excluded at random.")
    delta: float = Field(0.0, ge=0, lt=1)
    level: float = Field(0.95, gt=0, lt=1, description="Confidence level of the bound on epsilon.")


class Audit(Frozen):
    """Result of a privacy audit: number of membership guesses, number of correct guesses, lower bound on epsilon."""

    guesses: int
    right: int
    epsilon: float
    level: float


def guesses(ranks: NDArray[np.int64], groups: NDArray[np.int64], references: int) -> NDArray[np.int8]:
    """Return one membership guess per canary [m], from its rank and its repetitions.

    1 means planted, -1 means not planted, and 0 means no guess.
    """
    inside = ranks <= IN_SHARE * (references + 1)
    shown = [group for group in np.unique(groups) if inside[groups == group].mean() >= GROUP_SHARE]
    return np.where(inside, 1, np.where(np.isin(groups, shown), -1, 0)).astype(np.int8)


def extremes(scores: NDArray[np.float64], inside: int, outside: int) -> NDArray[np.int8]:
    """Return membership guesses, coded as in `guesses`, for the canaries with the highest and lowest scores.

    The `inside` canaries with the highest scores are guessed planted, and the `outside` canaries with the lowest scores
    are guessed not planted.

    Args:
        scores: memorization score of each canary [m]; among equal scores, the first counts as the lowest.
        inside, outside: number of guesses of each kind; their sum is at most m.

    Raises:
        ValueError: a score is not a number, or there are more guesses than canaries.
    """
    if np.isnan(scores).any() or not 0 <= inside <= inside + outside <= len(scores):
        raise ValueError(
            f"{inside} + {outside} guesses need at least as many canaries with scores that are not NaN; found "
            f"{len(scores)}"
        )
    order, made = np.argsort(scores, kind="stable"), np.zeros(len(scores), np.int8)
    made[order[:outside]], made[order[len(order) - inside :]] = -1, 1
    return made


def audit(guessed: NDArray[np.int8], planted: NDArray[np.bool_], level: float = 0.95, delta: float = 0.0) -> Audit:
    """Return the privacy audit result for membership guesses, at a confidence level.

    If delta is not 0, the number of guesses must be fixed in advance.
    """
    made = guessed != 0
    total, right = int(made.sum()), int(((guessed > 0) == planted)[made].sum())
    claim = Claim(canaries=len(planted), delta=delta, level=level)
    return Audit(guesses=total, right=right, epsilon=bound(right, total, claim), level=level)


def bound(right: int, total: int, claim: Claim) -> float:
    """Return the largest epsilon that the number of correct guesses rules out at the claim's delta.

    The relative error is 1e-15. A run that is (epsilon, delta)-DP is also DP for every larger epsilon, so a rejected
    epsilon is a lower bound.
    """
    pure = lower_bound(right, total, claim.level)
    if not claim.delta or not pure:
        return pure
    low, high = 0.0, pure
    if p_value(right, total, low, claim) >= 1 - claim.level:
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(right, total, middle, claim) < 1 - claim.level else (low, middle)
    return low


def p_value(right: int, total: int, epsilon: float, claim: Claim) -> float:
    """Return the maximum probability of at least `right` correct guesses under (epsilon, delta)-DP.

    Args:
        right: number of correct guesses, v in the formula.
        total: number of guesses, r in the formula; fixed in advance.

    Raises:
        ValueError: not 0 <= right <= total <= canaries, or epsilon is negative.
    """
    if not 0 <= right <= total <= claim.canaries or not epsilon >= 0:
        raise ValueError(f"{right} of {total} guesses are correct, for {claim.canaries} canaries and epsilon {epsilon}")
    if not right:
        return 1.0
    from scipy.special import bdtrc, expit  # imported late, as in `statistics.distributions`

    share = float(expit(epsilon))
    below = np.cumsum(_binomial(np.arange(right - 1, -1, -1), total, share))  # P(v > B >= v - i), i = 1 … v
    rise = float((below / np.arange(1, right + 1)).max())
    return min(1.0, float(bdtrc(right - 1, total, share)) + 2 * claim.canaries * claim.delta * rise)


def lower_bound(right: int, total: int, level: float = 0.95) -> float:
    """Return the largest epsilon that the correct guesses rule out under pure epsilon-DP.

    It is the logit of the exact lower bound on the guess accuracy.
    """
    if not right:
        return 0.0
    share = beta_quantile(right, total - right + 1, 1 - level)
    return max(0.0, math.log(share / (1 - share)))


def _binomial(count: NDArray[np.int64], total: int, share: float) -> NDArray[np.float64]:
    """Return the binomial probability of each number of successes in `total` trials."""
    from scipy.special import gammaln

    ways = gammaln(total + 1) - gammaln(count + 1) - gammaln(total - count + 1)
    return np.asarray(np.exp(ways + count * math.log(share) + (total - count) * math.log1p(-share)))
