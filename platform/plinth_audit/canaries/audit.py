"""A lower bound on epsilon from one run (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training
Run", arXiv:2305.08846, theorem 2.1 and corollary 5.4).

Every canary was in or out by a fair coin. Whoever sees the model guesses some of the coins and leaves the others. If
training were epsilon-DP towards a canary with all its copies, each guess would be right with probability at most
e^eps / (1 + e^eps), whatever the others are, so r guesses with v right bound epsilon from below. The bound holds
for any rule that sees the model and not the coins; the number of guesses may depend on the model.

    in    the loss ranks among the lowest 1% of references
    out   any other canary of a group in which at least a quarter were guessed in; else no guess

For (epsilon, delta)-DP the probability of v right ones of r rises by a term of delta, and r is fixed beforehand
(`extremes`):

    P(v or more) <= P(B >= v) + 2 m delta max_i P(v > B >= v - i) / i        B ~ Bin(r, e^eps / (1 + e^eps))

A bound says what the run leaks at least; a bound of 0 does not say that it leaks nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plinth.evaluation.statistics.estimate import beta_quantile
from plinth.records import Frozen

IN_SHARE, GROUP_SHARE = 0.01, 0.25
#: Halvings of the interval in which a bound is searched.
HALVINGS = 60


class Claim(Frozen):
    """What an audit tests: (epsilon, delta)-DP towards each of so many canaries."""

    canaries: int = Field(ge=1, description="All that had a coin, guessed or not: m.")
    delta: float = Field(0.0, ge=0, lt=1)
    level: float = Field(0.95, gt=0, lt=1, description="Confidence of the bound on epsilon.")


class Audit(Frozen):
    """Guesses about coins, and what they prove."""

    guesses: int
    right: int
    epsilon: float
    level: float


def guesses(ranks: NDArray[np.int64], groups: NDArray[np.int64], references: int) -> NDArray[np.int8]:
    """1: in; -1: out; 0: no guess. Of canaries [m] by rank and group of repetitions."""
    inside = ranks <= IN_SHARE * (references + 1)
    shown = [group for group in np.unique(groups) if inside[groups == group].mean() >= GROUP_SHARE]
    return np.where(inside, 1, np.where(np.isin(groups, shown), -1, 0)).astype(np.int8)


def extremes(scores: NDArray[np.float64], inside: int, outside: int) -> NDArray[np.int8]:
    """Guesses (as `guesses`) whose number is fixed: the highest scores [m] are in, the lowest are out.

    Args:
        scores: how much the model seems to know each canary; of equal ones the first counts as lower.
        inside, outside: how many of each; together at most m.

    Raises:
        ValueError: a score that is no number, or more guesses than canaries.
    """
    if np.isnan(scores).any() or not 0 <= inside <= inside + outside <= len(scores):
        raise ValueError(f"{inside} + {outside} guesses of {len(scores)} canaries need as many scores that are numbers")
    order, made = np.argsort(scores, kind="stable"), np.zeros(len(scores), np.int8)
    made[order[:outside]], made[order[len(order) - inside :]] = -1, 1
    return made


def audit(guessed: NDArray[np.int8], planted: NDArray[np.bool_], level: float = 0.95, delta: float = 0.0) -> Audit:
    """The bound at this level; where delta is not 0, the number of guesses must have been fixed beforehand."""
    made = guessed != 0
    total, right = int(made.sum()), int(((guessed > 0) == planted)[made].sum())
    claim = Claim(canaries=len(planted), delta=delta, level=level)
    return Audit(guesses=total, right=right, epsilon=bound(right, total, claim), level=level)


def bound(right: int, total: int, claim: Claim) -> float:
    """An epsilon that so many right guesses rule out beside the claim's delta; the largest, to 1e-15 of it.

    If a run is (epsilon, delta)-DP it is so for every larger epsilon, so any that is ruled out is a lower bound.
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
    """Most that the probability of so many right guesses can be under (epsilon, delta)-DP.

    Args:
        right: v of the formula.
        total: r, fixed before the model was seen.

    Raises:
        ValueError: not 0 <= right <= total <= canaries, or an epsilon below 0.
    """
    if not 0 <= right <= total <= claim.canaries or not epsilon >= 0:
        raise ValueError(f"{right} right of {total} guesses of {claim.canaries} canaries, epsilon {epsilon}")
    if not right:
        return 1.0
    from scipy.special import bdtrc, expit  # late, as in `statistics.distributions`

    share = float(expit(epsilon))
    below = np.cumsum(_binomial(np.arange(right - 1, -1, -1), total, share))  # P(v > B >= v - i), i = 1 … v
    rise = float((below / np.arange(1, right + 1)).max())
    return min(1.0, float(bdtrc(right - 1, total, share)) + 2 * claim.canaries * claim.delta * rise)


def lower_bound(right: int, total: int, level: float = 0.95) -> float:
    """Largest epsilon that so many right guesses rule out: the logit of the exact lower bound on their probability."""
    if not right:
        return 0.0
    share = beta_quantile(right, total - right + 1, 1 - level)
    return max(0.0, math.log(share / (1 - share)))


def _binomial(count: NDArray[np.int64], total: int, share: float) -> NDArray[np.float64]:
    """Probability of each count of successes in `total` trials."""
    from scipy.special import gammaln

    ways = gammaln(total + 1) - gammaln(count + 1) - gammaln(total - count + 1)
    return np.asarray(np.exp(ways + count * math.log(share) + (total - count) * math.log1p(-share)))
