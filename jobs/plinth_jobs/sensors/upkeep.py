"""Upkeep of a workspace: its pages, slices that drift, runs that failed, automation conditions of its assets."""

from pathlib import Path

import dagster as dg

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.storage.workspace import Workspace
from plinth.training.run_state import RunWatch
from plinth_jobs import workspace_index
from plinth_jobs.sensors.alarms import record_failure

RUNNING = dg.DefaultSensorStatus.RUNNING
PAGES_INTERVAL_S, DRIFT_INTERVAL_S = 30, 60


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


def drift(workspace: Path) -> dg.SensorDefinition:
    """Alarms once about every set of slices that drifts, with the documents that moved."""

    @dg.sensor(name="drift", minimum_interval_seconds=DRIFT_INTERVAL_S, default_status=RUNNING)
    def _drift(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Reads what the last look at held-out text has found."""
        from plinth.evaluation.drift import job
        from plinth.operation.continued_training import in_words

        ctx = Context(Workspace(workspace))
        try:
            published = ctx.refs.published(job.ASSET)
            found = job.slices(published) if published else []
        except PlinthError as error:
            return dg.SkipReason(str(error))
        drifting = [one for one in found if one.drifts]
        seen = fingerprint.digest(sorted(f"{one.label} {one.look}" for one in drifting)) if drifting else ""
        if seen != (context.cursor or ""):
            context.update_cursor(seen)
            for one in drifting:
                record_failure(
                    workspace, "", "drift", f"{in_words(one)}. Try: `plinth model drift --propose continued.yaml`"
                )
        return dg.SkipReason(f"{len(drifting)} of {len(found)} slices drift")

    return _drift


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
