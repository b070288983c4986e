"""A fact that is shown in several places has one source: break it, and compare all that show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.run_state import RunState, run_state
from plinth.training.sinks.run_metrics import Families
from plinth.training.telemetry.timeline import Timeline
from plinth_jobs import workspace_index
from plinth_jobs.cli import call
from plinth_ops.checklists import run_checks
from plinth_ops.checklists.review import CheckScope
from plinth_ops.metrics import parts
from plinth_ops.metrics.parts import RunsCollector
from plinth_ops.metrics.table import METRICS
from tests.living_job import give_job, kill_job_of
from tests.plinth.training.conftest import tiny


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setattr(parts, "ASKED_EVERY_S", 0.0)
    Workspace(tmp_path).ensure()
    made = tiny(tmp_path, run_id="r1")
    configuration.write(made)
    give_job(made)
    events = Timeline(made.directory.events)
    events.append("submitted", launcher="local")
    events.append("job_started", ranks=2, nodes=1)
    return made


def shown(config: RunConfig, collector: RunsCollector, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the values that each place shows for the run."""
    ctx = Context(Workspace(config.directory.workspace))
    capsys.readouterr()
    assert call(["-w", config.directory.workspace, "run", "job", "status", "r1", "--json"]) == 0
    metrics = generate_latest(Families(METRICS, collector.collect)).decode()
    return {
        "function": run_state(config),
        "job status": json.loads(capsys.readouterr().out)["state"],
        "index": workspace_index.run_line(ctx, config.directory.config).state.partition(" ")[0],
        "checklist": run_checks.restarts_bounded(CheckScope(ctx)).outcome,
        "active": 'plinth_run_active{run="r1"} 1' in metrics,
        "failed": 'plinth_run_failed{run="r1"} 1' in metrics,
    }


def test_every_place_says_that_a_killed_run_is_lost(config: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    collector = RunsCollector(Workspace(config.directory.workspace).runs)
    before = shown(config, collector, capsys)
    assert before == {
        "function": RunState.RUNNING, "job status": "running", "index": "running", "checklist": "pass",
        "active": True, "failed": False,
    }  # fmt: skip
    kill_job_of(config)
    assert shown(config, collector, capsys) == {
        "function": RunState.LOST, "job status": "lost", "index": "lost", "checklist": "fail",
        "active": False, "failed": True,
    }  # fmt: skip
