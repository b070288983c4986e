"""`plinth ops cost`: limits are set, a job that could exceed one is refused by the command line, and sums are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.parameters.guard import Stopping
from tests.plinth.training.conftest import tiny


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = Context(Workspace(tmp_path / "workspace").ensure()).workspace.root
    (root / "budget").mkdir()
    (root / "budget" / "settings.yaml").write_text("team: web\ndevice: h100\n")
    return root


def test_a_limit_refuses_a_job_and_is_lifted(plinth: Any, workspace: Path) -> None:
    run = tiny(workspace, stopping=Stopping(seconds=3600.0))
    configuration.write(run)
    at = ("-w", workspace)
    assert plinth(*at, "ops", "cost", "limit", "team=web", "0.01", "--per", "month").code == 0
    refused = plinth(*at, "run", "job", "submit", "latest")
    assert refused.code == 2
    assert "could exceed the budget" in refused.err
    assert not run.directory.handle.exists()
    shown = json.loads(plinth(*at, "ops", "cost", "show", "--json").out)
    (row,) = shown["rows"]
    assert (row["name"], row["submissions"], row["refused"], row["spent"]) == (run.run_id, 0, 1, 0.0)
    assert [one["words"] for one in shown["limits"]] == ["team web: 0.01 a month"]
    assert "team web: 0.01 a month" in plinth(*at, "ops", "cost", "limits").out
    assert run.run_id in plinth(*at, "ops", "cost", "show", "--this-month").out
    assert plinth(*at, "ops", "cost", "limit", "team=web", "--lift", "--per", "month").code == 0
    assert json.loads(plinth(*at, "ops", "cost", "limits", "--json").out) == []


@pytest.mark.parametrize("words", ["team 3", "all=x 3", "bucket=web 3", "all", "all 3 --lift"])
def test_limits_of_nothing_known_are_refused(plinth: Any, workspace: Path, words: str) -> None:
    assert plinth("-w", workspace, "ops", "cost", "limit", *words.split()).code == 2
