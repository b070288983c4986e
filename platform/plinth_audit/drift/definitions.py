"""Drift in Dagster: the asset, a job and schedule that score it daily, and a sensor that alarms."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace
from plinth_assets.framework.build import asset
from plinth_audit.drift import job
from plinth_audit.drift.job import stages
from plinth_audit.drift.judge import in_words
from plinth_jobs.asset_jobs import AddedDefinitions, AssetJob, with_schedule
from plinth_jobs.instance import record_failure

JOB = "score_drift"
INTERVAL_S = 60


def build(recipe: Recipe, workspace: Path, pages: str) -> dg.Definitions:
    """Nothing of a recipe that releases nothing."""
    own = stages(recipe)
    if not own:
        return dg.Definitions()
    daily = AssetJob(
        name=JOB,
        selection=dg.AssetSelection.assets(job.ASSET),
        description="The champion on held-out text that came since the last look.",
        schedule="drift_daily",
        cron="0 5 * * *",
        scheduled="Scores the champion on new held-out documents, at 05:00.",
    )
    parts = dg.Definitions(assets=[asset(stage, pages) for stage in own], sensors=[sensor(workspace)])
    return dg.Definitions.merge(parts, with_schedule(daily))


def sensor(workspace: Path) -> dg.SensorDefinition:
    """Alarms once about every set of slices that drifts, with the documents that moved."""

    @dg.sensor(name="drift", minimum_interval_seconds=INTERVAL_S, default_status=dg.DefaultSensorStatus.RUNNING)
    def _drift(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Reads what the last look at held-out text has found."""
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
                message = f"{in_words(one)}. Try: `plinth model drift --propose continued.yaml`"
                record_failure(workspace, "", "drift", message)
        return dg.SkipReason(f"{len(drifting)} of {len(found)} slices drift")

    return _drift


DEFINITIONS = AddedDefinitions("drift", build)
