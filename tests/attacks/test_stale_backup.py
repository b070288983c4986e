"""Attack: an older state of the workspace is restored and opened by another path."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.launch import manifest, ray_jobs
from plinth.operation.spending import workspace_name
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust.root import SEEN
from plinth_registry import approval, attestations, policy, releases
from plinth_registry.candidate import Candidate
from tests.attacks.judging import BEN, closed, decide
from tests.registry.conftest import small_policy
from tests.registry.test_releases import write


@pytest.fixture
def linked(ctx: Context, own_trust: Path, tmp_path: Path) -> Context:
    """The workspace through a link to a folder above it; nothing of it was seen by that path."""
    (tmp_path / "link").symlink_to(ctx.workspace.root.parent)
    return Context(Workspace(tmp_path / "link" / ctx.workspace.root.name))


def without_last(folder: Path) -> None:
    """The log as a backup from before its last record has it; the head is that of the record before."""
    sorted(folder.glob("0*.json"))[-1].unlink()


@pytest.mark.parametrize("log", ["releases", "policies/demo"])
def test_a_stale_log_through_a_link(ctx: Context, linked: Context, log: str) -> None:
    policy.sign(ctx, small_policy("demo"))
    write(ctx, "1")
    backup = shutil.copytree(ctx.workspace.root / log, ctx.workspace.root.parent / "backup")
    policy.sign(ctx, small_policy("demo").model_copy(update={"version": 2}))
    write(ctx, "2")
    shutil.rmtree(ctx.workspace.root / log)
    backup.rename(ctx.workspace.root / log)
    for at in (linked, ctx):
        with pytest.raises(SignatureError, match="are missing"):
            releases.history(at) if log == "releases" else policy.history(at, "demo")


def test_what_was_seen_by_a_link_before_counts_still(ctx: Context, linked: Context, own_trust: Path) -> None:
    """As this machine kept it before: by the path as it was given."""
    write(ctx, "1")
    write(ctx, "2")
    seen = json.loads((own_trust / SEEN).read_bytes())
    given, real = str(linked.workspace.root), str(ctx.workspace.root)
    assert f"releases of {real}" in seen
    old = {name.replace(real, given): number for name, number in seen.items()}
    (own_trust / SEEN).write_text(json.dumps(old))
    (ctx.workspace.releases / releases.HEAD).unlink()
    without_last(ctx.workspace.releases)
    with pytest.raises(SignatureError, match="are missing"):
        releases.history(linked)


def test_a_decision_that_was_taken_back_through_a_link(
    ctx: Context, linked: Context, line: Any, unregistered: Candidate
) -> None:
    decide(ctx, unregistered, BEN, "good")
    path = approval.statement_path(ctx, unregistered, BEN)
    stale = path.read_bytes()
    decide(ctx, unregistered, BEN, "worse than the last", decision="rejected")
    assert "approvals" in closed(ctx, line.recipe, unregistered)
    path.write_bytes(stale)
    for at in (ctx, linked):
        with pytest.raises(SignatureError, match="the newest decision of"):
            closed(at, line.recipe, unregistered)


def test_every_memory_of_a_workspace_has_one_name_by_whichever_path(
    ctx: Context, linked: Context, unregistered: Candidate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, other = ctx.workspace, linked.workspace
    assert one.places == (str(one.root),)
    assert other.places == (str(one.root), str(other.root))
    assert workspace_name(one) == workspace_name(other)
    of_statement = [attestations._order(attestations.path_of(at, "c" * 64, "evaluation"))[0] for at in (ctx, linked)]
    assert of_statement[0] == of_statement[1]
    assert ray_jobs.base_name(one.runs / "a") == ray_jobs.base_name(other.runs / "a")
    assert manifest.job_name(one.runs / "a") == manifest.job_name(other.runs / "a")
    monkeypatch.delenv(TRUST_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert one.trust_folder == other.trust_folder
    before = tmp_path / "config/plinth/trust" / Workspace(os.path.realpath(one.root)).trust_folder.name
    assert one.trust_folder == before
