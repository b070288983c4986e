"""Predicted curve of a larger run from a ladder's curves: known answers, coverage, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from plinth.errors import RequestError
from plinth.training.predicted_curve import outcomes
from plinth_lab.scaling import curve as module
from plinth_lab.scaling.curve import ENDS, FEWEST_STEPS, LadderCurve, LadderCurves, curve_of, predicted
from plinth_lab.scaling.law import ScalingLaw

LAW = ScalingLaw(E=1.5, A=30, B=300, alpha=0.4, beta=0.5)
SHAPE = {"schedule": "wsd", "warmup_fraction": 0.05, "decay_fraction": 0.2, "horizons": []}
SIZES, STEPS, BATCH = (10_000, 20_000, 40_000, 80_000), (200, 400, 800), 512


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAWS", 400)


def steps_of(
    params: int, count: int, rng: np.random.Generator, noise: float, run_noise: float
) -> list[tuple[int, Any]]:
    """Losses of a run: above the law until its rate has decayed, with noise of batches and of the whole run."""
    shift, rows = math.exp(run_noise * rng.standard_normal()), []
    for step in range(1, count + 1):
        share, tokens = step / count, step * BATCH
        high_rate = 0.08 * min(1.0, (1 - share) / 0.2)  # nothing is left of it at the end
        early = 0.6 * math.exp(-share / 0.03)
        loss = LAW.loss(params, tokens) * math.exp(high_rate + early + noise * rng.standard_normal()) * shift
        rows.append((tokens, float(loss)))
    return rows


def ladder(seed: int = 0, noise: float = 0.01, run_noise: float = 0.003) -> LadderCurves:
    rng, found = np.random.default_rng(seed), list[LadderCurve]()
    for params in SIZES:
        for count in STEPS:
            made = curve_of(
                f"{params}-{count}", f"{params}{count}", params, SHAPE, steps_of(params, count, rng, noise, run_noise)
            )
            assert made is not None
            found.append(made)
    return LadderCurves(tuple(found))


def test_the_loss_of_a_run_on_the_way_is_above_the_law_and_at_its_end_on_it() -> None:
    found = predicted(ladder(noise=1e-4, run_noise=1e-4), 160_000, 800 * BATCH, SHAPE)
    ends = dict(zip(ENDS, found.points, strict=True))
    exact = curve_of("exact", "exact", 160_000, SHAPE, steps_of(160_000, 800, np.random.default_rng(0), 0.0, 0.0))
    assert exact is not None
    for share, loss in zip(ENDS, exact.losses, strict=True):
        assert ends[share].low <= loss <= ends[share].high
        assert ends[share].value == pytest.approx(loss, rel=0.1)
    assert ends[1.0].value == pytest.approx(LAW.loss(160_000, 800 * BATCH), rel=0.01)
    assert ends[0.8].value > 1.05 * LAW.loss(160_000, round(0.8 * 800) * BATCH)  # the rate is still high
    assert found.points[-1].tokens == found.tokens == 800 * BATCH
    assert found.extrapolation == pytest.approx(2.0)
    assert (found.level, len(found.runs)) == (0.95, 12)


def test_the_same_ladder_predicts_the_same_curve() -> None:
    curves = ladder()
    assert predicted(curves, 160_000, 800 * BATCH, SHAPE) == predicted(curves, 160_000, 800 * BATCH, SHAPE)


def test_horizons_of_one_training_give_the_law_its_tokens() -> None:
    shape = {**SHAPE, "horizons": [0.25, 0.5]}
    rng = np.random.default_rng(0)
    own = [curve_of(str(n), str(n), n, shape, steps_of(n, 800, rng, 0.01, 0.003)) for n in SIZES]
    first = own[0]
    assert first is not None
    assert [*first.horizons] == [200 * BATCH, 400 * BATCH, 800 * BATCH]
    assert predicted(LadderCurves(tuple(one for one in own if one)), 160_000, 800 * BATCH, shape).shape == shape


def test_runs_of_another_schedule_or_too_few_are_refused() -> None:
    curves = ladder()
    with pytest.raises(RequestError, match="too few runs to predict a loss curve") as raised:
        predicted(curves, 160_000, 800 * BATCH, {**SHAPE, "schedule": "cosine"})
    assert "0 of 12 runs have the schedule" in str(raised.value.found)
    with pytest.raises(RequestError, match="too few runs") as raised:
        predicted(LadderCurves(curves.curves[:3], ("small-0",)), 160_000, 800 * BATCH, SHAPE)
    assert "; too short: small-0" in str(raised.value.found)
    with pytest.raises(RequestError, match="scaling law"):
        predicted(LadderCurves(curves.curves[:4]), 160_000, 800 * BATCH, SHAPE)


def test_a_run_without_a_finite_loss_in_a_segment_is_left_out() -> None:
    steps = steps_of(10_000, 200, np.random.default_rng(0), 0.01, 0.0)
    assert curve_of("a", "a", 10_000, SHAPE, [*steps[:-1], (steps[-1][0], "nan")]) is not None  # others are there
    assert curve_of("a", "a", 10_000, SHAPE, [(tokens, "nan") for tokens, _ in steps]) is None
    assert curve_of("a", "a", 10_000, SHAPE, steps[: FEWEST_STEPS - 1]) is None  # the first segment has no step
    assert curve_of("a", "a", 10_000, SHAPE, steps[:FEWEST_STEPS]) is not None
    early = {**SHAPE, "horizons": [0.125, 0.5]}  # the first one has less than one step in its last part
    assert curve_of("a", "a", 10_000, early, steps) is not None


def covered(runs: int, params: int, count: int) -> float:
    inside = 0
    for seed in range(runs):
        found = predicted(ladder(seed), params, count * BATCH, SHAPE)
        rng = np.random.default_rng(10_000 + seed)
        own = list(outcomes(found, steps_of(params, count, rng, 0.01, 0.003)))
        inside += len(own) == len(ENDS) and all(one.inside for one in own)
    return inside / runs


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("params", "count"), [(40_000, 400), (160_000, 800), (320_000, 1600)])
def test_the_band_contains_the_whole_curve_of_a_new_run(params: int, count: int) -> None:
    assert covered(60, params, count) >= 0.9
