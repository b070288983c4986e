"""docs/any-trainer.md: `transformers.Trainer` as released, from `plinth run` to a verified release, killed thrice."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import checkpoint
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.timeline import timeline
from plinth_registry.mlflow.server import stop_server
from tests import tiny_corpus
from tests.jobs.conftest import ROOT, answer, plinth, variant

pytestmark = pytest.mark.exhaustive

TRAINER = ROOT / "tests" / "plinth" / "sdk" / "transformers_trainer.py"
#: In a step, in a save, and between the files of a commit and its record.
KILLS = [{"at": "step", "step": 7}, {"at": "save", "step": 15}, {"at": "renamed", "step": 30}]
POLICY = ROOT / "jobs" / "plinth_jobs" / "policies" / "tiny.yaml"


def test_a_model_of_another_trainer_is_released_if_the_policy_accepts_the_replay_of_its_order(
    tmp_path: Path, own_trust: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    tiny_corpus.write(workspace / "input")
    recipe = variant(
        workspace,
        "training:\n"
        "  launch: {ranks: 1}\n"
        "  supervision: {hang_s: 3600}\n"
        f"  trainer: {{command: {json.dumps([sys.executable, str(TRAINER)])}}}\n",
    )
    monkeypatch.setenv("FAULTS", json.dumps(KILLS))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'platform'}{os.pathsep}{ROOT}")
    try:
        plinth(workspace, "run", "-r", recipe)
        assert not list((workspace / "releases").rglob("*.json"))
        page = (workspace / "reports" / "tiny-candidate-1.html").read_text()
        assert "not proved by this trainer; order and data: 2 steps replayed, losses differ by at most" in page
        assert "the policy accepts only bit-equal" in page
        _require_trained(workspace)

        policy = tmp_path / "policy.yaml"
        wider = "\nresume: {classes: [bit-equal, order], min_steps: 2}\n"
        policy.write_text(POLICY.read_text().replace("version: 1", "version: 2") + wider)
        signed = plinth(workspace, "gates", "sign", policy, "--yes")
        assert "weaker" in signed.stdout
        plinth(workspace, "run", "-r", recipe)
        assert answer(workspace, "verify", "champion")["release"] == "tiny/1"
    finally:
        stop_server(Workspace(workspace))


def _require_trained(workspace: Path) -> None:
    (root,) = (workspace / "runs").glob("tiny-*")
    run = RunDirectory(root)
    story = timeline(run.events)
    assert [event["reason"] for event in story.of("restart")] == ["rank 0 was killed by SIGKILL"] * 3
    assert [event["from_step"] for event in story.of("restart")] == [0, 0, 15]
    assert (list(story.steps), story.diverged) == (list(range(1, 41)), [])
    assert checkpoint.committed(run)[-1] == 40
    assert checkpoint.read_state(run, 40)["trainer"]["packages"]["transformers"]
    page = Path(answer(workspace, "run", "timeline", "latest")["page"]).read_text()
    assert "resume: not proved by this trainer" in page
