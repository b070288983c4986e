"""Simultaneous band: known answers, and coverage of whole new curves by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plinth.evaluation.statistics import new_curves, simultaneous


def test_the_band_of_one_point_is_its_interval() -> None:
    low, high = simultaneous(np.arange(1.0, 1001.0)[:, None], level=0.9)
    assert (low.tolist(), high.tolist()) == ([51.0], [950.0])


def test_the_band_holds_exactly_its_share_of_whole_curves() -> None:
    draws = np.random.default_rng(0).standard_normal((4000, 12))
    low, high = simultaneous(draws, level=0.95)
    inside = ((draws >= low) & (draws <= high)).all(axis=1).mean()
    assert 0.95 <= inside < 0.96
    assert high == pytest.approx(np.full(12, 2.86), abs=0.25)  # of 12 independent normals, 2.86 is exact; 1.96 alone


def test_curves_that_move_together_need_no_correction() -> None:
    shift = np.random.default_rng(0).standard_normal((4000, 1))
    low, high = simultaneous(np.repeat(shift, 12, axis=1), level=0.95)
    assert high == pytest.approx(np.full(12, 1.96), abs=0.1)
    assert low == pytest.approx(-high, abs=0.2)


def test_equal_draws_have_a_band_of_no_width() -> None:
    low, high = simultaneous(np.ones((100, 3)), level=0.95)
    assert (low == 1).all()
    assert (high == 1).all()


def test_new_curves_are_about_the_mean_with_the_spread_of_a_new_observation() -> None:
    curves = np.random.default_rng(1).standard_normal((40, 5)) + np.arange(5)
    drawn = new_curves(curves, draws=40_000, seed=0)
    assert drawn.mean(axis=0) == pytest.approx(curves.mean(axis=0), abs=0.03)
    student = math.sqrt(39 / 37 * (1 + 1 / 40))
    assert drawn.std(axis=0) == pytest.approx(curves.std(axis=0, ddof=1) * student, rel=0.03)
    wide = new_curves(curves, draws=40_000, seed=0, inflation=2.0)
    assert wide.std(axis=0) == pytest.approx(2 * drawn.std(axis=0), rel=1e-6)
    assert (new_curves(curves, draws=10, seed=3) == new_curves(curves, draws=10, seed=3)).all()


def test_too_few_or_unusable_curves_are_refused() -> None:
    for curves in (np.ones((1, 3)), np.ones(3), np.full((3, 3), np.nan)):
        with pytest.raises(ValueError, match="two finite curves"):
            new_curves(curves, draws=10, seed=0)
    for draws in (np.ones((10, 3)), np.full((100, 3), np.inf)):
        with pytest.raises(ValueError, match="more finite curves"):
            simultaneous(draws, level=0.95)


def covered(count: int, points: int, length: float, runs: int) -> float:
    """Share of new curves that the 95% band of `count` curves contains; neighbors correlate over `length`."""
    rng, at = np.random.default_rng(0), np.linspace(0, 1, points)
    kernel = np.exp(-(((at[:, None] - at) / length) ** 2)) + 1e-9 * np.eye(points)
    factor, inside = np.linalg.cholesky(kernel), 0
    for seed in range(runs):
        found = rng.standard_normal((count + 1, points)) @ factor.T
        low, high = simultaneous(new_curves(found[:-1], draws=1000, seed=seed))
        inside += bool(((found[-1] >= low) & (found[-1] <= high)).all())
    return inside / runs


def test_the_band_contains_a_new_curve_as_often_as_it_says() -> None:
    assert covered(6, 10, 0.3, 150) >= 0.92


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 6, 10])
@pytest.mark.parametrize("length", [1e-3, 0.2, 0.5, 1e3])
def test_coverage_from_independent_points_to_one_shift(count: int, length: float) -> None:
    assert 0.91 <= covered(count, 10, length, 400) <= 1.0
