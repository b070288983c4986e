"""A useless search accepts nothing at the promised rate, and a real effect is found with the power that is stated."""

import math
from dataclasses import replace

import numpy as np
import pytest

from plinth.errors import IntegrityError, RequestError
from plinth.evaluation.statistics import Sequential, spending_level
from plinth_lab.loop.decision import (
    FAILED,
    HOLDS,
    NOT_SHOWN,
    OPEN,
    RULED_OUT,
    DecisionRule,
    Prediction,
    TryDecision,
    decide,
    detectable,
    least_seeds,
    power,
)
from tests.plinth_lab.loop.simulated import GAIN_NOISE, NAMES, run, trained

ALPHA, SEEDS = 0.05, tuple(range(1, 9))


def rule(number: int, at_least: float = 0.0, direction: str = "lower", seeds: int = 8) -> DecisionRule:
    told = Prediction.model_validate({"direction": direction, "at_least": at_least})
    return DecisionRule(prediction=told, level=spending_level(number, ALPHA), uncorrected=ALPHA, seeds=seeds)


def search(rng: np.random.Generator, arms: int, at_least: float) -> list[TryDecision]:
    """Return the decisions about arms that gain exactly what they predict, and so are the hardest useless arms.

    All share the runs of one base, so their decisions depend on each other.
    """
    base = trained("base", SEEDS, 1.0, rng)
    return [decide(base, trained("x", SEEDS, 1.0 - at_least, rng), rule(at, at_least)) for at in range(1, arms + 1)]


def test_a_useless_search_accepts_nothing_at_the_promised_rate() -> None:
    """20 searches over 200 arms. At 5%, four or more searches that accept have a probability of 1.6%.

    The same searches without correction exceed this bound, so the test can fail.
    """
    rng = np.random.default_rng(35)
    accepted, uncorrected = 0, 0
    for _ in range(20):
        found = search(rng, 200, at_least=0.003)
        accepted += any(one.outcome == HOLDS for one in found)
        uncorrected += any(one.uncorrected == HOLDS for one in found)
    assert accepted <= 3 < uncorrected


@pytest.mark.parametrize(("number", "ratio"), [(1, 2.5), (10, 3.0), (10, 5.0), (200, 8.0)])
def test_twice_the_smallest_effect_is_found_with_the_stated_power(number: int, ratio: float) -> None:
    """The smallest effect is `ratio` standard deviations of the gain over seeds; the true gain is twice as large."""
    rng, least = np.random.default_rng(number), ratio * GAIN_NOISE
    stated = power(ratio, spending_level(number, ALPHA), 8)
    held = [
        decide(trained("base", SEEDS, 1.0, rng), trained("x", SEEDS, 1.0 - 2 * least, rng), rule(number, least))
        for _ in range(300)
    ]
    found = sum(one.outcome == HOLDS for one in held) / len(held)
    assert found == pytest.approx(stated, abs=3 * math.sqrt(max(stated * (1 - stated), 0.01) / 300))
    assert 0.2 < stated <= 1


def test_detectable_margin_has_four_fifths_power_and_grows_with_the_tries() -> None:
    margins = [detectable(spending_level(number, ALPHA), 8) for number in (1, 10, 200)]
    assert margins == sorted(margins)
    assert power(margins[1], spending_level(10, ALPHA), 8) == pytest.approx(0.8, abs=0.02)
    assert detectable(spending_level(200, ALPHA), 5) is None  # five seeds have no likelihood ratio so large
    assert least_seeds(spending_level(200, ALPHA)) == 6


GAINS = [0.020, 0.021, 0.019, 0.020, 0.022, 0.018, 0.020, 0.020]


def decided(gains: list[float], at: DecisionRule) -> TryDecision:
    base = {seed: run("base", seed, 1.0) for seed in range(1, 9)}
    return decide(base, {seed: run("x", seed, 1.0 - gain) for seed, gain in enumerate(gains, 1)}, at)


def test_a_decision_has_its_numbers() -> None:
    found = decided(GAINS, rule(1, 0.01))
    test = Sequential(effect=5.0, level=1 - spending_level(1, ALPHA))
    margins = [gain - 0.01 for gain in GAINS]
    used = next(k for k in range(2, 9) if test.add(margins[:k]).exceeded)
    assert (found.outcome, found.seeds) == (HOLDS, tuple(range(1, used + 1)))  # later seeds are ignored
    assert found.p == pytest.approx(test.add(margins[:used]).above)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(np.mean(GAINS[:used]))
    assert found.gain.low > 0.01
    assert found.documents == len(NAMES)
    assert decided(GAINS[: used - 1], rule(1, 0.01)).outcome == OPEN


def test_the_prediction_is_tested_and_not_only_its_sign() -> None:
    assert decided(GAINS, rule(1, 0.04)).outcome == RULED_OUT
    assert decided(GAINS, rule(1, 0.02)).outcome == NOT_SHOWN
    assert decided(GAINS, rule(1, 0.01, "higher")).outcome == RULED_OUT
    assert decided([-gain for gain in GAINS], rule(1, 0.01, "higher")).outcome == HOLDS


def test_the_correction_costs_seeds_and_says_so() -> None:
    first, late = (decided(GAINS[:4], rule(number, 0.01)) for number in (1, 200))
    assert (first.outcome, late.outcome, late.uncorrected) == (HOLDS, OPEN, HOLDS)


def test_equal_runs_decide_nothing() -> None:
    found = decided([0.0] * 8, rule(1, 0.0))
    assert (found.outcome, found.p, found.noise) == (NOT_SHOWN, 1.0, 0.0)


def test_runs_without_scores_and_other_text() -> None:
    base = {seed: run("base", seed, 1.0) for seed in (1, 2)}
    arm = {seed: run("x", seed, 0.9) for seed in (1, 2)}
    broken = replace(arm[2], status="diverged", reason="the loss is not a number")
    found = decide(base, {**arm, 2: broken}, rule(1))
    assert (found.outcome, found.reason) == (FAILED, "seed 2: diverged: the loss is not a number")
    with pytest.raises(RequestError, match="no score for"):
        decide({1: base[1]}, arm, rule(1))
    other = replace(arm[2], documents=np.array([f"{at:032x}" for at in range(50, 60)]))
    with pytest.raises(IntegrityError, match="scored on different text"):
        decide(base, {**arm, 2: other}, rule(1))
