"""Probes at the end of a run: a planted regression is detected, and noise is not reported as one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from plinth.training.parameters.guard import Plateau, Regression, Stopping
from plinth.training.stopping import Gatherer, Point, Signals, judge, no_improvement, regression
from plinth.training.validation.probe_curves import ProbeLook

RULE = Regression.model_validate(0.02)
NOISE = 0.02


def looks(scores: Sequence[float], control: float = 4.0) -> list[ProbeLook]:
    return [ProbeLook(10 * n, 1000 * n, score, control) for n, score in enumerate(scores, 1)]


def noisy(curve: Sequence[float], seed: int) -> list[float]:
    draw = random.Random(seed)
    return [value + draw.gauss(0, NOISE) for value in curve]


FALLING = [2 + math.exp(-n / 20) for n in range(100)]


@pytest.mark.parametrize("curve", [[2.0] * 100, FALLING], ids=["flat", "falling"])
def test_noise_is_no_regression(curve: list[float]) -> None:
    """Judged at every evaluation, like a run."""
    stopped = 0
    for seed in range(40):
        scores = looks(noisy(curve, seed))
        stopped += any(regression(RULE, "maths", scores[:n]).holds for n in range(1, len(scores) + 1))
    assert stopped == 0


def test_what_is_unlearnt_is_found_soon_and_not_before() -> None:
    found = []
    for seed in range(50):
        scores = looks(noisy([2.0] * 60 + [2.2] * 20, seed))
        found.append(next(n for n in range(1, 81) if regression(RULE, "maths", scores[:n]).holds))
    assert min(found) > 60
    assert max(found) <= 64


def test_a_probe_within_its_noise_stops_nothing() -> None:
    jump = [2.0, 2.05, 1.95, 2.02, 1.97, 2.04, 2.0, 1.96] + [9.0] * 3
    assert regression(RULE, "maths", looks(jump, control=4.0)).holds
    unsure = regression(RULE, "maths", looks(jump, control=1.97))
    assert (unsure.holds, unsure.value) == (False, None)
    assert "within its noise" in unsure.reason
    assert "too few" in regression(RULE, "maths", looks(jump[-7:])).reason
    assert judge(Stopping(regression=RULE), Signals(probes={"maths": looks(jump)})).stop
    assert not judge(Stopping(regression=RULE), Signals(probes={"maths": looks(jump, control=1.97)})).stop
    assert not judge(Stopping(), Signals(probes={"maths": looks(jump)})).stop


def test_a_probe_that_is_known_to_improve_keeps_a_flat_run_going() -> None:
    rule = Plateau(window_tokens=20_000, min_improvement=0.02)
    draw = random.Random(3)
    flat = [Point(100 * n, 3 + draw.gauss(0, 0.02)) for n in range(1, 401)]
    improving, level = looks([3 - 0.01 * n for n in range(40)]), looks(noisy([2.0] * 40, 1))
    for probes, stops in (({}, True), ({"maths": level}, True), ({"maths": level, "code": improving}, False)):
        assert judge(Stopping(plateau=rule), Signals(losses=flat, probes=probes)).stop is stops
    held = no_improvement(rule, "code", improving)
    assert held is not None
    assert held.value == pytest.approx(0.2)  # 0.01 a look, 20 looks a window, no noise
    assert no_improvement(rule, "code", looks([3 - 0.01 * n for n in range(40)], control=2.6)) is None
    assert no_improvement(rule, "code", []) is None


def test_probes_are_gathered_from_the_timeline_and_a_step_that_comes_again_counts_once() -> None:
    gatherer = Gatherer()

    def look(step: int, score: float, which: str = "a") -> None:
        fields: dict[str, Any] = {"probes": {"maths": {"score": score, "control": 4.0}}, "probe_set": which}
        gatherer.add({"event": "step", "step": step, "tokens": 100 * step, "step_s": 1.0, "loss": 2.0})
        gatherer.add({"event": "evaluated", "step": step, "tokens": 100 * step, "slices": {}, "seconds": 0.5, **fields})

    for step, score in ((1, 3.0), (2, 2.5), (3, 2.2), (2, 2.4)):
        look(step, score)
    assert [(one.step, one.score) for one in gatherer.signals.probes["maths"]] == [(1, 3.0), (2, 2.4)]
    assert gatherer.signals.seconds == 6.0
    look(3, 1.0, which="b")  # other items: not the same curve
    assert [(one.step, one.score) for one in gatherer.signals.probes["maths"]] == [(3, 1.0)]


def test_a_recipe_sets_one_number() -> None:
    assert Stopping.model_validate({"regression": 0.05}).regression == Regression(bits_per_byte=0.05)
    assert Stopping(regression=RULE).asked
