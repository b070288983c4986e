"""Whole runs of two ranks that lose ranks at any instant: they continue in place, and the end is that of an undisturbed
run, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import struck_nodes

from plinth.launch.parameters import HostChecks, Launch, Supervision
from plinth.storage.workspace import Workspace
from plinth.training import attempts
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints, Recovery
from plinth.training.telemetry.timeline import timeline
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust
from tests.plinth.training.conftest import run_job, tiny
from tests.plinth.training.test_expert_runs import MODEL

pytestmark = pytest.mark.slow

LOOP = "plinth.training.loop:TrainingRun."
ENGINE = "plinth.training.engine.engine:TrainingEngine."
COPIER = "plinth.training.recovery.copies:Copier."
SAVER = "plinth.training.checkpoint.saving:Saver."
CONNECT = "plinth.training.engine.ranks:connect"
KILL = "SIGKILL"

#: Faults by instant: function, number of its call, rank, signal (`struck_ranks`). A step has two micro batches.
INSTANTS: dict[str, list[list[Any]]] = {
    "before the first step": [["batch", 1, 1, KILL]],
    "before the first copy": [["batch", 2, 1, KILL]],
    "before a step": [["batch", 9, 1, KILL]],
    "in the forward pass": [[ENGINE + "_on_device", 14, 1, KILL]],
    "after a micro batch": [[ENGINE + "_step", 17, 1, KILL]],
    "with the gradient": [[ENGINE + "_complete", 9, 1, KILL]],
    "before the update": [[ENGINE + "_step", 18, 1, KILL]],
    "after the update": [[ENGINE + "gradient_norm", 9, 1, KILL]],
    "before a step is read": [[LOOP + "_record", 9, 1, KILL]],
    "after a step is read": [[LOOP + "_record!", 9, 1, KILL]],
    "before a copy": [[COPIER + "copy", 4, 1, KILL]],
    "in a copy": [[COPIER + "_send", 4, 1, KILL]],
    "in the bytes of a copy": [["plinth.training.wire:send_block", 4, 1, KILL]],
    "after a copy": [[COPIER + "_send!", 4, 1, KILL]],
    "before a save": [[SAVER + "save", 1, 1, KILL]],
    "while a save is staged": [[SAVER + "_stage", 1, 1, KILL]],
    "after a save is staged": [[SAVER + "save!", 1, 1, KILL]],
    "before the last commit": [[SAVER + "drain", 1, 1, KILL]],
    "the leading rank": [["batch", 9, 0, KILL]],
    "the leading rank in a save": [[SAVER + "_stage", 1, 0, KILL]],
    "the leading rank after a save": [[SAVER + "save!", 1, 0, KILL]],
    "both ranks": [["batch", 9, 0, KILL], ["batch", 9, 1, KILL]],
    "the other in the rebuild": [["batch", 9, 1, KILL], [CONNECT, 1, 0, KILL]],
    "the other in the restore": [["batch", 9, 1, KILL], [COPIER + "restore", 1, 0, KILL]],
    "the replacement": [["batch", 9, 1, KILL], [COPIER + "restore", 1, 1, KILL]],
    "one after the other": [["batch", 9, 1, KILL], ["batch", 10, 1, KILL], ["batch", 11, 0, KILL]],
    "the copies, then a rank": [["batch", 9, 0, "keeper"], ["batch", 10, 1, KILL]],
    "silence": [["batch", 9, 1, "SIGSTOP"]],
    "in the audit": [["plinth.training.trainer:Trainer.load", 1, 1, KILL]],
}

SAVES = {"checkpoints": Checkpoints(every_steps=6, audit_steps=3, keep_last=9)}

#: Instants after which the process that was not struck restarts too, or at which none recovers in place.
ALL_RESTART = {"before the first step", "in the audit"}

#: Instants for ZeRO-3, which also gathers parameters, and compares their numbers over the ranks in the first steps.
ZERO_3 = (
    "before the first copy",
    "in the forward pass",
    "after a micro batch",
    "with the gradient",
    "after the update",
    "in a copy",
    "while a save is staged",
    "the leading rank",
    "the other in the rebuild",
    "the other in the restore",
    "one after the other",
    "silence",
)

Play = Callable[..., RunConfig]


@pytest.fixture
def play(make: Callable[..., RunConfig], job_environment: Callable[..., dict[str, str]], tmp_path: Path) -> Play:
    """Run a job with faults to its end, and return its configuration. Warm jobs are forks of a process that has loaded
    torch; in a cold one, another process waits to replace a lost rank."""

    def played(faults: list[list[Any]], *, cold: bool = False, **changes: Any) -> RunConfig:
        marks = tmp_path / "marks"
        marks.mkdir()
        given: dict[str, Any] = {
            "recovery": Recovery(copies_every=2, silent_s=6.0 if "SIGSTOP" in str(faults) else 900.0),
            "batches": "struck_ranks:open_batches",
            **SAVES,
            "supervision": Supervision(backoff_s=0.1, hang_s=1800.0, host_checks=HostChecks(enabled=False)),
        }
        config = make(**{**given, **changes})
        plan = {"FAULTS": json.dumps({"marks": str(marks), "faults": faults})}
        if cold:
            assert run_job(config, **plan) == 0
        else:
            started = struck_nodes.fork(str(configuration.write(config)), config.directory.log, job_environment(**plan))
            started.join()
            assert started.exitcode == 0, config.directory.log.read_text()[-2000:]
        assert len(list(marks.iterdir())) == len(faults)
        return config

    return played


def same_end(config: RunConfig, reference: RunConfig) -> None:
    """Losses, parameters, optimizer state, generators, monitor and guard are equal; so is every step taken twice."""
    states = [checkpoint.read_state(one.directory, one.total_steps) for one in (config, reference)]
    assert states[0] == states[1]
    stories = [timeline(one.directory.events) for one in (config, reference)]
    assert [e["loss"] for e in stories[0].steps.values()] == [e["loss"] for e in stories[1].steps.values()]
    assert stories[0].diverged == []
    assert [event["bit_exact"] for event in stories[0].of("audited")] == [True]


def test_a_rank_killed_in_a_step_costs_at_most_the_steps_since_the_last_copy(
    play: Play, uninterrupted: RunConfig
) -> None:
    config = play(INSTANTS["with the gradient"], cold=True)
    same_end(config, uninterrupted)
    story = timeline(config.directory.events)
    (restart,), (resumed,) = story.of("restart"), story.of("resumed")
    assert restart["reason"] == "rank 1 was killed by SIGKILL"
    assert resumed["source"] == "memory"
    assert resumed["step"] == restart["from_step"]
    assert resumed["step"] in (6, 8)  # the copy of step 8 may still have been on its way
    assert restart["lost_steps"] == 8 - resumed["step"] == story.redone
    assert restart["attempt"] == resumed["attempt"] == story.of("run_started")[-1]["attempt"] == 2  # attempts/0002.json
    result = json.loads(config.directory.result.read_bytes())
    assert (result["restarts"], result["lost_steps"]) == (1, restart["lost_steps"])
    start, replacement, audit = attempts.known(config.directory)
    trainer = Trust.of(Workspace(config.workspace)).authority(TRAINER)
    told = attempts.opened((start, replacement, audit), trainer, config.run_id)[1].continuation
    assert told is not None
    assert (told.lost, told.source) == (restart["reason"], "memory")
    assert (told.step, told.restored_sha256, told.copies_sha256) == (resumed["step"], *[resumed["sha256"]] * 2)


@pytest.mark.exhaustive
def test_ranks_whose_copies_arrive_at_different_speeds_have_one_in_common(play: Play, uninterrupted: RunConfig) -> None:
    """The copy of rank 1 after step 8 does not arrive; the rank is killed at the next copy. No checkpoint is as new."""
    saves = Checkpoints(every_steps=12, audit_steps=1, keep_last=9)
    config = play([[COPIER + "_send", 4, 1, "hold"], [COPIER + "settle", 5, 1, KILL]], checkpoints=saves)
    same_end(config, uninterrupted)
    (resumed,) = timeline(config.directory.events).of("resumed")
    assert (resumed["source"], resumed["step"]) == ("memory", 6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("instant", INSTANTS)
def test_any_instant(play: Play, uninterrupted: RunConfig, instant: str) -> None:
    config = play(INSTANTS[instant])
    same_end(config, uninterrupted)
    story = timeline(config.directory.events)
    if instant not in ALL_RESTART:
        assert len(story.of("job_started")) == 1
        assert story.of("restart")
        assert all(event["lost_steps"] <= 4 for event in story.of("restart"))
        assert all(event["backoff_s"] == 0 for event in story.of("restart")) or instant == "both ranks"


@pytest.fixture(scope="module")
def zero_3(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run with ZeRO-3 that nothing disturbed."""
    config = tiny(tmp_path_factory.mktemp("zero-3"), parallel=Parallel(zero_stage=3), **SAVES)
    assert run_job(config) == 0
    return config


