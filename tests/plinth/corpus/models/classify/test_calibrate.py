"""Curves from margins to probabilities: they find the curve the truth was drawn from, and never fall."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.models import artefact
from tests.peers import Peer

isotonic = Peer("sklearn.isotonic")


def drawn(slope: float, intercept: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    margins = rng.normal(size=20_000)
    return margins, (rng.random(margins.size) < artefact.sigmoid(slope * margins + intercept)).astype(int)


def test_platt_finds_the_curve() -> None:
    margins, truth = drawn(2.5, -0.7)
    curve = artefact.platt(margins, truth, np.ones(truth.size))
    assert curve.slope == pytest.approx(2.5, abs=0.1)
    assert curve.intercept == pytest.approx(-0.7, abs=0.06)
    assert artefact.calibration_error(truth, curve(margins), np.ones(truth.size)) < 0.01


def test_platt_of_margins_on_another_scale_is_the_same_curve() -> None:
    margins, truth = drawn(2.5, -0.7)
    one, other = (artefact.platt(margins * scale, truth, np.ones(truth.size)) for scale in (1.0, 1e-6))
    np.testing.assert_allclose(one(margins), other(margins * 1e-6), atol=1e-5)


def test_a_model_without_skill_gets_a_flat_curve() -> None:
    truth = np.array([0, 1] * 50)
    curve = artefact.platt(-1.0 * truth, truth, np.ones(100))  # the order is upside down
    assert curve.slope == 0
    assert artefact.platt(np.zeros(100), truth, np.ones(100))(np.zeros(1))[0] == pytest.approx(0.5)


@given(
    st.lists(st.tuples(st.integers(-20, 20), st.booleans(), st.integers(1, 3)), min_size=1, max_size=40),
)
def test_isotonic_is_scikit_learns_staircase(rows: list[tuple[int, bool, int]]) -> None:
    margins = np.array([margin / 4 for margin, _, _ in rows])
    truth = np.array([int(true) for _, true, _ in rows])
    weights = np.array([float(weight) for _, _, weight in rows])
    curve = artefact.isotonic(margins, truth, weights)
    theirs = isotonic.IsotonicRegression(out_of_bounds="clip").fit(margins, truth, sample_weight=weights)
    assert (np.diff(curve.values) > 0).all()
    np.testing.assert_allclose(sorted(set(np.round(theirs.predict(margins), 9))), np.round(curve.values, 9), atol=1e-6)
    found = curve(np.sort(margins))
    assert (np.diff(found) >= -1e-12).all()
    assert ((found >= 0) & (found <= 1)).all()


def test_sigmoid_does_not_overflow() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert artefact.sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]
