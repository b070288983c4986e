"""Upkeep of a workspace: its pages, runs that failed, automation conditions of its assets."""

from pathlib import Path

import dagster as dg

from plinth.storage.workspace import Workspace
from plinth.training.run_state import RunWatch
from plinth_jobs import workspace_index
from plinth_jobs.sensors.alarms import record_failure

RUNNING = dg.DefaultSensorStatus.RUNNING
PAGES_INTERVAL_S = 30


def pages(workspace: Path) -> dg.SensorDefinition:
    """Writes the index of the workspace's pages again when something was published."""
    watch = RunWatch(workspace / "runs")

    @dg.sensor(name="pages", minimum_interval_seconds=PAGES_INTERVAL_S, default_status=RUNNING)
    def _pages(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Compares what the index shows with what is there."""
        space = Workspace(workspace)
        seen = workspace_index.seen(space, watch)
        if seen == context.cursor:
            return dg.SkipReason("nothing was published")
        workspace_index.refresh(space, context.log.warning, watch)
        context.update_cursor(seen)
        return dg.SkipReason(f"wrote {workspace_index.path(space)}")

    return _pages


def failure(workspace: Path) -> dg.SensorDefinition:
    """Writes every failed run to `alerts.jsonl` of the workspace, for a pager to read."""

    @dg.run_failure_sensor(name="failed_runs", default_status=RUNNING)
    def _failure(context: dg.RunFailureSensorContext) -> None:
        """Records a failed run with its first error."""
        record_failure(
            workspace, context.dagster_run.run_id, context.dagster_run.job_name, context.failure_event.message
        )

    return _failure


def automation() -> dg.AutomationConditionSensorDefinition:
    """Evaluates the assets' automation conditions: new data and blocking checks passed."""
    return dg.AutomationConditionSensorDefinition(
        "automation", target=dg.AssetSelection.all(), default_status=RUNNING, minimum_interval_seconds=60
    )
