"""Sensors that start work by themselves."""

import json

import dagster as dg
import pytest

from plinth.compute.context import Context
from plinth.operation import workspace_files
from plinth.recipe.load import load
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import stages
from plinth_assets.framework.build import execute
from plinth_jobs import definitions
from plinth_jobs.instance import record_failure
from plinth_registry import taint
from tests import tiny_corpus
from tests.jobs.conftest import RECIPE


@pytest.fixture
def workspace(tmp_path):
    tiny_corpus.write(tmp_path / "input")
    return Workspace(tmp_path).ensure()


def _tick(workspace, cursor=None, name="arrival"):
    defs = definitions.build(load(RECIPE), workspace.root)
    sensor = defs.resolve_sensor_def(name)
    with dg.instance_for_test() as instance:
        return sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor, definitions=defs))


@pytest.mark.slow
def test_arrival_asks_once_for_every_change_of_the_sources(workspace):
    first = _tick(workspace)
    assert len(first.run_requests) == 1
    assert first.run_requests[0].tags["plinth/new_sources"] == "web,prose,code"
    assert _tick(workspace, first.cursor).skip_message == "no source file changed"

    ctx = Context(workspace)
    for stage in stages(load(RECIPE)):
        if stage.group == "sources":
            list(execute(stage, ctx, print))
    published = _tick(workspace)
    assert not published.run_requests
    assert published.cursor == first.cursor

    articles = workspace.input / "tiny" / "prose.jsonl"
    articles.write_text(articles.read_text() + json.dumps({"id": "new", "text": "A new article. " * 30}) + "\n")
    changed = _tick(workspace, published.cursor)
    arrived = [line for line in workspace_files.read(workspace, float("inf")) if line["event"] == "arrived"]
    assert [line["asset"] for line in arrived] == ["web", "prose", "code", "web", "prose", "code", "prose"]
    assert arrived[-1]["at"] == pytest.approx(articles.stat().st_mtime, abs=1)
    assert [request.tags["plinth/new_sources"] for request in changed.run_requests] == ["prose"]
    assert changed.run_requests[0].run_key != first.run_requests[0].run_key


def test_a_source_that_cannot_be_listed_is_said_and_not_raised(workspace):
    (workspace.input / "tiny" / "prose.jsonl").unlink()
    tick = _tick(workspace)
    assert not tick.run_requests
    assert "prose.jsonl" in tick.skip_message


def test_failures_are_one_line_each(tmp_path):
    for number in (1, 2):
        record_failure(tmp_path, f"run-{number}", "make_candidate", "it broke\nbadly")
    rows = [json.loads(line) for line in (tmp_path / "alerts.jsonl").read_text().splitlines()]
    assert [row["run"] for row in rows] == ["run-1", "run-2"]
    assert rows[0]["message"] == "it broke\nbadly"


def test_a_mark_fails_the_check_of_what_was_made_of_it_until_it_is_lifted(workspace):
    ctx = Context(workspace)
    made = _publish(ctx, "prose/documents", inventory="5" * 64)
    _publish(ctx, "prose/curated", documents=made.digest)
    _publish(ctx, "web/documents", inventory="6" * 64)
    marked = taint.mark(ctx, made.digest, "dpo", "must go")
    tick = _tick(workspace, name="feed")
    assert _checks(tick) == {"prose/documents": False, "prose/curated": False}
    (after, one) = (event for event in tick.asset_events if isinstance(event, dg.AssetCheckEvaluation))
    assert (one.check_name, one.severity) == ("marks", dg.AssetCheckSeverity.ERROR)
    assert one.description.endswith("is tainted by dpo: must go")
    assert after.metadata == {}
    assert "data:image/png;base64," in one.metadata["downstream of taint 1"].md_str

    taint.lift(ctx, marked.target, "dpo", "it was another one")
    lifted = _tick(workspace, tick.cursor, "feed")
    assert _checks(lifted) == {"prose/documents": True, "prose/curated": True}
    assert _tick(workspace, lifted.cursor, "feed").skip_message.startswith("the feed has 2 entries")


def _publish(ctx, name, **inputs):
    made = Manifest(asset=name, step="s", version="1", params={}, inputs=inputs, parts=())
    ctx.refs.publish(made, "key")
    return made


def _checks(tick):
    found = (event for event in tick.asset_events if isinstance(event, dg.AssetCheckEvaluation))
    return {event.asset_key.to_user_string(): event.passed for event in found}
