"""Noise of a probe over a run: what is left when a curve that still moves has its slope taken out."""

from __future__ import annotations

import random
import statistics

import pytest

from plinth.training.validation.probe_curves import ProbeLook, curves, detrended, value


def looks(scores: list[float], control: float = 5.0) -> list[ProbeLook]:
    return [ProbeLook(n, 100 * n, score, control) for n, score in enumerate(scores)]


def test_a_straight_line_has_no_noise_and_a_level_curve_keeps_its_own() -> None:
    assert detrended(looks([3.0, 2.9, 2.8, 2.7, 2.6])) == pytest.approx([2.8] * 5)
    assert detrended(looks([3.0, 2.0, 1.0])) == [3.0, 2.0, 1.0]  # too few for a line
    # by hand: the line through 1, 2, 2, 1 is level, so residuals are -1/2, 1/2, 1/2, -1/2, wider by sqrt(3/2)
    assert statistics.stdev(detrended(looks([1.0, 2.0, 2.0, 1.0]))) == pytest.approx((1 / 2) ** 0.5)


@pytest.mark.parametrize("slope", [0.0, -0.3])
def test_the_deviation_is_that_of_the_noise_whatever_the_slope(slope: float) -> None:
    draw = random.Random(5)
    found = []
    for _ in range(2000):
        own = looks([3 + slope * n + draw.gauss(0, 0.1) for n in range(5)])
        found.append(statistics.variance(detrended(own)))
    assert statistics.fmean(found) == pytest.approx(0.01, rel=0.1)  # unbiased


def test_worth_over_the_last_looks_and_over_seeds() -> None:
    early, late = [9.0, 8.0, 7.0], [3.0, 3.1, 2.9, 3.0, 3.0]
    alone = value(looks(early + late))
    assert (alone.signal, alone.checkpoints, alone.decides) == (2.0, 5, True)
    assert alone.noise == pytest.approx(statistics.stdev(detrended(looks(late))))
    other = value(looks(early + late), seeds=[3.0, 9.0])
    assert (other.seeds, other.decides) == (2, False)  # another seed would have given another result
    assert value(looks([3.0])).snr is None


def test_curves_out_of_a_timeline() -> None:
    one = {"event": "evaluated", "step": 5, "tokens": 50, "slices": {}, "probe_set": "a"}
    events = [
        {"event": "step", "step": 5},
        one | {"probes": {"maths": {"score": 2.0, "control": 2.5, "margin": 0.1}}},
        one | {"step": 6, "tokens": 60, "probes": {}},
    ]
    (look,) = curves(events)["maths"]
    assert (look.step, look.tokens, look.signal) == (5, 50, 0.5)
