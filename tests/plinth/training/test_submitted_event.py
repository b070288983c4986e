"""A job that is submitted once is announced once, also if a process died or was refused meanwhile."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training import job
from plinth.training.config import RunConfig
from plinth.training.run_state import launcher_of
from plinth.training.telemetry.timeline import Timeline, last_event, read_events
from tests.plinth.training.conftest import tiny


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run whose job ends at once, without output."""
    monkeypatch.setattr(job, "command", lambda config, grant: [sys.executable, "-c", "pass"])
    found = tiny(Workspace(tmp_path / "w").ensure().root, run_id="r")
    configuration.write(found)
    return found


def submitted(config: RunConfig) -> int:
    job.submit_or_find(Context(Workspace(config.directory.workspace)), config)
    launcher = launcher_of(config)
    handle = launcher.find(config.directory.root)
    assert handle is not None
    while launcher.poll(handle).alive:
        time.sleep(0.05)
    return sum(event["event"] == "submitted" for event in read_events(config.directory.events))


def test_each_job_is_announced(config: RunConfig) -> None:
    assert submitted(config) == 1
    assert submitted(config) == 2


def test_a_submission_without_a_handle_is_announced_once(config: RunConfig) -> None:
    Timeline(config.directory.events).append("submitted", launcher="local")
    assert submitted(config) == 1  # no handle at all
    an_hour_ago = time.time() - 3600
    os.utime(config.directory.handle, (an_hour_ago, an_hour_ago))
    Timeline(config.directory.events).append("submitted", launcher="local")
    assert submitted(config) == 2  # the handle of the job before


@pytest.mark.parametrize(("event", "launcher"), [("submitted", "slurm"), ("finished", "local")])
def test_another_submission_is_announced(config: RunConfig, event: str, launcher: str) -> None:
    Timeline(config.directory.events).append(event, launcher=launcher)
    assert submitted(config) == 1 + (event == "submitted")
    assert last_event(config.directory.events)["launcher"] == "local"  # type: ignore[index]


@pytest.mark.parametrize(("text", "seq"), [("", None), ("torn", None), ('{"seq": 1}\ntorn', 1), ("x\n", None)])
def test_the_last_event(tmp_path: Path, text: str, seq: int | None) -> None:
    path = tmp_path / "events.jsonl"
    assert last_event(path) is None
    path.write_text(text)
    found = last_event(path)
    assert (found["seq"] if found else None) == seq
