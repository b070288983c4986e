"""The one answer to whether a run lives, from a job that ends in every way."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from plinth.launch.base import Handle, write_handle
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.run_state import SUBMITTING_S, RunState, run_state
from plinth.training.telemetry.timeline import Timeline
from tests.living_job import give_job, kill_job_of
from tests.plinth.training.conftest import tiny


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    made = tiny(tmp_path, run_id="r1")
    configuration.write(made)
    return made


def _ended(config: RunConfig, status: str) -> None:
    facts = {"status": status, "step": 3, "restarts": 0, "lost_steps": 0, "lost_s": 0.0}
    config.directory.result.write_text(json.dumps(facts))


def test_a_run_from_its_configuration_to_its_end(config: RunConfig) -> None:
    assert run_state(config) is RunState.PREPARED
    events = Timeline(config.directory.events)
    events.append("submitted", launcher="local")
    assert run_state(config) is RunState.QUEUED  # its handle is being written
    give_job(config)
    assert run_state(config) is RunState.RUNNING
    events.append("finished", step=3)
    events.append("uploaded", step=3)  # what comes after the end changes nothing
    _ended(config, "finished")
    assert run_state(config) is RunState.FINISHED


@pytest.mark.parametrize("kind", ["failed", "stopped", "finished"])
def test_an_end_on_the_timeline_counts_before_the_result_is_written(config: RunConfig, kind: str) -> None:
    Timeline(config.directory.events).append(kind, step=3)
    assert run_state(config) == kind


def test_a_killed_supervisor_leaves_a_lost_run(config: RunConfig) -> None:
    give_job(config)
    Timeline(config.directory.events).append("job_started", ranks=2, nodes=1)
    assert run_state(config) is RunState.RUNNING
    kill_job_of(config)
    assert run_state(config) is RunState.LOST
    assert RunState.LOST.needs_attention


def test_a_submission_that_left_no_job_is_lost_after_its_time(config: RunConfig) -> None:
    line = {"seq": 1, "time": time.time() - SUBMITTING_S - 1, "event": "submitted", "launcher": "local"}
    config.directory.events.write_text(json.dumps(line) + "\n")
    assert run_state(config) is RunState.LOST


def test_a_job_of_another_machine_is_unknown(config: RunConfig) -> None:
    Timeline(config.directory.events).append("job_started", ranks=2, nodes=1)
    write_handle(config.directory.root, Handle(launcher="local", id="1", started="x", host="another-machine"))
    assert run_state(config) is RunState.UNKNOWN
