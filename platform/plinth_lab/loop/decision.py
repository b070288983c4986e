"""Decision about one try of a loop: a pure function of the scores of its runs. Real and simulated scores use it.

D  documents of the test text

*Test*: each seed gives one difference in bits per byte between the base and the arm, on the same documents. The gain is
this difference in the direction that the proposal predicts. The null hypothesis is "the gain is at most the smallest
effect that the proposal predicts". Only the mixture SPRT of the gains (`statistics.Sequential`) can reject it, so an
interim analysis after every seed keeps the level. A second SPRT, of the opposite hypothesis, ends a try early. It never
accepts, so it cannot raise the error rate. As for stopping, the decision holds for this test text, since only seeds
vary.

*Multiplicity*: try t is tested at `statistics.spending_level(t, alpha)`, the level of alpha-spending (Tian and Ramdas
2021, arXiv:1910.04900). A search without any true prediction accepts a proposal with probability at most alpha, no
matter how many proposals it tries. Alpha-spending controls the familywise error rate under arbitrary dependence, which
the tries need, because they share the runs of the base. The familywise rate is the right one here: an accepted arm
becomes the base of all later tries. e-LOND, which also allows dependence, controls the false discovery rate only.

*Proposals that depend on results*: the bound allows them if all arms without a gain have the same training noise, and
if no proposal is selected by other runs with the seeds of the base. With `base_runs: fresh`, every try has new random
seeds and new runs of the base, and these assumptions are not needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

from pydantic import Field

from plinth.errors import RequestError
from plinth.evaluation.statistics import DEGENERATE, Estimate, Sequential, sequential_power
from plinth.records import Frozen
from plinth_lab.experiments.effects import SHARPEST, ArmScores, means_of, require_same_text

Outcome = Literal["holds", "ruled out", "not shown", "open", "failed", "invalid"]
#: Outcomes of a test, in words that complete "the prediction …".
HOLDS: Outcome = "holds"
RULED_OUT: Outcome = "ruled out"
NOT_SHOWN: Outcome = "not shown"
OPEN: Outcome = "open"
FAILED: Outcome = "failed"
INVALID: Outcome = "invalid"

LOWER, HIGHER = "lower", "higher"
POWER = 0.8


class Prediction(Frozen):
    """Prediction of a proposal: the direction of the change in bits per byte, and its smallest size."""

    direction: Literal["lower", "higher"] = Field("lower", description="Only an arm that is lower becomes the base.")
    at_least: float = Field(ge=0, allow_inf_nan=False, description="Smallest effect, in bits per byte.")


class DecisionRule(Frozen):
    """Rule of one decision: the prediction, the level of its test, the level without correction, the most seeds."""

    prediction: Prediction
    level: float = Field(gt=0, lt=1)
    uncorrected: float = Field(gt=0, lt=1)
    seeds: int = Field(ge=2)


class TryDecision(Frozen):
    """Decision of an interim analysis.

    `seeds` are the seeds that it used. `gain` is in the predicted direction, with an always-valid interval at the level
    of this test. `p` is the always-valid p-value. `uncorrected` is the outcome of the same test without correction for
    multiplicity. `noise` is the standard deviation of the gain over seeds.
    """

    outcome: Outcome
    reason: str
    seeds: tuple[int, ...] = ()
    documents: int = 0
    gain: Estimate | None = None
    p: float | None = None
    uncorrected: Outcome = OPEN
    noise: float | None = None


def decide(base: Mapping[int, ArmScores], arm: Mapping[int, ArmScores], rule: DecisionRule) -> TryDecision:
    """Return the decision about an arm, from its scores and those of the base by seed.

    Seeds are added in order, as if there was an interim analysis after each. Seeds after a decision are ignored.

    Raises:
        RequestError: a seed of the arm has no usable run of the base.
        IntegrityError: runs were scored on different text.
    """
    seeds = sorted(arm)[: rule.seeds]
    require_same_text([*base.values(), *arm.values()])
    if trouble := next((f"seed {at}: {arm[at].trouble}" for at in seeds if arm[at].trouble), ""):
        return TryDecision(outcome=FAILED, reason=trouble, seeds=tuple(seeds))
    ours, theirs = means_of(arm), means_of(base)
    if lost := [at for at in seeds if at not in theirs]:
        raise RequestError("the base has no score for some seeds", found=f"no score for {lost}", expected="all seeds")
    sign = 1 if rule.prediction.direction == LOWER else -1
    gains = [sign * (theirs[at] - ours[at]) for at in seeds]
    margins = [gain - rule.prediction.at_least for gain in gains]
    outcome, used = judge(margins, rule.level, rule.seeds, rule.uncorrected)
    test = Sequential(effect=SHARPEST, level=1 - rule.level).add(gains[:used])
    shifted = Sequential(effect=SHARPEST, level=1 - rule.level).add(margins[:used])
    return TryDecision(
        outcome=outcome,
        reason=_reason(outcome, test.estimate, shifted.above, rule) if used else "no seed was scored",
        seeds=tuple(seeds[:used]),
        documents=len(arm[seeds[0]].documents) if seeds else 0,
        gain=test.estimate if used else None,
        p=shifted.above if used else None,
        uncorrected=judge(margins[:used], rule.uncorrected, rule.seeds, rule.uncorrected)[0],
        noise=math.sqrt(test.squares / (test.n - 1)) if test.n > 1 else None,
    )


def judge(margins: Sequence[float], level: float, seeds: int, futility: float) -> tuple[Outcome, int]:
    """Return the outcome of the test of "the mean margin is at most 0", and the number of seeds that it needed.

    Args:
        margins: gain minus the predicted smallest effect, one per seed.
        seeds: the most seeds that the test may use.
        futility: level of the test that ends a try early.
    """
    test, opposite = (Sequential(effect=SHARPEST, level=1 - own) for own in (level, futility))
    for used, margin in enumerate(margins, 1):
        test, opposite = test.add([margin]), opposite.add([-margin])
        if test.exceeded:
            return HOLDS, used
        if opposite.exceeded:
            return RULED_OUT, used
    return (NOT_SHOWN if len(margins) >= seeds else OPEN), len(margins)


def _reason(outcome: Outcome, gain: Estimate, p: float, rule: DecisionRule) -> str:
    """Return the decision as a sentence for the table of tries."""
    least = rule.prediction.at_least
    found = f"gain {gain.value:+.3g} bits per byte over {gain.n} seeds, predicted at least {least:.3g}"
    held = "at or below" if outcome == HOLDS else "above"
    return f"{found}; always-valid p = {p:.2g}, {held} the level {rule.level:.2g}"


def interval(gain: Estimate | None) -> str:
    """Format a gain with its always-valid interval. With few seeds, the interval has no bounds."""
    if gain is None:
        return "–"
    bounds = "unbounded" if DEGENERATE in gain.flags else f"{gain.low:+.3g} to {gain.high:+.3g}"
    return f"{gain.value:+.3g} ({bounds})"


def least_seeds(level: float) -> int:
    """Return the number of seeds below which no test at a level can accept: its likelihood ratio is bounded."""
    n = 2
    while -0.5 * (n - 1) * math.log(1 + n * SHARPEST**2) > math.log(level):
        n += 1
    return n


@cache
def power(margin: float, level: float, seeds: int) -> float:
    """Return the probability that a try at a level accepts, for normal noise.

    Args:
        margin: true gain minus the predicted smallest effect, in standard deviations of the gain over seeds. If the
            true gain is twice the smallest effect, this is the smallest effect.
    """
    return sequential_power(margin, effect=SHARPEST, level=1 - level, most=seeds)


@cache
def detectable(level: float, seeds: int) -> float | None:
    """Return the margin, in standard deviations, that four of five tries at a level detect; None if there is none."""
    low, high = 0.0, 64.0
    if power(high, level, seeds) < POWER:
        return None
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, level, seeds) >= POWER else (middle, high)
    return round(high, 2)
