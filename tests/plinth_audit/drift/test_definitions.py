"""Drift in Dagster: the daily job, and an alarm for every set of slices that drifts."""

import json
from typing import Any

import dagster as dg

from plinth.compute.context import Context
from plinth.recipe.load import load
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_assets.framework.placement import ALONE
from plinth_audit.drift import job
from plinth_jobs.definitions import build
from tests.jobs.conftest import RECIPE
from tests.plinth_audit.drift.test_proposal import drifting


def tick(workspace: Workspace, cursor: str | None = None) -> Any:
    with dg.instance_for_test() as instance:
        asked = dg.build_sensor_context(instance=instance, cursor=cursor)
        return job.sensor(workspace.root, ALONE).evaluate_tick(asked)


def test_a_recipe_that_releases_is_scored_daily(tmp_path):
    defs = build(load(RECIPE), tmp_path)
    assert defs.resolve_schedule_def("drift_daily").job_name == job.JOB


def test_drift_alarms_once_and_names_the_documents(tmp_path):
    workspace = Workspace(tmp_path).ensure()
    ctx = Context(workspace)
    assert tick(workspace).skip_message == "0 of 0 slices drift"
    found = [drifting("web"), drifting("prose").model_copy(update={"drifts": False})]

    def publish(*slices):
        stats = {"champion": "c" * 64, "looks": [], "slices": [one.model_dump(mode="json") for one in slices]}
        made = Manifest(asset="drift", step="drift", version="1", params={}, inputs={}, parts=(), stats=stats)
        ctx.refs.publish(made, "key")

    def alarms():
        path = workspace.root / "alerts.jsonl"
        return [json.loads(line)["message"] for line in path.read_text().splitlines()] if path.exists() else []

    publish(*found)
    seen = tick(workspace)
    assert seen.skip_message == "1 of 2 slices drift"
    assert len(alarms()) == 1
    assert "bucket web: bits per byte changed from 2.000 to 3.000" in alarms()[0]
    assert "https://a.example/1" in alarms()[0]
    assert "plinth model drift --propose" in alarms()[0]
    tick(workspace, seen.cursor)
    assert len(alarms()) == 1
    publish(drifting("web"), drifting("prose"))
    tick(workspace, seen.cursor)
    assert len(alarms()) == 3
