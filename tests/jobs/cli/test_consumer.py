"""`plinth release consumer` and `plinth release taint` on the command line; the sensor that sends the feed and
alarms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from plinth.compute.context import Context
from plinth.recipe.load import load
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.trust.dsse import now
from plinth_assets.framework.placement import DagsterPlacement
from plinth_jobs import sensors as feed_sensor
from plinth_registry import freeze, releases, taint
from plinth_registry.audit_log import MARKS
from tests.jobs.conftest import RECIPE

Plinth = Callable[..., Any]


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    """A workspace with one asset and one release, without MLflow."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    made = Manifest(asset="notes/curated", step="s", version="1", params={}, inputs={"inventory": "5" * 64}, parts=())
    ctx.refs.publish(made, "key")
    subjects = {"candidate": "c" * 64, "checkpoint": made.digest, "evaluation": "e" * 64}
    facts = {"goal": "champion", "model": "demo", "version": "1", "previous": None, "candidate": subjects}
    releases.append(ctx, action="champion", candidate_version="1", by="ada", reason="good", at=now(), **facts)
    return ctx


def test_a_service_is_enrolled_listed_and_removed(plinth: Plinth, ctx: Context) -> None:
    given = ("--owner", "search@example.org", "--model", "demo@champion", "--webhook", "https://search.example/hook")
    made = json.loads(plinth("release", "consumer", "add", "search", *given, "--canary", "--json").out)
    assert (made["model"], made["canary"], len(made["secret"])) == ("demo", True, 64)
    (listed,) = json.loads(plinth("release", "consumer", "list", "--json").out)
    assert (listed["version"], listed["after_release_s"]) == ("1", None)
    assert "secret" not in listed
    assert "search@example.org" in plinth("release", "consumer", "list").out
    assert plinth("release", "consumer", "remove", "search").code == 0
    assert json.loads(plinth("release", "consumer", "list", "--json").out) == []
    assert plinth("release", "consumer", "remove", "search").code == 3


def test_wrong_values_are_usage(plinth: Plinth, ctx: Context) -> None:
    outcome = plinth("release", "consumer", "add", "search", "--owner", "nobody", "--model", "demo")
    assert outcome.code == 2
    assert "owner" in outcome.err
    assert plinth("release", "consumer", "add", "search", "--owner", "a@example.org").code == 3
    assert plinth("release", "consumer", "add", "search", "--owner", "a@example.org", "--model", "other").code == 3


def test_marks_are_listed_and_the_feed_is_shown(plinth: Plinth, ctx: Context) -> None:
    target = ctx.refs.current("notes/curated").digest
    taint.mark(ctx, target, "ada\x1b[31m", "because")
    freeze.catch_up_feed(ctx)
    shown = plinth("release", "taint", "list").out
    assert "stands" in shown
    assert "\x1b" not in shown
    (first, second) = json.loads(plinth("release", "consumer", "feed", "--json").out)
    assert (first["event"], first["versions"], second["event"]) == ("tainted", ["demo/1"], "champion")
    assert len(json.loads(plinth("release", "consumer", "feed", "--after", "1", "--json").out)) == 1
    (ctx.workspace.root / "feed" / "00001.json").unlink()
    assert plinth("release", "consumer", "feed").code == 8


def test_the_first_argument_of_taint_may_be_a_target(plinth: Plinth, ctx: Context) -> None:
    outcome = plinth("release", "taint", "nothing-here", "--by", "ada", "--reason", "because")
    assert outcome.code == 3
    assert "nothing is derived from 'nothing-here'" in outcome.err
    assert "lift" in plinth("release", "taint", "--help").out
    assert plinth("release", "taint", "lift", "00000000", "--by", "ada", "--reason", "because").code == 3


def test_the_sensor_alarms_once_and_shows_marks_on_assets(ctx: Context) -> None:
    def tick(cursor: str | None) -> Any:
        context = dg.build_sensor_context(cursor=cursor)
        return feed_sensor.feed(load(RECIPE), ctx.workspace.root, DagsterPlacement())(context), context

    def alerts() -> list[str]:
        return [json.loads(line)["message"] for line in (ctx.workspace.root / "alerts.jsonl").read_text().splitlines()]

    taint.mark(ctx, ctx.refs.current("notes/curated").digest, "ada", "because")
    result, _ = tick(None)
    assert result.cursor == "2"
    seen = [event for event in result.asset_events if isinstance(event, dg.AssetObservation)]
    assert [(event.asset_key.to_user_string(), event.metadata["tainted"].value) for event in seen] == [
        ("notes/curated", "ada: because")
    ]
    (alert,) = alerts()  # the release raises no alarm
    assert "demo/1" in alert
    assert isinstance(tick("2")[0], dg.SkipReason)
    MARKS.path(ctx, 1).unlink()
    skipped, context = tick("2")
    assert "missing" in str(skipped)
    assert "missing" in alerts()[1]
    tick(context.cursor)
    assert len(alerts()) == 2
