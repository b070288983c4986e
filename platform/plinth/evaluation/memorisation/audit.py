"""A lower bound on epsilon from one run (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training
Run", arXiv:2305.08846, theorem 2.1).

Every canary was in or out by a fair coin. Whoever sees the model guesses some of the coins and leaves the others. If
training were epsilon-DP towards a canary with all its copies, each guess would be right with probability at most
e^eps / (1 + e^eps), whatever the others are, so r guesses with v right bound epsilon from below. The bound holds
for any rule that sees the model and not the coins; the number of guesses may depend on the model.

    in    the loss ranks among the lowest 1% of references
    out   any other canary of a group in which at least a quarter were guessed in; else no guess

The bound is for delta = 0. It says what the run leaks at least; a bound of 0 does not say that it leaks nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from plinth.records import Frozen

IN_SHARE, GROUP_SHARE = 0.01, 0.25


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


def audit(guessed: NDArray[np.int8], planted: NDArray[np.bool_], level: float = 0.95) -> Audit:
    """The bound at this level."""
    made = guessed != 0
    total, right = int(made.sum()), int(((guessed > 0) == planted)[made].sum())
    return Audit(guesses=total, right=right, epsilon=lower_bound(right, total, level), level=level)


def lower_bound(right: int, total: int, level: float = 0.95) -> float:
    """Largest epsilon that so many right guesses rule out: the logit of the exact lower bound on their probability."""
    if not right:
        return 0.0
    share = float(betaincinv(right, total - right + 1, 1 - level))
    return max(0.0, math.log(share / (1 - share)))
