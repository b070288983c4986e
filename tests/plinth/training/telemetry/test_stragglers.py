"""A rank that is slower than its like is named, with its node, from when it is slow until it is not."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from plinth.launch.parameters import Launch
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Telemetry
from plinth.training.telemetry.communication import scores
from plinth.training.telemetry.timeline import timeline
from tests.ranks import run_ranks

#: A step of the tiny model takes much less, also on a loaded machine.
SLOW_S = 1.0


def test_the_score_is_the_speed_as_a_share_of_the_fastest() -> None:
    found = scores([1.0, 2.0, 4.0, 0.0], [0, 0, 0, 0])
    assert [(one.rank, one.score) for one in found] == [(2, 0.25), (1, 0.5), (0, 1.0)]  # rank 3 has measured nothing


def test_stages_are_compared_with_themselves() -> None:
    found = scores([1.0, 3.0, 1.5, 3.0], [0, 1, 0, 1])
    assert {one.rank: one.score for one in found} == {0: 1.0, 1: 1.0, 2: pytest.approx(2 / 3), 3: 1.0}


def slowed(config: RunConfig, slow: int, until: int) -> int:
    """Train; one rank is slow up to a step. How many times it gathered."""
    import torch.distributed as dist

    from plinth.training.engine import engine
    from plinth.training.loop import TrainingRun

    rank = engine.join(config)
    run, steps, gathers = TrainingRun(config, rank), [0], [0]
    gather = dist.all_gather_into_tensor

    def counted(output: Any, *rest: Any, **more: Any) -> Any:
        gathers[0] += output.numel() == 4 * config.ranks
        return gather(output, *rest, **more)

    dist.all_gather_into_tensor = counted

    def slower(*_: Any) -> None:
        steps[0] += 1
        if rank.index == slow and steps[0] <= until:
            time.sleep(SLOW_S)

    run.trainer.engine.module.register_forward_pre_hook(slower)
    run.resume(0)
    run.run(0)
    run.saver.drain()
    run.saver.close()
    engine.leave()
    return gathers[0]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_slowed_rank_is_named_until_it_is_as_fast_as_the_others(make: Any) -> None:
    config = make(
        launch=Launch(ranks=3),
        global_batch_sequences=6,
        total_steps=8,
        telemetry=Telemetry(stragglers_every=2, straggler_score=0.2),
    )
    gathers = run_ranks(3, slowed, config, 1, 4)
    assert gathers == [4, 4, 4]  # once every two steps on every rank
    history = timeline(config.directory.events)
    first, last = history.of("stragglers")
    assert first["step"] == 4  # the first step of all ranks is slow, kernels are chosen: it is not compared
    assert (last["step"] in (6, 8), last["ranks"]) == (True, [])
    (named,) = first["ranks"]
    assert (named["rank"], named["node"], named["host"]) == (1, 0, socket.gethostname())
    assert named["own_s"] >= SLOW_S
    assert named["score"] < 0.2
    assert max(named["parts"], key=named["parts"].get) == "compute"  # where it sleeps
    assert sum(named["parts"].values()) == pytest.approx(named["own_s"], rel=0.5)  # each a median of its own
    assert [step for step, event in history.steps.items() if "slowest" in event] == [4, 6, 8]
    assert history.steps[4]["slowest"]["rank"] == 1
