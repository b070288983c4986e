"""From checkpoints to candidates, releases and exports, using the workspace alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, SignatureError
from plinth.storage.workspace import Workspace
from plinth.trust.dsse import now
from plinth_audit.takedown.exposed_runs import ExposedRun, HeldCheckpoint
from plinth_audit.takedown.remaining import HOLDS_TEXT, NOT_TAINTED, TAINTED, models_of, remaining_models
from plinth_registry import releases
from plinth_registry.exports import record
from plinth_registry.signing import directory_of

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
    directory_of(ctx, FIRST).mkdir()
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
    assert all((one.model, one.state) == (True, NOT_TAINTED) for one in listed)
    assert "/srv/models/demo" in " ".join(one.where for one in listed)
    assert "plinth release taint" in listed[1].until


def test_two_candidates_one_of_them_rolled_back_one_of_them_tainted(ctx: Context) -> None:
    """Each is listed with what it is now; a rollback and a mark are told apart."""
    for digest in (FIRST, SECOND):
        directory_of(ctx, digest).mkdir()
    release(ctx, "1", FIRST)
    release(ctx, "2", SECOND, previous="1")
    release(ctx, "1", FIRST, "rollback", previous="2")
    found = models_of(ctx, [run(FIRST), run(SECOND)])
    states = {one.what: (one.where, one.state) for one in remaining_models(found, [SECOND])}
    assert states["release demo/1"] == ("champion, and every machine that loaded the model", NOT_TAINTED)
    assert states["release demo/2"] == ("rolled back, and every machine that loaded the model", TAINTED)
    assert [states[f"candidate {digest[:12]}"][1] for digest in (FIRST, SECOND)] == [NOT_TAINTED, TAINTED]
    ends = {one.what: one.until for one in remaining_models(found)}
    assert "new loads are rejected" in ends["release demo/2"]
    assert "promote a successor" in ends["release demo/1"]


def test_an_export_is_listed_where_it_is_and_where_it_was_deleted(ctx: Context, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    places = (str(tmp_path / "there"), str(tmp_path / "gone"), "s3://bucket/models")
    for number, to in enumerate(places):
        record(ctx, name=f"demo/{number}", status="released", subject=FIRST, to=to)
    listed = remaining_models(models_of(ctx, [run(FIRST)]))
    assert {one.what: (one.where, one.until) for one in listed} == {
        "export demo/0": (f"{places[0]}, and copies of it", "until you delete it"),
        "export demo/1": (
            f"copies of {places[1]}, which no longer exists", "unknown: ask the people who received the export"
        ),
        "export demo/2": ("s3://bucket/models, and copies of it", "until you delete it"),
    }  # fmt: skip


def test_an_export_of_text_that_held_it_is_listed_and_holds_text(ctx: Context) -> None:
    record(ctx, name="web/curated", status="data", subject="7" * 64, to="/srv/text")
    record(ctx, name="run-b:1", status="UNRELEASED", subject="7" * 64, to="/srv/model")
    found = models_of(ctx, [], ["7" * 64])
    assert [one.now for one in found] == ["/srv/text"]
    assert [(one.state, one.model) for one in remaining_models(found, ["7" * 64])] == [(HOLDS_TEXT, False)]


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
    with pytest.raises(IntegrityError, match="not an export record"):
        models_of(ctx, [run()])
