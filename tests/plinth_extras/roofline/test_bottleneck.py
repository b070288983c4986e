"""The rule: planted causes come first in every trial, whatever the noise; bounds are Amdahl's."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.training.telemetry.machine_speed import Roof
from plinth.training.telemetry.step_clock import STEP_PARTS, mean_step
from plinth_extras.roofline.bottleneck import LOW, StepWork, bottlenecks

TRIALS, STEPS, EVERY = 20, 60, 10

#: Seconds of a step that nothing holds up: 0.32 s compute, of which 0.2 s at the roof.
SOUND = {"data": 0.004, "host": 0.003, "forward": 0.1, "backward": 0.2, "communication": 0.06, "optimizer": 0.02}
ROOF = Roof(flops_per_s=1e12, bytes_per_s=1e11)
LARGE = StepWork(flops=2e11, bytes=1e10)  # 20 FLOPs a byte, the ridge is 10
SMALL = StepWork(flops=2e10, bytes=5e9)


def trial(seed: int, save_s: float = 0.02, **slower: float) -> list[dict[str, Any]]:
    """A timeline whose parts scatter by a third of their size, each on its own, with now and then a hiccup."""
    draw, now = random.Random(seed), 1000.0
    events: list[dict[str, Any]] = [{"event": "run_started", "time": now, "device": "cpu", "precision": "fp32"}]
    for step in range(1, STEPS + 1):
        parts = {name: mean * draw.lognormvariate(0.0, 0.33) for name, mean in {**SOUND, **slower}.items()}
        if draw.random() < 0.05:
            parts[draw.choice(sorted(parts))] += 0.2
        besides = {"save": save_s * draw.lognormvariate(0.0, 0.33)} if step % EVERY == 1 and step > 1 else {}
        now += sum(parts.values()) + sum(besides.values())
        events.append({"event": "step", "time": now, "step": step, "parts": parts, "besides": besides})
    return events


PLANTED: dict[str, dict[str, float]] = {
    "input": {"data": 0.6},  # a reader that is slower than the step
    "communication": {"communication": 0.6},  # an all-reduce at a tenth of its speed
    "checkpoint": {"save_s": 6.0},  # a disk that each save waits for
    "host": {"host": 0.6},
}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_comes_first_in_every_trial(cause: str) -> None:
    first = [bottlenecks(mean_step(trial(seed, **PLANTED[cause])).seconds, LARGE, ROOF)[0] for seed in range(TRIALS)]
    assert [one.cause for one in first] == [cause] * TRIALS


@pytest.mark.parametrize(("work", "cause"), [(SMALL, "memory"), (LARGE, "compute")])
def test_small_matrices_are_told_from_large_ones_in_every_trial(work: StepWork, cause: str) -> None:
    found = []
    for seed in range(TRIALS):
        scatter = random.Random(seed).lognormvariate(0.0, 0.15)  # of one measurement of the machine
        roof = Roof(flops_per_s=ROOF.flops_per_s * scatter, bytes_per_s=ROOF.bytes_per_s)
        found.append(bottlenecks(mean_step(trial(seed)).seconds, work, roof)[0].cause)
    assert found == [cause] * TRIALS


def test_by_the_ridge_and_by_what_is_reached() -> None:
    seconds = {"compute": 1.0}
    assert ROOF.ridge == 10
    assert bottlenecks(seconds, StepWork(flops=5e11, bytes=5e10), ROOF)[0].cause == "compute"  # at the ridge
    assert bottlenecks(seconds, StepWork(flops=5e11, bytes=5.01e10), ROOF)[0].cause == "memory"
    assert bottlenecks(seconds, StepWork(flops=LOW * 1e12, bytes=1e9), ROOF)[0].cause == "compute"
    assert bottlenecks(seconds, StepWork(flops=LOW * 0.99e12, bytes=1e9), ROOF)[0].cause == "memory"
    assert bottlenecks(seconds, StepWork(flops=1.0, bytes=1e9), None)[0].cause == "compute"  # not measured
    assert (ROOF.attainable(4), ROOF.attainable(40)) == (4e11, 1e12)


def test_the_bound_is_amdahls() -> None:
    found = bottlenecks({"compute": 3.0, "input": 1.0, "host": 0.0, "checkpoint": 1.0})
    assert [one.cause for one in found] == ["compute", "input", "checkpoint"]  # a tie keeps the order of the parts
    assert [one.without_s for one in found] == [2.0, 4.0, 4.0]
    assert [one.speedup for one in found] == [2.5, 1.25, 1.25]
    assert bottlenecks({"host": 2.0})[0].speedup == float("inf")


def test_waiting_for_a_slower_rank_is_a_cause_of_its_own() -> None:
    found = bottlenecks({"compute": 1.0, "communication": 4.0}, waited_s=2.5)
    assert [(one.cause, one.seconds, one.without_s) for one in found] == [
        ("slow rank", 2.5, 2.5), ("communication", 1.5, 3.5), ("compute", 1.0, 4.0),
    ]  # fmt: skip
    assert [one.cause for one in bottlenecks({"communication": 4.0}, waited_s=4.0)] == ["slow rank"]


@given(st.dictionaries(st.sampled_from(STEP_PARTS), st.floats(1e-6, 1e3), min_size=1))
def test_shares_add_up_and_no_bound_is_better_than_the_first(seconds: dict[Any, float]) -> None:
    found = bottlenecks(seconds, LARGE, ROOF)
    assert sum(one.share for one in found) == pytest.approx(1)
    assert [one.seconds for one in found] == sorted(seconds.values(), reverse=True)
    assert found[0].speedup == max(one.speedup for one in found)
