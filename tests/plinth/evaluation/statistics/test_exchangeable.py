"""Test whether later values have the distribution of earlier ones: the level at any number of evaluations, and the
power."""

from __future__ import annotations

import numpy as np
import pytest

from plinth.evaluation.statistics import exchangeable_p
from plinth.evaluation.statistics.estimate import ranks, wealth
from tests.peers import Peer

stats = Peer("scipy.stats")


def histories(count: int, shift: float = 0.0, begins: int = 0, seed: int = 0) -> np.ndarray:
    """Return the smallest p of each history of 300 later values against 100 reference values, tested after every
    value."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        reference, later = rng.lognormal(size=100), rng.lognormal(size=300)
        later[begins:] *= np.exp(shift)
        found.append(exchangeable_p(reference, later, rng.random(300), tuple(range(0, 300, 50)))[-1])
    return np.array(found)


def test_without_drift_false_alarms_are_rarer_than_the_level_at_300_looks() -> None:
    p = histories(200)
    assert (p <= 0.05).mean() <= 0.05
    assert (p <= 0.25).mean() <= 0.25 + 0.08  # and not because it never decides
    assert (p <= 0.5).mean() > 0.05


@pytest.mark.parametrize(("shift", "begins"), [(0.8, 0), (-0.8, 0), (1.0, 150)])
def test_a_drift_either_way_is_found_and_late_ones_too(shift: float, begins: int) -> None:
    assert (histories(20, shift, begins, seed=1) <= 0.01).mean() >= 0.95


def test_ranks_of_ties_are_uniform_too() -> None:
    rng = np.random.default_rng(3)
    found = [ranks(rng.integers(0, 3, 20), rng.integers(0, 3, 5), rng.random(5)) for _ in range(400)]
    assert stats.kstest(np.concatenate(found), "uniform").pvalue > 0.001
    fixed = [ranks(rng.integers(0, 3, 20), rng.integers(0, 3, 5), np.zeros(5)) for _ in range(400)]
    assert stats.kstest(np.concatenate(fixed), "uniform").pvalue < 0.001  # without the draw they are not


def test_ranks_worked_out_by_hand() -> None:
    assert ranks([1.0, 2.0, 3.0], [2.5, 0.0], [0.5, 0.5]).tolist() == [1.5 / 4, 4.5 / 5]
    assert ranks([1.0, 1.0], [1.0], [0.25]).tolist() == [0.25]


def test_the_stake_is_whole_and_nothing_is_won_before_a_change_may_begin() -> None:
    both = wealth(np.full(4, 0.5), (0, 2))
    assert both[:2] == pytest.approx(wealth([0.5, 0.5]))  # the second bet has not begun
    assert both[2] != pytest.approx(wealth([0.5, 0.5, 0.5])[2])
    grid = np.linspace(0, 1, 4001)[1:-1]
    game = np.mean([np.exp(wealth([one])[0]) for one in grid])
    assert game == pytest.approx(1, abs=0.15)  # a fair game, but for the ends of the grid
    assert game <= 1


@pytest.mark.parametrize("starts", [(1,), (0, 0), (2, 0), (0, 5)])
def test_changes_begin_at_places_that_rise(starts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="increase from 0"):
        wealth([0.1, 0.2, 0.3], starts)


def test_a_look_changes_nothing_of_what_was_seen_before() -> None:
    rng = np.random.default_rng(5)
    reference, later, draws = rng.normal(size=40), rng.normal(size=90), rng.random(90)
    whole = exchangeable_p(reference, later, draws, (0, 30, 60))
    assert whole[:30] == pytest.approx(exchangeable_p(reference, later[:30], draws[:30], (0,)))
    assert whole[:60] == pytest.approx(exchangeable_p(reference, later[:60], draws[:60], (0, 30)))
