"""Checkpoints to candidates, releases and exports, by what the workspace alone says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, SignatureError
from plinth.provenance.takedown.exposed_runs import ExposedRun, HeldCheckpoint
from plinth.storage.workspace import Workspace
from plinth.trust.clock import now
from registry import releases
from registry.exports.sealed import record
from registry.held_models import models_of, remaining_models
from registry.materialise import path_of

FIRST, SECOND = "1" * 64, "2" * 64


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def run(*digests: str) -> ExposedRun:
    return ExposedRun("run-a", documents=1, checkpoints=(HeldCheckpoint(40, ("here", "published"), digests),))


def release(ctx: Context, version: str | None, checkpoint: str, action: Any = "champion", **fields: Any) -> None:
    named = {"candidate": checkpoint, "checkpoint": checkpoint, "evaluation": checkpoint}
    releases.append(ctx, action=action, goal="champion", model="demo", version=version, candidate=named, by="anna",
                    candidate_version="1", reason="good", at=now(), **{"previous": None, **fields})  # fmt: skip


def test_what_came_of_a_checkpoint_and_what_it_is_now(ctx: Context) -> None:
    path_of(ctx, FIRST).mkdir()
    release(ctx, "1", FIRST, "canary")
    release(ctx, "1", FIRST)
    release(ctx, "2", SECOND, previous="1")
    record(ctx, name="demo/1", status="released", subject=FIRST, to="/srv/models/demo")
    record(ctx, name="run-a:40", status="UNRELEASED", subject="9" * 64, to="/tmp/try")
    record(ctx, name="run-b:40", status="UNRELEASED", subject="8" * 64, to="/tmp/other")
    found = models_of(ctx, [run(FIRST)])
    assert [(one.kind, one.name) for one in found[:2]] == [("candidate", FIRST[:12]), ("release", "demo/1")]
    assert found[1].now == "previous"
    assert {(one.name, one.now) for one in found[2:]} == {("demo/1", "/srv/models/demo"), ("run-a:40", "/tmp/try")}
    assert [one.now for one in models_of(ctx, [run(SECOND)]) if one.kind == "release"] == ["champion"]
    listed = remaining_models(found)
    assert all(one.model for one in listed)
    assert "/srv/models/demo" in " ".join(one.where for one in listed)
    assert "plinth taint" in listed[1].until


def test_an_export_of_text_that_held_it_is_listed(ctx: Context) -> None:
    record(ctx, name="web/curated", status="data", subject="7" * 64, to="/srv/text")
    assert [one.now for one in models_of(ctx, [], ["7" * 64])] == ["/srv/text"]


def test_of_no_checkpoint_nothing_came(ctx: Context) -> None:
    assert models_of(ctx, []) == []
    assert models_of(ctx, [run()]) == []


def test_what_cannot_be_read_is_named_and_not_passed_over(ctx: Context) -> None:
    release(ctx, "1", FIRST)
    (path,) = ctx.workspace.releases.glob("0*.json")
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"record": {}}))
    with pytest.raises(SignatureError):
        models_of(ctx, [run(FIRST)])
    folder = ctx.workspace.root / "exports"
    folder.mkdir()
    (folder / "x.json").write_text("[]")
    with pytest.raises(IntegrityError, match="no note of an export"):
        models_of(ctx, [run()])
