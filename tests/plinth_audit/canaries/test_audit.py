"""The audit with delta: values printed in the paper, direct sums, and mechanisms whose delta is known exactly."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import comb, exp, log

import numpy as np
import pytest

from plinth_audit.canaries.audit import Claim, audit, bound, extremes, lower_bound, p_value


@pytest.mark.parametrize(
    ("canaries", "total", "right", "delta", "printed"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_values_that_the_paper_prints(canaries: int, total: int, right: int, delta: float, printed: float) -> None:
    """Steinke et al., arXiv:2305.08846v1: appendix D, page 46, and section 7, page 28 (which cuts 2.6758 off)."""
    assert bound(right, total, Claim(canaries=canaries, delta=delta)) == pytest.approx(printed, abs=1e-3)


def _direct(right: int, total: int, odds: Fraction, canaries: int, delta: Fraction) -> Fraction:
    """The formula in exact numbers; odds are e^epsilon."""
    q = odds / (1 + odds)
    each = [comb(total, k) * q**k * (1 - q) ** (total - k) for k in range(total + 1)]
    rise = max((sum(each[right - i : right], Fraction()) / i for i in range(1, right + 1)), default=Fraction())
    return min(Fraction(1), sum(each[right:], Fraction()) + 2 * canaries * delta * rise)


def test_it_is_the_direct_sum() -> None:
    for total, odds, delta in product((1, 2, 5, 9), (Fraction(1), Fraction(3, 2), Fraction(40)), (0, Fraction(1, 500))):
        claim = Claim(canaries=total + 3, delta=float(delta))
        for right in range(total + 1):
            expected = float(_direct(right, total, odds, total + 3, Fraction(delta)))
            assert p_value(right, total, log(odds), claim) == pytest.approx(expected, rel=1e-12)


def test_without_delta_it_is_the_exact_bound() -> None:
    for right in (0, 25, 40, 50):
        assert bound(right, 50, Claim(canaries=64)) == lower_bound(right, 50)
        assert bound(right, 50, Claim(canaries=64, delta=1e-15)) == pytest.approx(lower_bound(right, 50), abs=1e-9)
    assert bound(50, 50, Claim(canaries=64, delta=1e-4)) < bound(50, 50, Claim(canaries=64, delta=1e-5))
    assert bound(50, 50, Claim(canaries=64, delta=0.1)) == 0.0


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("delta", [0.0, 0.003, 0.05])
def test_no_mechanism_of_known_delta_is_right_more_often(epsilon: float, delta: float) -> None:
    """Each coin shown with probability delta, or noisily; and all coins at once: both are (epsilon, delta)-DP, and how
    often they are right is an exact sum. Where all are shown at once, the formula without delta would be wrong."""
    m, claim, q = 6, Claim(canaries=6, delta=delta), exp(epsilon) / (1 + exp(epsilon))
    for v in range(m + 1):
        most = p_value(v, m, epsilon, claim) + 1e-12
        each = delta + (1 - delta) * q
        assert _binomial(v, m, each) <= most
        at_once = delta + (1 - delta) * _binomial(v, m, q)
        assert at_once <= most
        if delta and v:
            assert at_once > p_value(v, m, epsilon, Claim(canaries=6))


def _binomial(least: int, count: int, share: float) -> float:
    return sum(comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(least, count + 1))


def test_the_bound_is_wrong_no_more_often_than_its_level() -> None:
    """Randomized response of epsilon 1: of all results, those whose bound is above 1 have at most 5% together."""
    claim, q, r = Claim(canaries=40, delta=1e-6), exp(1) / (1 + exp(1)), 40
    each = [comb(r, v) * q**v * (1 - q) ** (r - v) for v in range(r + 1)]
    above = [bound(v, r, claim) > 1 for v in range(r + 1)]
    wrong = sum(p for p, is_above in zip(each, above, strict=True) if is_above)
    assert 0.02 < wrong <= 0.05
    assert above == sorted(above)


def test_a_fixed_number_of_guesses() -> None:
    scores = np.array([0.3, -1.0, 2.0, 0.3, 5.0])
    assert extremes(scores, 2, 1).tolist() == [0, -1, 1, 0, 1]
    assert extremes(scores, 0, 2).tolist() == [-1, -1, 0, 0, 0]
    assert extremes(scores, 0, 0).tolist() == [0] * 5
    for bad in ((3, 3), (-1, 2)):
        with pytest.raises(ValueError, match="need at least as many canaries with scores that are not NaN; found 5"):
            extremes(scores, *bad)
    with pytest.raises(ValueError, match="scores that are not NaN; found 2"):
        extremes(np.array([1.0, np.nan]), 1, 0)
    planted = np.array([False, False, True, True, False])
    assert audit(extremes(scores, 2, 1), planted, delta=1e-6).model_dump() == {
        "guesses": 3, "right": 2, "level": 0.95, "epsilon": bound(2, 3, Claim(canaries=5, delta=1e-6)),
    }  # fmt: skip


def test_counts_that_cannot_be_are_refused() -> None:
    for right, total, epsilon in ((4, 3, 1.0), (1, 9, 1.0), (-1, 3, 1.0), (1, 3, -0.1), (1, 3, float("nan"))):
        with pytest.raises(ValueError, match="guesses are correct"):
            p_value(right, total, epsilon, Claim(canaries=8))
