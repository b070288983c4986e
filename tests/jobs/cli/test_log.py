"""`plinth release log`: decisions of the command line, and refused ones, listed and proved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust.root import Trust
from plinth_registry.audit_log import AUDIT
from plinth_registry.mlflow.server import stop_server

Plinth = Callable[..., Any]


@pytest.fixture
def ctx(tmp_path: Path, own_trust: Path) -> Iterator[Context]:
    """A workspace with one asset, and a root of trust that may be changed."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    made = Manifest(asset="notes/curated", step="s", version="1", params={}, inputs={"inventory": "5" * 64}, parts=())
    ctx.refs.publish(made, "key")
    yield ctx
    stop_server(ctx.workspace)


def listed(plinth: Plinth) -> list[tuple[str, str, str, str]]:
    found = json.loads(plinth("release", "log", "--json").out)
    return [(each["action"], each["outcome"], each["actor"], each["subject"]) for each in found]


def test_decisions_are_listed_and_a_removed_one_ends_with_trust(plinth: Plinth, ctx: Context) -> None:
    assert plinth("release", "log", "--verify").out == "0 entries hold; 0 release records name one of them\n"
    marked = ctx.refs.current("notes/curated").digest
    assert plinth("release", "taint", marked, "--by", "dpo", "--reason", "with\x1b[2J [bold]marks").code == 0
    assert plinth("release", "taint", "lift", marked, "--by", "dpo", "--reason", "granted").code == 0
    assert plinth("keys", "rotate", "trainer", "trainer").code == 0
    assert plinth("keys", "threshold", "promoter", "9").code == 8
    assert plinth("export", "model", "somewhere", "out").code == 8
    assert listed(plinth) == [
        ("taint", "done", "compliance", marked),
        ("lift", "done", "compliance", marked),
        ("keys", "done", "root", "rotate trainer trainer"),
        ("keys", "refused", "root", "threshold of promoter 9"),
        ("export", "refused", "promoter", "somewhere"),
    ]
    shown = plinth("release", "log").out
    assert "\x1b[2J" not in shown
    assert "5 entries hold" in plinth("release", "log", "--verify").out
    AUDIT.path(ctx, 5).unlink()
    assert plinth("release", "log", "--verify").code == plinth("release", "log").code == 8


def test_a_root_that_is_made_and_pinned_and_what_is_adopted_under_it(
    plinth: Plinth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    made = Manifest(asset="notes/curated", step="s", version="1", params={}, inputs={"inventory": "5" * 64}, parts=())
    ctx.refs.publish(made, "key")  # without a secret nothing is sealed
    assert plinth("keys", "adopt").code == 8
    assert plinth("keys", "init", "--name", "acme").code == 0
    assert plinth("keys", "init", "--name", "other").code == 8
    root = tmp_path / "trust" / "root.json"
    first = Trust.of(ctx.workspace).root
    (tmp_path / "root.json").write_bytes(root.read_bytes())
    assert plinth("keys", "adopt").out == "sealed 1 references and 0 step records\n"
    assert plinth("keys", "threshold", "trainer", "1").code == 0
    assert plinth("keys", "pin", tmp_path / "root.json").code == 8
    assert plinth("keys", "pin", root).code == 0
    second = Trust.of(ctx.workspace).root
    assert listed(plinth) == [
        ("keys", "done", "root", f"init root acme version 1, SHA-256 {first.digest()}"),
        ("keys", "refused", "root", "init other"),
        ("adopt", "done", "trainer", "1 references and 0 step records"),
        ("keys", "done", "root", "threshold of trainer 1"),
        ("keys", "refused", "root", "pin root.json"),
        ("keys", "done", "root", f"pin root acme version 2, SHA-256 {second.digest()}"),
    ]
    (root.parent / "keys" / "root" / "root.key").unlink()
    (root.parent / "keys" / "trainer" / "trainer.key").unlink()
    assert plinth("keys", "pin", root).code == 0  # a verifier's machine has no key to record this with
    assert plinth("keys", "adopt").code == 8
    *earlier, last = listed(plinth)
    assert len(earlier) == 6
    assert last[:2] == ("adopt", "refused")
    assert last[2].startswith("unauthenticated ")


def test_a_demo_whose_workspace_was_deleted_is_refused_at_once_and_begins_anew_with_another_trust_folder(
    plinth: Plinth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust, words = tmp_path / "trust", ("keys", "init", "--demo", "-w", tmp_path / "demo")
    monkeypatch.setenv(TRUST_VARIABLE, str(trust))
    assert plinth(*words).code == 0
    assert "is already pinned" in plinth(*words).out
    shutil.rmtree(tmp_path / "demo")
    refused = plinth(*words)
    assert refused.code == 8
    assert "deleted on purpose" in refused.err
    assert str(trust) in "".join(refused.err.split())
    trust.rename(tmp_path / "away")
    assert plinth(*words).code == 0
