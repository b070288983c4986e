"""A test that is looked at after every observation keeps its level, and finds what is there."""

import math

import numpy as np
import pytest

from plinth.evaluation.statistics import DEGENERATE, Sequential, sequential_power, spending_level, spent_alpha
from tests.peers import Peer

integrate = Peer("scipy.integrate")
stats = Peer("scipy.stats")


def test_looking_500_times_at_nothing_seldom_decides() -> None:
    """400 runs of normal differences without effect; a t-test after every observation would decide in half of them."""
    rng, looks = np.random.default_rng(0), 500
    runs = rng.normal(0, 1, (400, looks))
    decided = np.mean([Sequential().add(run).decided for run in runs])
    assert decided <= 0.05
    upto = np.arange(10, looks + 1)
    sums, squares = np.cumsum(runs, axis=1), np.cumsum(runs**2, axis=1)
    middle = sums[:, 9:] / upto
    t = middle / np.sqrt((squares[:, 9:] / upto - middle**2) / (upto - 1))
    assert np.mean((2 * stats.t.sf(np.abs(t), upto - 1) < 0.05).any(axis=1)) > 0.3


@pytest.mark.exhaustive
@pytest.mark.parametrize(("draw", "first_look"), [("normal", 2), ("right or wrong", 2), ("skewed", 100)])
def test_level_over_many_looks(draw: str, first_look: int) -> None:
    """Exponential values, of skewness 2, decide in 7% of runs when looked at from the beginning."""
    rng, shape = np.random.default_rng(1), (1500, 1500)
    runs = {
        "normal": lambda: rng.normal(0, 3, shape),
        "right or wrong": lambda: rng.choice([-1.0, 0.0, 1.0], shape, p=[0.1, 0.8, 0.1]),
        "skewed": lambda: rng.exponential(1, shape) - 1,
    }[draw]()
    unseen = [Sequential().add(run[: first_look - 1]).model_copy(update={"p": 1.0}) for run in runs]
    decided = [begun.add(run[first_look - 1 :]).decided for begun, run in zip(unseen, runs, strict=True)]
    assert np.mean(decided) <= 0.05


def test_an_effect_is_found() -> None:
    rng = np.random.default_rng(0)
    found = [Sequential().add(rng.normal(0.3, 1, 500)) for _ in range(100)]
    assert np.mean([one.decided for one in found]) > 0.95
    held = np.mean([one.estimate.low <= 0.3 <= one.estimate.high for one in found])
    assert held >= 0.95


def test_likelihood_ratio_by_integration() -> None:
    """The noncentral t densities mixed over N(0, tau^2) effects, over the central one."""
    values, tau = np.array([0.3, -0.2, 0.9, 0.4, 1.1, -0.1, 0.6, 0.8]), 0.5
    n = len(values)
    t = values.mean() / (values.std(ddof=1) / math.sqrt(n))

    def mixed(effect: float) -> float:
        return float(stats.nct.pdf(t, n - 1, effect * math.sqrt(n)) * stats.norm.pdf(effect, 0, tau))

    ratio = integrate.quad(mixed, -6, 6)[0] / stats.t.pdf(t, n - 1)
    last = Sequential(effect=tau).add(values[:-1])
    assert last.model_copy(update={"p": 1.0}).add(values[-1:]).p == pytest.approx(1 / ratio, rel=1e-6)


def test_interval_is_where_the_test_decides() -> None:
    """The end of the interval is the value that would just be ruled out."""
    values = np.random.default_rng(2).normal(0.4, 1, 100)
    found = Sequential().add(values).estimate
    for end in (found.low, found.high):
        shifted = Sequential(n=99).model_copy(update=_state(values[:-1] - end))
        assert shifted.add(values[-1:] - end).p == pytest.approx(0.05, rel=1e-6)


def _state(values: np.ndarray) -> dict[str, float]:
    return {"n": len(values), "mean": float(values.mean()), "squares": float(values.var() * len(values)), "p": 1.0}


def test_in_pieces_as_at_once() -> None:
    values = np.random.default_rng(3).normal(0.1, 1, 50)
    pieces = Sequential()
    for piece in np.split(values, 10):
        pieces = pieces.add(piece)
    assert pieces == Sequential().add(values)
    assert Sequential.model_validate_json(pieces.model_dump_json()) == pieces


def test_nothing_is_claimed_from_what_does_not_vary() -> None:
    found = Sequential().add([1.0] * 20)
    assert (found.p, found.decided) == (1.0, False)
    assert DEGENERATE in found.estimate.flags
    with pytest.raises(ValueError, match="nothing"):
        _ = Sequential().estimate
    with pytest.raises(ValueError, match="finite"):
        Sequential().add([math.nan])


def test_levels_sum_to_the_error_budget() -> None:
    levels = [spending_level(number, 0.05) for number in range(1, 5001)]
    assert sum(levels) == pytest.approx(spent_alpha(5000, 0.05))
    assert levels == sorted(levels, reverse=True)
    assert spending_level(1, 0.05) == pytest.approx(0.05 * (1 - 1 / math.log2(3)))
    assert spent_alpha(0, 0.05) == 0 < spent_alpha(10**9, 0.05) < 0.05
    with pytest.raises(ValueError, match="starts at number 1"):
        spending_level(0, 0.05)


def test_the_stated_power_is_that_of_the_sequential_test() -> None:
    draws = np.random.default_rng(0).standard_normal((200, 6)) + 2.5
    held = [Sequential(effect=5.0, level=0.99).add(row).exceeded for row in draws]
    assert sequential_power(2.5, effect=5.0, level=0.99, most=6, draws=200) == np.mean(held)
    assert 0.3 < np.mean(held) < 0.7
