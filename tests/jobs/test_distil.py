"""A student from the command line: text that its teacher writes, stored logits, and a mark that freezes both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth_registry.mlflow.server import stop_server
from tests.jobs.conftest import answer, digests, plinth, variant
from tests.shared import copied

pytestmark = pytest.mark.exhaustive

STUDENT = """
name: student
corpus:
  buckets:
    written:
      description: Text of the teacher.
      owner: tests@example.org
      policy: anything
      sources:
        - {{kind: teacher, path: "{run}", licence: CC0-1.0, domain: tiny, snapshot: 2026-46,
           terms: {{train: true, redistribute: true, commercial: true}}, options: {{documents: 60, max_tokens: 63}}}}
  policies:
    anything: {{rules: []}}
tokenizer: {{kind: teacher}}
mixture:
  total_tokens: 5120
  phases:
    - {{name: one, fraction: 1, weights: {{prose: 1, written: 1}}}}
training:
  model: {{layers: 1, dim: 32, heads: 2, kv_heads: 1, ffn_dim: 64}}
  distillation: {{teacher: "{run}", share: 0.5, top_k: 8}}
  checkpoints: {{every_steps: 5}}
release: {{name: student}}
"""


def test_a_student_learns_from_a_finished_run(trained: Path, tmp_path: Path) -> None:
    workspace = copied(trained, tmp_path / "workspace")
    try:
        _follow(workspace, tmp_path)
    finally:
        stop_server(Workspace(workspace))


def _follow(workspace: Path, tmp_path: Path) -> None:
    (teacher,) = (workspace / "runs").glob("tiny-*")
    known, recipe = digests(workspace), variant(tmp_path, STUDENT.format(run=teacher.name))
    plinth(workspace, "run", "-r", recipe, "--select", "candidate")
    made, refs = digests(workspace), Refs(Workspace(workspace))

    logits, text = (refs.load(made[asset]) for asset in ("teacher_logits", "written/sampled"))
    assert logits.stats["positions"] == 5120 // 64
    assert logits.inputs["teacher"] == made["teacher"]
    assert text.stats["documents"] == 60
    assert refs.load(made["teacher"]).inputs == refs.load(made["written/teacher"]).inputs == {
        "checkpoint": known["checkpoint"]
    }  # fmt: skip
    (vocabulary,), (theirs,) = (refs.load(one["tokenizer"]).named("tokenizer.json") for one in (made, known))
    assert vocabulary.blob == theirs.blob  # although the student's text is another
    (student,) = (workspace / "runs").glob("student-*")
    config = json.loads((student / "config.json").read_text())
    assert config["distillation"]["logits"] == logits.digest
    drawn = [one["bucket"] for step in (1, 2) for one in answer(workspace, "batch", student.name, step)["sequences"]]
    assert set(drawn) == {"prose", "written"}

    proved = answer(workspace, "verify", "student-candidate/1")
    assert proved["checkpoint"] == made["checkpoint"]
    assert made["checkpoint"] in json.dumps(answer(workspace, "impact", known["checkpoint"][:16]))
    (mixture,) = refs.saved(refs.load(known["run"]).inputs["mixture"])
    at = workspace / "manifests" / mixture.name
    held = at.rename(tmp_path / "mixture")
    broken = plinth(workspace, "verify", "student-candidate/1", check=False)
    assert broken.returncode == 8  # the walk goes through the teacher's run
    assert "mixture" in broken.stderr
    held.rename(at)

    plinth(workspace, "release", "taint", known["tokenizer"][:16], "--by", "ada@example.org", "--reason", "wrong text")
    frozen = plinth(workspace, "verify", "student-candidate/1", check=False)
    assert frozen.returncode != 0
    assert "is tainted by ada@example.org: wrong text" in frozen.stderr
    again = plinth(workspace, "run", "-r", recipe, "--select", "teacher", check=False)
    assert again.returncode != 0
    assert "tainted" in again.stderr + again.stdout
