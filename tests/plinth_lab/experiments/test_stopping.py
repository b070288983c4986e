"""Arms that cannot win stop; the best is seldom stopped, at any number of evaluations; one seed decides nothing."""

import numpy as np
import pytest

from plinth_lab.experiments.effects import ArmScores, StopDecision, stopping

DOCUMENTS, SLICES, BYTES = np.array(["a" * 32]), np.array(["web"]), np.array([1000.0])


def run(arm: str, seed: int, value: float) -> ArmScores:
    """Return the scores of a run with `value` bits per byte."""
    return ArmScores(arm, "4m", seed, "finished", "", DOCUMENTS, SLICES, BYTES, BYTES * value)


def experiment(rng: np.random.Generator, worse: float) -> tuple[bool, int]:
    """Five arms, eight seeds, a look after every seed: whether the best was ever stopped, and how many runs were saved.

    `worse` is how much worse all but the best are, in standard deviations of training noise.
    """
    scores: list[ArmScores] = []
    stopped: set[str] = set()
    saved = 0
    for seed in range(8):
        for arm in ("base", "best", "x", "y", "z"):
            value = 1 + 0.01 * (rng.normal() + worse * (arm != "best"))
            if arm not in stopped:
                scores.append(run(arm, seed, value))
        for one in stopping(scores, "base", range(8)):
            if one.stop and one.arm not in stopped:
                stopped.add(one.arm)
                saved += one.saved_runs
    return "best" in stopped, saved


@pytest.mark.parametrize(
    ("worse", "at_least"), [(0.0, 0), pytest.param(3.0, 2, marks=pytest.mark.exhaustive), (10.0, 9)]
)
def test_the_best_is_seldom_stopped_and_runs_are_saved(worse: float, at_least: float) -> None:
    """Savings of 24 runs planned for the three bad arms; none can be judged before the fourth seed of five arms."""
    rng = np.random.default_rng(int(worse))
    found = [experiment(rng, worse) for _ in range(100)]
    assert np.mean([best for best, _ in found]) <= 0.05
    assert np.mean([saved for _, saved in found]) >= at_least


def decision(gaps: list[float], sign: int = 1) -> StopDecision:
    scores = [run("base", seed, 1.0) for seed in range(len(gaps))]
    scores += [run("x", seed, 1.0 + sign * gap) for seed, gap in enumerate(gaps)]
    (found,) = stopping(scores, "base", range(10), fewer_is_better=sign > 0)
    return found


def test_a_decision_has_its_numbers() -> None:
    gaps = [0.10, 0.11, 0.09, 0.10]
    for sign in (1, -1):
        found = decision(gaps, sign)
        assert (found.stop, found.rival, found.seeds, found.saved_runs) == (True, "base", 4, 6)
        assert found.difference is not None
        assert found.difference.value == pytest.approx(sign * 0.1)
        assert sign * found.difference.low > 0
        assert found.p is not None
        assert found.p <= 0.05
        assert found.reason.startswith("0.1 worse than base over 4 seeds; anytime-valid p = ")
    better = decision([-gap for gap in gaps])
    assert (better.stop, better.saved_runs, better.p) == (False, 0, 1.0)
    assert "better than base" in better.reason


@pytest.mark.parametrize(("gaps", "said"), [([5.0], "too few seeds"), ([5.0, 5.001], "not below 0.05")])
def test_one_seed_or_two_never_decide(gaps: list[float], said: str) -> None:
    found = decision(gaps)
    assert (found.stop, found.saved_runs) == (False, 0)
    assert said in found.reason


def test_runs_without_scores_are_no_pairs() -> None:
    scores = [run("base", seed, 1.0 + seed / 1000) for seed in range(6)] + [run("x", 0, 9.0)]
    scores += [ArmScores("x", "4m", seed, "diverged", "loss is nan") for seed in range(1, 6)]
    (found,) = stopping(scores, "base", range(6))
    assert (found.stop, found.seeds) == (False, 1)
    assert "too few seeds" in found.reason
