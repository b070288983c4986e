"""`plinth ops gc` as a command: a dry run first, JSON, pins; a signed release proves itself afterward."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.provenance import lineage
from plinth.storage.workspace import Workspace
from plinth_ops.retention import deletion
from plinth_registry import policy, releases
from tests.plinth_ops.retention.graphs import DAY, age, save, stored
from tests.registry.conftest import Line, make_recipe, sign_candidate, small_policy

Plinth = Callable[..., Any]


def numbers(outcome: Any) -> dict[str, Any]:
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def look_back(ctx: Context) -> None:
    """As if everything that was found unneeded had been found two days ago."""
    deletion.write(ctx, dict.fromkeys(deletion.read(ctx), time.time() - 2 * DAY))


def test_a_look_deletes_nothing_and_the_second_only_what_is_due(plinth: Plinth, tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    kept, gone = save(ctx, 0, {}, (0,)), save(ctx, 1, {}, (1,))
    ctx.refs.publish(kept, "k" * 64)
    age(ctx.workspace.root, time.time() - 400 * DAY)
    for given in ((), ("--delete",)):
        found = numbers(plinth("ops", "gc", *given, "--json"))
        assert found["unneeded"] == {"record": 0, "manifest": 1, "blob": 1, "bytes": found["unneeded"]["bytes"]}
        assert found["due"]["blob"] == 0
        assert len(stored(ctx)) == 2
    assert [row["name"] for row in found["ages"]] == ["over a year"]
    assert "From " in plinth("ops", "gc").out
    assert plinth("ops", "gc", "pin", gone.digest, "--reason", "an audit").code == 0
    assert [one["asset"] for one in numbers(plinth("ops", "gc", "pins", "--json"))] == ["a1/curated"]
    assert numbers(plinth("ops", "gc", "--json"))["unneeded"]["blob"] == 0
    assert plinth("ops", "gc", "unpin", gone.digest[:8]).code == 0
    numbers(plinth("ops", "gc", "--json"))
    look_back(ctx)
    assert numbers(plinth("ops", "gc", "--json"))["due"]["blob"] == 1
    deleted = numbers(plinth("ops", "gc", "--delete", "--json"))["deleted"]
    assert (deleted["manifest"], deleted["blob"]) == (1, 1)
    assert ctx.refs.digests() == [kept.digest]
    assert deletion.read(ctx) == {}
    assert plinth("ops", "gc", "--keep-days", "1").code == 2


def test_a_release_and_all_behind_it_prove_themselves_after_everything_else_is_gone(
    plinth: Plinth, tmp_path: Path, own_trust: Path
) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    policy.sign(ctx, small_policy("gc"))
    line, other = Line(ctx, make_recipe("gc")), Line(ctx, make_recipe("gc"), seed=2)
    candidate = sign_candidate(ctx, line)
    releases.append(
        ctx, action="champion", goal="champion", model="gc", version="1", previous=None, candidate=candidate.subjects,
        candidate_version="1", by="ada", reason="better", at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    for path in (ctx.workspace.runs, ctx.workspace.models, ctx.workspace.attestations):
        for file in sorted(path.rglob("*"), reverse=True):
            os.rmdir(file) if file.is_dir() else file.unlink()  # the release alone must hold them
    for store in (ctx.workspace.store, ctx.workspace.manifests):
        age(store, time.time() - 400 * DAY)
    before = lineage.verify(ctx, line.checkpoint)
    numbers(plinth("ops", "gc", "--json"))
    look_back(ctx)
    deleted = numbers(plinth("ops", "gc", "--delete", "--json"))["deleted"]
    assert deleted["manifest"] > 0
    assert deleted["blob"] > 0
    assert other.checkpoint.digest not in ctx.refs.digests()
    assert lineage.verify(Context(ctx.workspace), line.checkpoint) == before
    assert plinth("verify", line.checkpoint.digest).code == 0
    assert len(releases.history(ctx)) == 1


def test_where_a_signed_record_is_missing_nothing_is_deleted(plinth: Plinth, tmp_path: Path, own_trust: Path) -> None:
    """Deleting the release record does not cause the deletion of the objects that it names."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    named = save(ctx, 0, {}, (0,))
    for version in ("1", "2"):
        releases.append(
            ctx, action="champion", goal="champion", model="gc", version=version, previous=None,
            candidate={"checkpoint": named.digest}, candidate_version=version, by="ada", reason="better",
            at="2026-01-01T00:00:00+00:00",
        )  # fmt: skip
    age(ctx.workspace.root, time.time() - 400 * DAY)
    assert numbers(plinth("ops", "gc", "--json"))["unneeded"]["blob"] == 0
    for path in ctx.workspace.releases.iterdir():
        path.unlink()
    numbers(plinth("ops", "gc", "--json"))
    look_back(ctx)
    refused = plinth("ops", "gc", "--delete")
    assert refused.code == 8, refused.err
    assert ctx.store.has(named.parts[0].blob)
