"""Whole runs of two ranks whose writers, ranks and supervisors are struck; the end is that of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import held_ranks
import pytest

from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint, writer
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import timeline

pytestmark = pytest.mark.slow

Make = Callable[..., RunConfig]
SAVES = Checkpoints(every_steps=3, audit_steps=4, keep_last=9)


def crash(tmp_path: Path, faults: list[Any]) -> str:
    (tmp_path / "marks").mkdir(exist_ok=True)
    return json.dumps({"marks": str(tmp_path / "marks"), "faults": faults})


@pytest.fixture
def started(job_environment: Callable[..., dict[str, str]], tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Start a supervisor whose writers meet these faults."""

    def start(config: RunConfig, faults: list[Any], **extra: str) -> subprocess.Popen[bytes]:
        environment = job_environment(CRASH=crash(tmp_path, faults), **extra)
        environment["PYTHONPATH"] = f"{Path(__file__).parent / 'crash'}{os.pathsep}{environment['PYTHONPATH']}"
        command = [sys.executable, "-m", "plinth.training.supervise.supervisor", str(configuration.write(config))]
        return subprocess.Popen(command, env=environment)

    return start


def wait_for(condition: Callable[[], Any], patience_s: float = 240.0) -> None:
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def same_end(config: RunConfig, reference: RunConfig) -> None:
    states = [checkpoint.read_state(one.directory, one.total_steps) for one in (config, reference)]
    assert states[0] == states[1]
    losses = [[e["loss"] for e in timeline(one.directory.events).steps.values()] for one in (config, reference)]
    assert losses[0] == losses[1]


@pytest.mark.exhaustive
def test_writers_that_die_fill_the_disk_or_outlive_their_ranks(
    uninterrupted: RunConfig, make: Make, started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Step 3: the leading writer is killed. Step 8: the other rank's disk is full. As soon as that is heard, the ranks
    save again themselves. Step 12, the last: a writer is killed, and the ranks write the same state themselves."""
    config = make(checkpoints=SAVES)
    faults = [["kill", 3, 0, 7], ["full", 8, 1, 5], ["kill", 12, 1, 3]]
    assert started(config, faults).wait(timeout=600) == 0
    assert len(list((tmp_path / "marks").iterdir())) == 3
    story = timeline(config.directory.events)
    failed = story.of("save_failed")
    assert [event["step"] for event in failed] == [3, 8, 12]
    assert "the process that writes the checkpoint ended before the commit" in failed[0]["what"]
    assert failed[1]["kind"] == "DiskFullError"
    assert "the writer of rank 1 ended before its part was complete" in failed[2]["what"]
    modes = {event["step"]: event["mode"] for event in story.of("checkpoint")}
    assert set(modes) >= {6, 9, 12}
    assert not {3, 8} & set(modes)
    for lost, scheduled in ((3, 6), (8, 9)):
        again = min(step for step in modes if step > lost)
        assert (again <= scheduled, modes[again]) == (True, "sync")
    assert checkpoint.committed(config.directory) == sorted(modes)
    assert story.of("restart") == []
    same_end(config, uninterrupted)


@pytest.mark.exhaustive  # `test_crash_matrix` plays the same kills on files
def test_ranks_killed_while_their_state_is_written_lose_nothing_that_was_staged(
    uninterrupted: RunConfig, make: Make, started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Rank 1 dies at step 8 with step 6 on its way to the disk: the writers commit it, and one step is lost."""
    plan = {"marks": str(tmp_path / "marks"), "faults": [["kill", 8, 1]]}
    config = make(
        checkpoints=Checkpoints(every_steps=6, audit_steps=2, keep_last=9),
        batches="faulty_ranks:open_batches",
        supervision={"max_restarts": 1, "backoff_s": 0.1, "hang_s": 1800.0},
    )
    job = started(config, [["slow", 6, 0, 3.0], ["slow", 6, 1, 3.0]], FAULTS=json.dumps(plan))
    assert job.wait(timeout=600) == 0
    story = timeline(config.directory.events)
    (restart,) = story.of("restart")
    (resumed,) = story.of("resumed")
    assert (restart["from_step"], restart["lost_steps"], resumed["step"]) == (6, 1, 6)
    order = [event["event"] for event in story.events]
    assert order.index("checkpoint") < order.index("restart")
    result = json.loads(config.directory.result.read_bytes())
    assert result["lost_steps"] == 1
    assert result["lost_s"] > 0
    assert result["restart_s"] > 0
    assert story.redone == 1
    assert [e["loss"] for e in story.steps.values()] == [
        e["loss"] for e in timeline(uninterrupted.directory.events).steps.values()
    ]


@pytest.mark.exhaustive
def test_supervisor_killed_and_run_preempted(
    uninterrupted: RunConfig, make: Make, started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The orchestrator's machine is lost: supervisor and ranks are killed. The next job reports the loss; it is
    preempted, commits within the grace period and leaves with 75; the third reaches the same end."""
    marks = tmp_path / "marks"
    marks.mkdir()
    config = make(checkpoints=SAVES, batches="faulty_ranks:open_batches")
    plan = crash(tmp_path, [])
    held_ranks.hold(marks, 6)
    job = started(config, [], FAULTS=plan)
    story = lambda: timeline(config.directory.events)  # noqa: E731
    wait_for(lambda: held_ranks.waiting(marks, 2) and checkpoint.committed(config.directory))
    job.send_signal(signal.SIGKILL)
    job.wait()
    wait_for(lambda: not writer.alive(config.directory))
    assert checkpoint.newest_valid(config.directory) == (3, [])

    held_ranks.hold(marks, 6)
    job = started(config, [], FAULTS=plan)
    wait_for(lambda: held_ranks.waiting(marks, 2))
    assert len(story().of("resumed")) == 1
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=600) == 75
    (vanished,) = story().of("vanished")
    assert vanished["from_step"] == 3
    assert vanished["lost_steps"] == 2
    (signalled,) = story().of("signal")
    assert signalled["step"] == 7
    assert checkpoint.newest_valid(config.directory) == (signalled["step"], [])
    result = json.loads(config.directory.result.read_bytes())
    assert (result["status"], result["step"]) == ("stopped", signalled["step"])
    assert result["lost_steps"] == vanished["lost_steps"]

    held_ranks.let_go(marks)
    assert started(config, [], FAULTS=plan).wait(timeout=600) == 0
    assert len(story().of("vanished")) == 1
    same_end(config, uninterrupted)
    assert not writer.alive(config.directory)
