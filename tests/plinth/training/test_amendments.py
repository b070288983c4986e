"""A run that has begun gets another global batch, for steps still to come."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.storage.workspace import Workspace
from plinth.tokens.order.steps import Amendment
from plinth.training import config, job, preparation
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import Timeline, timeline

sys.path.insert(0, str(Path(__file__).parent))
import held_ranks
import test_job
from tiny_mixture import made_mixture

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
STEPS = 60
TRAINING = test_job.TRAINING.model_copy(update={"checkpoints": Checkpoints(every_steps=1000, audit_steps=3)})


def doubled(from_step: int, **more: Any) -> dict[str, Any]:
    noisy = {"global_batch_sequences": 8, "reason": "the loss is noisy", **more}
    return {"amendments": (Amendment(from_step=from_step, **noisy),)}


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def begun(make: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Configurations of one run of 24 constant steps, of which 10 are on the timeline."""
    fields: dict[str, Any] = {"global_batch_sequences": 4, "total_steps": 24, "sequences": 96}
    known = make(**fields)
    config.write(known)
    events = Timeline(known.directory.events)
    for step in range(1, 11):
        events.append("step", step=step, loss=1.0, grad_norm=1.0, batch="0")
    return lambda from_step: make(
        **fields | {"total_steps": (95 - 4 * from_step) // 8 + from_step}, **doubled(from_step)
    )


def test_what_is_to_come_may_change_and_is_told(begun: Callable[..., RunConfig]) -> None:
    amended = begun(11)
    assert amended.steps.total == amended.total_steps
    assert job.pending(amended)
    job.check(amended)
    job.record(amended)
    assert not job.pending(amended)
    (event,) = timeline(amended.directory.events).of("amended")
    assert (event["step"], event["before"], event["batches"]) == (10, [[0, 4, 32]], [[0, 4, 32], [10, 8, 32]])
    assert event["reason"] == "the loss is noisy"
    assert config.load(amended.directory.config) == amended


def test_the_length_may_change_too(begun: Callable[..., RunConfig], make: Callable[..., RunConfig]) -> None:
    """The same tokens in shorter rows: as many steps, and only what was taken is fixed."""
    fields: dict[str, Any] = {"global_batch_sequences": 4, "total_steps": 24, "sequences": 96}
    shorter = [
        make(**fields, amendments=(Amendment(from_step=first, sequence_tokens=8, reason="spikes"),))
        for first in (11, 10)
    ]
    assert [one.steps.total for one in shorter] == [24, 24]
    job.check(shorter[0])
    with pytest.raises(RecipeError, match="4 from step 1, 4 in rows of 8 tokens from step 10"):
        job.check(shorter[1])
    job.record(shorter[0])
    (event,) = timeline(shorter[0].directory.events).of("amended")
    assert event["batches"] == [[0, 4, 32], [10, 4, 8]]
    assert config.load(shorter[0].directory.config) == shorter[0]
    plain = make(**fields)
    assert config.identity(plain, 10) == config.identity(shorter[0], 10)  # its checkpoints can be loaded
    assert config.identity(plain, 11) != config.identity(shorter[0], 11)


@pytest.mark.parametrize("from_step", [10, 4, 1])
def test_what_was_taken_may_not(begun: Callable[..., RunConfig], from_step: int) -> None:
    amended = begun(from_step)
    with pytest.raises(RecipeError, match="affect past steps of run tiny-000000000000") as caught:
        job.check(amended)
    assert "steps up to 10 with batches of 4 from step 1" in str(caught.value)
    assert "start the amendment at step 11 or later" in str(caught.value)
    assert config.load(amended.directory.config).amendments == ()


def test_the_end_must_leave_room_for_the_proof(begun: Callable[..., RunConfig], make: Callable[..., RunConfig]) -> None:
    late = make(
        global_batch_sequences=4,
        total_steps=12,
        sequences=96,
        amendments=(Amendment(from_step=12, global_batch_sequences=48, reason="hurry"),),
    )
    with pytest.raises(RecipeError, match="too short to prove that it can be resumed"):
        job.check(late)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_running_job_is_stopped_amended_and_goes_on(
    ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "platform"), str(HERE))))
    monkeypatch.setenv("HELD", str(tmp_path))
    held_ranks.hold(tmp_path, 3)
    slow = {"batches": "held_ranks:open_batches"}
    data = made_mixture(ctx, STEPS)
    first = preparation.prepare(ctx, "demo", TRAINING, *data).model_copy(update=slow)
    started = job.submit_or_find(ctx, first)
    try:
        test_job.wait_for(lambda: held_ranks.waiting(tmp_path, 1), first)
        amended = preparation.prepare(
            ctx, "demo", TRAINING.model_copy(update=doubled(STEPS - 19, sequence_tokens=16)), *data
        )
        assert amended.run_id == first.run_id
        assert config.load(first.directory.config) == first  # the job is running by it
        assert job.submit_or_find(ctx, amended.model_copy(update=slow)) != started
        held_ranks.let_go(tmp_path)
        assert job.follow(ctx, amended).status == "finished"
    finally:
        job.cancel(ctx, first)
    story = timeline(first.directory.events)
    assert list(story.steps) == list(range(1, STEPS - 10 + 1))
    assert not story.diverged
    (event,) = story.of("amended")
    assert (event["step"], event["batches"][-1]) == (4, [STEPS - 20, 8, 16])
    tokens = [story.steps[step]["tokens"] for step in story.steps]
    assert tokens == [amended.tokens_through(step) for step in story.steps]
    assert tokens[-1] == STEPS * 4 * 32  # every sequence was seen, once
    too_late = preparation.prepare(ctx, "demo", TRAINING.model_copy(update=doubled(STEPS - 9)), *data)
    with pytest.raises(RecipeError, match="affect past steps"):
        job.submit_or_find(ctx, too_late)
