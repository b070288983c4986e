"""`plinth run job`: one set of commands for a job, independent of its launcher."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth.compute.context import Context
from plinth.launch.local import LocalLauncher
from plinth.launch.parameters import Kubernetes, Launch
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.telemetry.timeline import Timeline
from tests.plinth.training.conftest import tiny


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return Context(Workspace(tmp_path / "workspace").ensure()).workspace.root


def written(workspace: Path, **changes: Any) -> RunConfig:
    config = tiny(workspace, **changes)
    configuration.write(config)
    return config


def test_status_logs_submit_and_cancel(plinth: Any, workspace: Path) -> None:
    run = written(workspace).directory
    shown = json.loads(plinth("-w", workspace, "run", "job", "status", "tiny", "--json").out)
    assert (shown["status"], shown["launcher"], shown["job"]) == ("never submitted", "local", "")

    handle = LocalLauncher().submit(["bash", "-c", "echo '[bold]up'; sleep 60"], run.root, run.log)
    Timeline(run.events).append("step", step=7, loss=1.0)
    shown = json.loads(plinth("-w", workspace, "run", "job", "status", "tiny", "--json").out)
    assert (shown["status"], shown["job"], shown["step"], shown["steps"]) == ("running", handle.id, 7, 12)
    assert json.loads(plinth("-w", workspace, "run", "job", "submit", "latest", "--json").out)["job"] == handle.id
    while not run.log.read_text():
        pass
    assert plinth("-w", workspace, "run", "job", "logs", "latest", "-n", "1").out == "[bold]up\n"
    said = plinth("-w", workspace, "run", "job", "cancel", "latest").out
    assert "tiny-000000000000: lost" in said
    assert f"local, job {handle.id} on {handle.host}" in said
    assert "7 of 12, committed 0" in said


def test_manifest_is_what_the_scheduler_takes(plinth: Any, workspace: Path) -> None:
    written(workspace, launch=Launch(kind="slurm", ranks=4, nodes=2))
    script = plinth("-w", workspace, "run", "job", "manifest", "latest").out
    assert "#SBATCH --nodes=2\n" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)

    asked = Kubernetes(image="i", claim="c", user="1000")
    written(workspace, launch=Launch(kind="kubernetes", ranks=4, nodes=2, kubernetes=asked))
    objects = list(yaml.safe_load_all(plinth("-w", workspace, "run", "job", "manifest", "latest").out))
    assert [one["kind"] for one in objects] == ["Service", "Job"]

    written(workspace)
    refused = plinth("-w", workspace, "run", "job", "manifest", "latest")
    assert (refused.code, refused.out) == (7, "")
    assert "the launcher local has no manifest" in refused.err
