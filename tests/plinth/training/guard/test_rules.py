"""Rolling medians, limits and findings, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from plinth.training.guard.rules import (
    WARM_UP,
    Intervention,
    Limits,
    Rolling,
    ThroughputRule,
    TrainedStep,
    judge,
    judge_layers,
    limits,
)
from plinth.training.parameters.guard import GuardParameters as Policy
from plinth.training.parameters.guard import LayerRule, LossSpike, Throughput

POLICY = Policy(window_steps=8, min_steps=4)


def test_level_and_spread_ignore_spikes() -> None:
    window = Rolling(5, [1.0, 2.0, 3.0, 4.0, 1000.0])
    assert window.level == 3.0
    assert window.sigma == pytest.approx(1.4826 / math.sqrt(2))  # neighbors differ by 1, 1, 1, 996
    window.add(5.0)
    assert window.values == [2.0, 3.0, 4.0, 1000.0, 5.0]


def test_spread_is_that_of_the_noise_whatever_the_trend() -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.05, 256)
    flat, falling = Rolling(256, noise + 2.0), Rolling(256, noise + np.linspace(6.0, 2.0, 256))
    assert flat.sigma == pytest.approx(0.05, rel=0.15)
    assert falling.sigma == pytest.approx(0.05, rel=0.15)
    assert falling.level == pytest.approx(2.5, abs=0.1)  # of the newest 64


def test_limits_are_the_wider_of_spread_and_floor() -> None:
    losses, norms = Rolling(8, [2.0, 2.1, 2.2, 2.3, 2.4]), Rolling(8, [1.0] * 5)
    found = limits(POLICY, losses, norms)
    assert found.loss == pytest.approx(2.2 + 6 * 1.4826 / math.sqrt(2) * 0.1)
    assert found.grad_norm == 3.0  # no spread at all: three times the level
    assert limits(POLICY, Rolling(8, [2.0] * 5), norms).loss == pytest.approx(2.2)  # min_rise of 0.2 nats
    assert limits(POLICY, Rolling(8, [2.0] * 4), Rolling(8, [1.0] * 4)).grad_norm == 3.0
    assert limits(POLICY, Rolling(8, [2.0] * 3), Rolling(8, [1.0] * 3)) == Limits()  # too few to judge


def test_judge_names_what_is_above() -> None:
    limit = Limits(loss=3.0, grad_norm=2.0)
    assert judge(TrainedStep(step=1, loss=3.0, grad_norm=2.0), limit) == []
    both = judge(TrainedStep(step=1, loss=3.1, grad_norm=2.1), limit)
    assert [(f.rule, f.value, f.threshold) for f in both] == [("loss_spike", 3.1, 3.0), ("gradient_spike", 2.1, 2.0)]
    for loss, norm in ((math.nan, 1.0), (1.0, math.inf)):
        (finding,) = judge(TrainedStep(step=1, loss=loss, grad_norm=norm), Limits())
        assert finding.rule == "nonfinite"


def test_layers_are_judged_by_their_own_history() -> None:
    """A layer of small gradients that grows tenfold is found, one that is always large is not (GLM-130B, 3.1)."""
    rule, history = LayerRule(ratio=10.0), dict[str, Rolling]()
    for _ in range(4):
        assert judge_layers(rule, "layer_gradient", {"embedding": 0.01, "7": 5.0}, history) is None
    assert judge_layers(rule, "layer_gradient", {"embedding": 0.1, "7": 5.0}, history) is None
    found = judge_layers(rule, "layer_gradient", {"embedding": 0.11, "7": 5.0}, history)
    assert found is not None
    assert (found.layer, found.value) == ("embedding", 0.11)
    assert found.threshold == pytest.approx(0.1)


def test_a_layer_is_judged_from_its_fifth_measurement_and_of_equals_the_first_is_named() -> None:
    rule, history = LayerRule(ratio=10.0), dict[str, Rolling]()
    grown = {"embedding": 20.0, "7": 20.0}
    for _ in range(3):
        judge_layers(rule, "activations", {"embedding": 1.0, "7": 1.0}, history)
    fourth = {layer: Rolling(8, window.values) for layer, window in history.items()}
    assert judge_layers(rule, "activations", grown, fourth) is None
    judge_layers(rule, "activations", {"embedding": 1.0, "7": 1.0}, history)
    found = judge_layers(rule, "activations", grown, history)
    assert found is not None
    assert (found.layer, found.value, found.threshold) == ("embedding", 20.0, 10.0)


def test_rules_refuse_what_they_cannot_do() -> None:
    with pytest.raises(ValueError, match="timing must not affect training"):
        Throughput(action="rollback")
    with pytest.raises(ValueError, match="after its update"):
        LayerRule(action="skip")
    with pytest.raises(ValueError, match="more than window_steps"):
        Policy(window_steps=8, min_steps=9)
    assert LossSpike(action="skip").action == "skip"


def test_pace_warns_once_when_steps_stay_slow() -> None:
    rule = ThroughputRule(Throughput(confirmations=3, ratio=0.5), window_steps=64)
    found = [rule.record(step, 1000, 1.0) for step in range(1, 2 * WARM_UP + 1)]
    found += [rule.record(step, 1000, seconds) for step, seconds in enumerate([3.0, 1.0, 3.0, 3.0, 3.0, 3.0], 100)]
    (warned,) = [made for made in found if made]
    assert (warned[0].rule, warned[0].action, warned[0].first, warned[0].last) == ("throughput", "warn", 102, 104)
    assert warned[0].threshold == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("step", "seconds", "found"),
    [
        (2 * WARM_UP, 9.0, False),  # nine steps to compare with
        (2 * WARM_UP + 1, 9.0, True),
        (2 * WARM_UP + 1, 2.0, False),  # half the level is not below half
        (2 * WARM_UP + 1, 2.001, True),
        (2 * WARM_UP + 1, 0.0, False),  # a clock that stood still
    ],
)
@pytest.mark.parametrize("action", ["warn", "stop"])
def test_pace_is_judged_after_as_many_steps_as_the_warm_up(step: int, seconds: float, found: bool, action: Any) -> None:
    rule = ThroughputRule(Throughput(action=action, confirmations=1, ratio=0.5), window_steps=64)
    assert [rule.record(number, 1000, 1.0) for number in range(1, step)] == [[]] * (step - 1)
    assert [made.action for made in rule.record(step, 1000, seconds)] == [action] * found


def test_an_intervention_survives_the_timeline() -> None:
    made = Intervention(
        step=9, rule="nonfinite", action="rollback", value=math.inf, threshold=math.inf, first=8, last=9, number=2
    )
    event = {name: str(v) if isinstance(v, float) and not math.isfinite(v) else v for name, v in made.event().items()}
    assert Intervention.of(event) == made
