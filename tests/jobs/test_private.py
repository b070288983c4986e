"""A private run from the command line: what every asset states of its privacy, and a key that is nowhere in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth.training.telemetry.timeline import timeline
from plinth_extras import privacy
from plinth_extras.privacy.accounting import epsilon
from plinth_registry.mlflow.server import stop_server
from tests.jobs.conftest import answer, digests, plinth, variant
from tests.shared import copied

pytestmark = pytest.mark.exhaustive

PRIVATE = """
name: private
mixture: {{total_tokens: {tokens}}}
training:
  privacy: {{epsilon: {epsilon}, delta: 1.0e-4}}
  guard: {{enabled: false}}
  parallel: {{zero_stage: 1}}
  checkpoints: {{every_steps: 5}}
release: {{name: private}}
"""


def test_a_private_run_is_trained_listed_verified_and_found_again(corpus: Path, tmp_path: Path) -> None:
    workspace = copied(corpus, tmp_path / "workspace")
    try:
        _follow(workspace, variant(tmp_path, PRIVATE.format(tokens=10240, epsilon=8)))
        _refused(workspace, tmp_path)
    finally:
        stop_server(Workspace(workspace))


def _follow(workspace: Path, recipe: Path) -> None:
    plinth(workspace, "run", "-r", recipe, "--select", "candidate")
    place, made = Workspace(workspace), digests(workspace)
    refs = Refs(place)
    run, checkpoint = (refs.load(made[asset]) for asset in ("run", "checkpoint"))
    spent = run.stats["privacy"]
    assert spent == checkpoint.stats["privacy"]
    assert (spent["unit"], spent["steps"], spent["sample_rate"]) == ("sequence", 20, 0.05)
    assert spent["epsilon"] == epsilon(spent["noise_multiplier"], 0.05, 20, 1e-4) <= 8
    assert run.inputs == {"mixture": made["mixture"], "tokenizer": made["tokenizer"]}
    assert (checkpoint.inputs["run"], checkpoint.stats["bit_exact_resume"]) == (made["run"], True)
    assert answer(workspace, "verify", "private-candidate/1")["checkpoint"] == made["checkpoint"]
    card = plinth(workspace, "release", "papers", "--show", "model-card").stdout
    assert f"| privacy.epsilon | {spent['epsilon']:g} | `{made['run'][:12]}` |" in card

    trained = workspace / "runs" / run.stats["run_id"]
    assert [event["step"] for event in timeline(trained / "events.jsonl").of("privacy")] == [5, 10, 12, 15, 20]
    steps = [answer(workspace, "batch", "latest", step) for step in (1, 2, 3, 4)]
    sizes = [len(step["sequences"]) for step in steps]
    assert len(set(sizes)) > 1
    assert [step["tokens"] for step in steps] == [64 * size for size in sizes]

    key = privacy.key_path(place, run.stats["run_id"])
    for path in (path for path in workspace.rglob("*") if path.is_file()):
        data = path.read_bytes()
        assert key.read_bytes() not in data, path
        assert key.read_bytes().hex().encode() not in data, path
    again = plinth(workspace, "run", "-r", recipe, "--select", "candidate")
    assert "nothing to do" in again.stdout
    key.rename(key.with_suffix(".elsewhere"))
    assert plinth(workspace, "run", "batch", "latest", 1, check=False).returncode == 8


def _refused(workspace: Path, tmp_path: Path) -> None:
    """By name, and before any rank starts."""
    for words, expected in (
        (PRIVATE.format(tokens=10240, epsilon=0.001), "training.privacy.epsilon is too low for this run"),
        (PRIVATE.format(tokens=204800, epsilon=8), "training.privacy allows each sequence only once in the mixture"),
    ):
        runs = sorted(path.name for path in (workspace / "runs").iterdir())
        failed = plinth(workspace, "run", "-r", variant(tmp_path, words), "--select", "run", check=False)
        assert failed.returncode != 0
        assert expected in failed.stdout + failed.stderr
        assert sorted(path.name for path in (workspace / "runs").iterdir()) == runs
