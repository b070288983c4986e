"""Upkeep of a workspace: new source files, its pages, failed runs, automation conditions."""

from pathlib import Path
from typing import Any

import dagster as dg

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.sources.inventory import wanted_suffixes
from plinth.corpus.sources.sampled import KIND
from plinth.errors import PlinthError
from plinth.recipe.recipe import Recipe
from plinth.storage.listing import listing
from plinth.storage.workspace import Workspace
from plinth.training.run_state import RunWatch
from plinth_assets.catalog import stages
from plinth_assets.framework.up_to_date import decide
from plinth_assets.sources import note_arrival
from plinth_jobs import workspace_index
from plinth_jobs.alarms import record_failure

RUNNING = dg.DefaultSensorStatus.RUNNING
ARRIVAL_INTERVAL_S, PAGES_INTERVAL_S = 60, 30


def arrival(recipe: Recipe, workspace: Path, job: Any, name: str = "arrival") -> dg.SensorDefinition:
    """Requests the corpus job when a source, list or protected set differs in content from what is published."""

    @dg.sensor(name=name, job=job, minimum_interval_seconds=ARRIVAL_INTERVAL_S, default_status=RUNNING)
    def _arrival(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Watches the sources, lists and protected sets of the recipe."""
        ctx = Context(Workspace(workspace))
        try:
            seen = fingerprint.digest(_listings(recipe, ctx))
            if seen == context.cursor:
                return dg.SkipReason("no source file has changed")
            changed = _changed(recipe, ctx)
        except PlinthError as error:
            return dg.SkipReason(str(error))
        for bucket in changed:
            if bucket in recipe.corpus.buckets:
                note_arrival(ctx, bucket, recipe.corpus.buckets[bucket])
        requests = [dg.RunRequest(run_key=seen, tags={"plinth/new_sources": ",".join(changed)})] if changed else []
        return dg.SensorResult(run_requests=requests, cursor=seen)

    return _arrival


def _changed(recipe: Recipe, ctx: Context) -> list[str]:
    """Assets that read from outside the workspace and are no longer up to date with it; sources by their bucket."""
    roots = [stage for stage in stages(recipe) if stage.outside and not stage.deps]
    return [asset.removesuffix("/sources") for asset in decide(ctx, roots).stale]


def _listings(recipe: Recipe, ctx: Context) -> dict[str, list[list[Any]]]:
    """Names, sizes and times: cheap to read every minute; content is hashed only when these change."""
    corpus, folder = recipe.corpus, ctx.workspace.input
    named = {f"lists/{name}": location for name, location in corpus.lists.items()}
    named |= {f"protected/{name}": given.path for name, given in corpus.protected.sets.items()}
    named |= {f"probes/{name}": given.path for name, given in recipe.evaluation.probes.sets.items()}
    sources = {
        f"{name}/{index}": listing(source.path, folder, wanted_suffixes(source), sized=False, hidden=source.hidden)
        for name, bucket in corpus.buckets.items()
        for index, source in enumerate(bucket.sources)
        if source.kind != KIND
    }
    return sources | {name: listing(location, folder) for name, location in named.items()}


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