@pytest.mark.exhaustive
@pytest.mark.parametrize("instant", ZERO_3)
def test_zero_3_continues_in_place(play: Play, zero_3: RunConfig, instant: str) -> None:
    config = play(INSTANTS[instant], parallel=Parallel(zero_stage=3))
    same_end(config, zero_3)
    restarts = timeline(config.directory.events).of("restart")
    assert restarts
    assert all(event["backoff_s"] == 0 and event["lost_steps"] <= 4 for event in restarts)  # not all ranks restarted


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ranks", "parallel", "more"),
    [
        (2, Parallel(zero_stage=0), {}),
        (2, Parallel(zero_stage=2), {"precision": "bf16"}),
        (2, Parallel(zero_stage=3), {"precision": "bf16"}),
        (4, Parallel(zero_stage=3, activation_checkpointing=1), {}),
        (4, Parallel(zero_stage=1, tensor=2), {}),
        (4, Parallel(zero_stage=0, pipeline=2), {}),
        (4, Parallel(zero_stage=1, sequence=2), {}),
        (2, Parallel(zero_stage=1, compile=True), {}),
        (2, Parallel(zero_stage=1), {"model": MODEL}),
        (2, Parallel(zero_stage=1, expert=2), {"model": MODEL}),
    ],
)
def test_any_layout(play: Play, tmp_path: Path, ranks: int, parallel: Parallel, more: Any) -> None:
    fields = {"launch": Launch(ranks=ranks), "parallel": parallel, **more}
    config = play([["batch", 9, ranks // 2, KILL]], cold=parallel.compile, **fields)
    same = {**fields, "recovery": Recovery(), "workspace": str(tmp_path / "reference")}
    reference = config.model_copy(update={**same, "batches": "synthetic:open_batches"})
    assert run_job(reference) == 0
    same_end(config, reference)
    story = timeline(config.directory.events)
    assert story.of("resumed")[0]["source"] == "memory"
    assert [event["backoff_s"] for event in story.of("restart")] == [0]  # not all ranks restarted
