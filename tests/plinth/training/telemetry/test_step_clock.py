"""The parts of a step add up to it; steps and the time between them add up to the wall-clock time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import Launch
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.step_clock import BESIDES, PARTS, StepClock
from plinth.training.telemetry.timeline import timeline
from tests.ranks import run_ranks

STEPS = 6

#: Longer than any step of the tiny model, and than a machine that others load delays one.
SLOW_S = 0.6


class Ticks:
    """Marks that are one second apart, and those that may be used again."""

    def __init__(self) -> None:
        self.count, self.released = 0, list[float]()

    def now(self) -> float:
        self.count += 1
        return float(self.count)

    def seconds(self, first: float, second: float) -> float:
        return second - first

    def release(self, marks: Sequence[float]) -> None:
        self.released += marks


def test_nothing_is_counted_twice_or_left_out() -> None:
    ticks = Ticks()
    clock = StepClock(ticks)
    clock.enter("forward")  # before the first step nothing is measured
    clock.begin()
    with clock.within("data"):
        pass
    clock.enter("forward")
    clock.enter("backward")
    with clock.within("communication"), clock.within("communication"):
        pass
    clock.enter("backward")
    clock.enter("optimizer")
    first = clock.end()
    with clock.within("save"), clock.within("communication"):
        clock.begin()
    clock.enter("forward")
    second = clock.end()
    found = first.read()
    assert found.parts == {"data": 1, "host": 2, "forward": 1, "backward": 2, "communication": 1, "optimizer": 1}
    assert (found.besides, found.seconds, found.own_s) == ({}, 8, 7)
    assert ticks.released == [1, 2, 3, 4, 5, 6, 7, 8]  # the ninth mark begins the second step
    then = second.read()
    assert (then.parts, then.besides) == ({"host": 2, "forward": 1}, {"save": 1})
    assert found.seconds + then.seconds + sum(then.besides.values()) == ticks.count - 1


def timed(config: RunConfig, slow: int) -> list[dict[str, float]]:
    """Parts of each step of this rank, of which one is slow in its forward pass."""
    from plinth.training.engine import engine
    from plinth.training.trainer import Trainer

    rank = engine.join(config)
    trainer = Trainer(config, rank)
    if rank.index == slow:
        trainer.engine.module.register_forward_pre_hook(lambda *_: time.sleep(SLOW_S / 2))  # two micro batches
    stream, found = trainer.batches(1), []
    for step in range(1, STEPS + 1):
        measured = trainer.launch(stream, step).read()
        trainer.record(measured)
        found.append(measured.time.parts)
        assert measured.timed_step == step - 1
    engine.leave()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, *(pytest.param(stage, marks=pytest.mark.exhaustive) for stage in (0, 2, 3))])
def test_waiting_for_a_slow_rank_is_communication(stage: int, make: Any) -> None:
    config = make(parallel=Parallel(zero_stage=stage), launch=Launch(ranks=2), total_steps=STEPS)
    waiting, slow = run_ranks(2, timed, config, 1)
    for ours, theirs in zip(waiting[1:], slow[1:], strict=True):
        assert set(ours) == set(PARTS) - {"checkpoint"}
        assert theirs["forward"] >= SLOW_S
        assert ours["communication"] - theirs["communication"] > SLOW_S / 2
        assert ours["forward"] + ours["backward"] + ours["optimizer"] < theirs["forward"]


def on_the_wall(config: RunConfig) -> tuple[float, float]:
    """When the loop begins, and when the last step's event has been written."""
    from plinth.training.engine import engine
    from plinth.training.loop import TrainingRun

    rank = engine.join(config)
    run = TrainingRun(config, rank)
    run.resume(0)
    begun = time.time()
    run.run(0)
    run.saver.drain()
    run.saver.close()
    engine.leave()
    return begun, time.time()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_steps_and_what_lies_besides_them_are_the_clock_on_the_wall(mode: str, make: Any, tmp_path: Path) -> None:
    config = make(
        launch=Launch(ranks=1),
        total_steps=40,
        batches="slow_batches:open_batches",
        checkpoints=Checkpoints(every_steps=4, audit_steps=4, mode=mode),
    )
    begun, _ = run_ranks(1, on_the_wall, config)[0]
    steps = timeline(config.directory.events).steps
    assert len(steps) == 40
    for event in steps.values():
        assert sum(event["parts"].values()) == pytest.approx(event["step_s"], rel=0.01)
    besides = [event.get("besides", {}) for event in steps.values()]
    assert [step for step, one in zip(steps, besides, strict=True) if "save" in one] == list(range(5, 40, 4))
    assert {name for one in besides for name in one} <= set(BESIDES)
    counted = sum(event["step_s"] for event in steps.values()) + sum(sum(one.values()) for one in besides)
    elapsed = steps[40]["time"] - begun
    assert elapsed > 1.0  # or a percent of it is less than what the timeline rounds
    assert counted == pytest.approx(elapsed, rel=0.01, abs=0.02)


def beside(config: RunConfig) -> dict[str, float]:
    """Return the parts of a step during which another thread waits in a collective of its own."""
    import torch
    import torch.distributed as dist

    from plinth.training.engine import engine
    from plinth.training.telemetry import communication

    rank = engine.join(config)
    group = dist.new_group(backend="gloo")
    clock = StepClock.of(rank.device)
    communication.measure(clock)
    clock.begin()
    clock.enter("forward")
    thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1), group=group))
    if rank.index == 0:
        thread.start()
        time.sleep(SLOW_S)
    dist.barrier()
    if rank.index == 1:
        thread.start()
    thread.join()
    engine.leave()
    return clock.end().read().parts


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_collective_of_another_thread_is_no_part_of_the_step(make: Any) -> None:
    waited, _ = run_ranks(2, beside, make())
    assert waited["forward"] >= SLOW_S


@pytest.mark.gpu
def test_on_a_gpu_the_parts_are_the_devices_and_nothing_waits() -> None:
    """A kernel that outlasts its launch counts where it runs; recording events does not wait."""
    import torch

    device = torch.device("cuda", 0)
    clock, matrix = StepClock.of(device), torch.ones(8192, 8192, device=device)
    clock.begin()
    torch.cuda.set_sync_debug_mode("error")
    try:
        clock.enter("forward")
        for _ in range(20):
            matrix @ matrix
        clock.enter("backward")
        done = clock.end()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    found = done.read()
    assert found.parts["forward"] > 10 * found.parts["backward"]
    assert found.parts["forward"] > 0.01
