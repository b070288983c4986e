"""Dagster sensors: new source files, approvals, the canary, failures; and the taint check `marks` of assets."""

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.sources.files import WRITTEN_KINDS
from plinth.corpus.sources.inventory import wanted_suffixes
from plinth.errors import PlinthError, TrustError
from plinth.recipe.recipe import Recipe
from plinth.storage.listing import listing
from plinth.storage.workspace import Workspace
from plinth.text import counted
from plinth.training.run_state import RunWatch
from plinth_assets.catalog import stages
from plinth_assets.framework import Stage, decide
from plinth_assets.framework.build import MARKS, mark_evaluations
from plinth_assets.framework.placement import DagsterPlacement
from plinth_assets.sources import note_arrival
from plinth_jobs import workspace_index
from plinth_jobs.asset_states import requests
from plinth_jobs.instance import HEARTBEAT, record_failure

RUNNING = dg.DefaultSensorStatus.RUNNING
APPROVAL_INTERVAL_S, CANARY_INTERVAL_S = 15, 60


def approval(recipe: Recipe, workspace: Path, job: Any, place: DagsterPlacement) -> dg.SensorDefinition:
    """Build the sensor that acts on approvals, which are given in MLflow or by a signed statement."""

    @dg.sensor(
        name=place.name("approval"), job=job, minimum_interval_seconds=APPROVAL_INTERVAL_S, default_status=RUNNING
    )
    def _approval(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Request the release job for each approved candidate, or if the asset `release` does not show the last
        promotion or rollback."""
        try:
            keys = requests(Context(Workspace(workspace)), recipe)
        except PlinthError as error:
            return dg.SkipReason(str(error))
        if not keys:
            return dg.SkipReason("no approved candidate is pending")
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=key) for key in keys])

    return _approval


def mirror(recipe: Recipe, workspace: Path, place: DagsterPlacement) -> dg.SensorDefinition:
    """Build the sensor that syncs MLflow from the signed history. The sensor undoes manual changes of aliases and
    raises an alert."""

    @dg.sensor(name=place.name("mirror"), minimum_interval_seconds=APPROVAL_INTERVAL_S, default_status=RUNNING)
    def _mirror(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Set MLflow aliases to those of the signed release history, and report differences."""
        from plinth_registry import decisions

        try:
            differed = decisions.repair(Context(Workspace(workspace)), recipe)
        except TrustError as error:
            differed = (str(error),)
        except PlinthError as error:
            return dg.SkipReason(str(error))
        # Raise one alert per new finding, not per tick. A finding that reappears after a fix is new.
        seen = fingerprint.digest(list(differed)) if differed else ""
        if seen != (context.cursor or ""):
            context.update_cursor(seen)
            for sentence in differed:
                context.log.warning(sentence)
                record_failure(workspace, "", "mirror", sentence)
        return dg.SkipReason("; ".join(differed) or "MLflow matches the signed release history")

    return _mirror


def canary(recipe: Recipe, workspace: Path, job: Any, place: DagsterPlacement) -> dg.SensorDefinition:
    """Build the sensor that compares a canary with the champion and rolls back a worse canary. It requests the
    promotion if the policy does not require a person. The feed sensor raises the alert about a rollback."""

    @dg.sensor(name=place.name("canary"), job=job, minimum_interval_seconds=CANARY_INTERVAL_S, default_status=RUNNING)
    def _canary(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Compare the canary with the champion, and act on the result."""
        from plinth_registry import api

        known, _, fault = (context.cursor or "").partition("|")
        try:
            tick = api.watch_canary(Context(Workspace(workspace)), recipe)
        except PlinthError as error:
            alarms = [str(error)] if isinstance(error, TrustError) else []
            _alarm_once(context, workspace, "canary", alarms, known, fault)
            return dg.SkipReason(str(error))
        if tick is None:
            return dg.SkipReason("no canary is running")
        seen = fingerprint.digest([tick.status.model_dump(mode="json", exclude={"trial"}), *tick.streams])
        faults = [f"{name}: {feed.fault}" for name, feed in tick.status.feeds.items() if feed.fault]
        _alarm_once(context, workspace, "canary", faults, seen, fault)
        # Request the promotion at most once per hour, since gates may refuse it.
        key = f"canary/{tick.status.number}/{int(time.time() // 3600)}"
        requests = [dg.RunRequest(run_key=key)] if tick.due else []
        events = [_trial(Context(Workspace(workspace)), tick, place)] if seen != known else []
        if not requests and not events:
            return dg.SkipReason(tick.status.next)
        return dg.SensorResult(run_requests=requests, asset_events=events)

    return _canary


def _trial(ctx: Context, tick: Any, place: DagsterPlacement) -> dg.AssetObservation:
    """Return the state of a canary trial, for the Dagster page of the asset `release`."""
    from plinth_assets.framework.present import page_value, picture, table
    from plinth_registry.canary.page import trial_figure

    rows = [[one.role, one.finding] for one in tick.streams]
    plot = {"evidence": picture(trial_figure, tick.streams)} if rows else {}
    return dg.AssetObservation(
        asset_key=place.key("release"),
        description=f"Canary version {tick.status.canary}: {tick.status.next}.",
        metadata={
            **plot,
            "page": page_value(ctx, tick.page),
            "streams": dg.MetadataValue.md(table(["role", "finding"], rows)),
        },
    )


def _alarm_once(
    context: dg.SensorEvaluationContext, workspace: Path, name: str, found: list[str], seen: str, before: str
) -> None:
    """Raise an alert if the findings have changed since the last tick. The sensor's cursor stores `seen` and the digest
    of the findings."""
    now = fingerprint.digest(found) if found else ""
    if found and now != before:
        record_failure(workspace, "", name, "; ".join(found))
    context.update_cursor(f"{seen}|{now}")


FEED_INTERVAL_S = 15
#: Feed events that raise alerts.
ALARMING = ("tainted", "rollback", "withdrawn", "returned")


def feed(recipe: Recipe, workspace: Path, place: DagsterPlacement) -> dg.SensorDefinition:
    """Build the sensor that adds taints and release changes to the signed feed, delivers the feed, raises alerts and
    shows entries on the assets. The sensor rolls back a tainted champion if the release's policy requires this."""

    @dg.sensor(name=place.name("feed"), minimum_interval_seconds=FEED_INTERVAL_S, default_status=RUNNING)
    def _feed(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Update the signed feed and deliver pending entries to consumers."""
        from plinth_registry import freeze as feeds

        ctx = Context(Workspace(workspace))
        (ctx.workspace.dagster / HEARTBEAT).touch()
        known, _, fault = (context.cursor or "0").partition("|")
        try:
            feeds.catch_up_feed(ctx)
            fresh = feeds.feed_entries(ctx, int(known))
            waiting = [each for each in feeds.deliver(ctx, attempts=1) if each.error]
        except PlinthError as error:
            # Raise one alert per new finding (an edited or removed taint), not per tick.
            found = fingerprint.digest(str(error))
            if isinstance(error, TrustError) and found != fault:
                record_failure(workspace, "", "feed", str(error))
                context.update_cursor(f"{known}|{found}")
            return dg.SkipReason(str(error))
        for each in waiting:
            context.log.warning(f"{counted(each.waiting, 'entry', 'wait')} for {each.consumer}: {each.error}")
        for entry in fresh:
            if entry.event in ALARMING:
                record_failure(workspace, "", "feed", f"entry {entry.number}: {entry.sentence}")
            _give_way(ctx, recipe, entry)
        if not fresh:
            if fault:
                context.update_cursor(known)  # the finding was fixed, so the same finding later is new
            consumers = counted(len(waiting), "consumer", "wait")
            return dg.SkipReason(f"the feed has {counted(int(known), 'entry')}; {consumers}")
        marked = mark_evaluations(ctx, concerned(ctx, fresh), place)
        return dg.SensorResult(asset_events=[*observations(fresh, place), *marked], cursor=str(fresh[-1].number))

    return _feed


def _give_way(ctx: Context, recipe: Recipe, entry: Any) -> None:
    from plinth_registry import freeze

    if recipe.release is None:
        return
    try:
        moved = freeze.champion_gives_way(ctx, recipe, entry)
    except PlinthError as error:
        record_failure(ctx.workspace.root, "", "feed", f"the champion is tainted and could not be rolled back: {error}")
        return
    if moved is not None:
        to = f"rolled back to version {moved.version}" if moved.version else "withdrawn"
        record_failure(ctx.workspace.root, "", "feed", f"{moved.model} is {to}: {moved.reason}")


def observations(entries: Iterable[Any], place: DagsterPlacement) -> Iterator[dg.AssetObservation]:
    """Yield an observation for each feed entry about a published asset, for the asset's page."""
    for entry in entries:
        for asset in entry.assets:
            yield dg.AssetObservation(
                asset_key=place.key(asset),
                metadata={entry.event: f"{entry.by}: {entry.reason}", "target": entry.target, "feed": entry.number},
            )


ARRIVAL_INTERVAL_S, PAGES_INTERVAL_S = 60, 30


def arrival(recipe: Recipe, workspace: Path, job: Any, name: str = "arrival") -> dg.SensorDefinition:
    """Build the sensor that requests the corpus job when a source, list or protected set has changed."""

    @dg.sensor(name=name, job=job, minimum_interval_seconds=ARRIVAL_INTERVAL_S, default_status=RUNNING)
    def _arrival(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Request the corpus job if a source, list or protected set of the recipe changed."""
        ctx = Context(Workspace(workspace))
        try:
            seen = fingerprint.digest(_listings(recipe, ctx))
            if seen == context.cursor:
                return dg.SkipReason("no source file changed")
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
    """Return the stale assets that read data from outside the workspace. The assets of sources are named by their
    bucket."""
    roots = [stage for stage in stages(recipe) if stage.outside and not stage.deps]
    return [asset.removesuffix("/sources") for asset in decide(ctx, roots).stale]


def _listings(recipe: Recipe, ctx: Context) -> dict[str, list[list[Any]]]:
    """Return the names, sizes and times of source files. Reading these every minute has a low cost; content is hashed
    only when they change."""
    corpus, folder = recipe.corpus, ctx.workspace.input
    named = {f"lists/{name}": location for name, location in corpus.lists.items()}
    named |= {f"protected/{name}": given.path for name, given in corpus.protected.sets.items()}
    named |= {f"probes/{name}": given.path for name, given in recipe.evaluation.probes.sets.items()}
    sources = {
        f"{name}/{index}": listing(source.path, folder, wanted_suffixes(source), sized=False, hidden=source.hidden)
        for name, bucket in corpus.buckets.items()
        for index, source in enumerate(bucket.sources)
        if source.kind not in WRITTEN_KINDS
    }
    return sources | {name: listing(location, folder) for name, location in named.items()}


def pages(workspace: Path, place: DagsterPlacement) -> dg.SensorDefinition:
    """Build the sensor that rewrites the index of the workspace's pages after new data is published."""
    watch = RunWatch(workspace / "runs")

    @dg.sensor(name=place.name("pages"), minimum_interval_seconds=PAGES_INTERVAL_S, default_status=RUNNING)
    def _pages(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Rewrite the index of pages if it is outdated."""
        space = Workspace(workspace)
        seen = workspace_index.seen(space, watch)
        if seen == context.cursor:
            return dg.SkipReason("nothing was published")
        workspace_index.refresh(space, context.log.warning, watch)
        context.update_cursor(seen)
        return dg.SkipReason(f"wrote {workspace_index.path(space)}")

    return _pages


def failure(workspace: Path, place: DagsterPlacement) -> dg.SensorDefinition:
    """Build the sensor that writes every failed run to the workspace's `alerts.jsonl`, for a pager. With a prefix, the
    sensor ignores runs of other recipes and assets in the code location."""

    @dg.run_failure_sensor(name=place.name("failed_runs"), default_status=RUNNING)
    def _failure(context: dg.RunFailureSensorContext) -> None:
        """Record a failed run with its first error."""
        run = context.dagster_run
        selected = run.asset_selection or ()
        own = any(place.has(key) for key in selected) if selected else run.job_name.startswith(place.name(""))
        if own:
            record_failure(workspace, run.run_id, run.job_name, context.failure_event.message)

    return _failure


def automation(all_stages: Iterable[Stage], place: DagsterPlacement) -> dg.AutomationConditionSensorDefinition:
    """Build the sensor of automation conditions. The sensor starts an asset when the asset's inputs are new and their
    blocking checks passed. The sensor covers only Plinth's assets; Dagster's default sensor covers the other assets of
    a project."""
    own = dg.AssetSelection.assets(*(place.key(stage.asset) for stage in all_stages))
    return dg.AutomationConditionSensorDefinition(
        place.name("automation"), target=own, default_status=RUNNING, minimum_interval_seconds=60
    )


# The check `marks` of every asset fails if the asset or an upstream artifact is tainted.
#
# The feed sensor evaluates it for assets affected by a new or lifted taint, and plinth_assets.framework.build for every
# materialized asset. It can also be run by hand.

DESCRIPTION = "Passes if neither the asset nor an upstream artifact is tainted (`plinth release taint list`)."


def checks(groups: Mapping[str, str], workspace: Path, place: DagsterPlacement) -> list[dg.AssetChecksDefinition]:
    """Build the taint check of every asset, in one definition per group.

    For each asset in a definition, Dagster iterates over all assets of that definition. With a single definition, the
    time would grow with the square of the number of assets.

    Args:
        groups: Dagster group of each asset.
    """
    members = dict[str, list[str]]()
    for asset, group in groups.items():
        members.setdefault(group, []).append(asset)
    return [_of_group(group, assets, workspace, place) for group, assets in members.items()]


def _of_group(group: str, assets: Iterable[str], workspace: Path, place: DagsterPlacement) -> dg.AssetChecksDefinition:
    specs = [dg.AssetCheckSpec(MARKS, asset=place.key(asset), description=DESCRIPTION) for asset in assets]

    @dg.multi_asset_check(name=f"{MARKS}_of_{group}", specs=specs, can_subset=True)
    def _marks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        asked = [place.asset(key.asset_key) for key in context.selected_asset_check_keys]
        for found in mark_evaluations(Context(Workspace(workspace)), asked, place):
            yield dg.AssetCheckResult(
                asset_key=found.asset_key,
                check_name=MARKS,
                passed=found.passed,
                metadata=found.metadata,
                description=found.description,
            )

    return _marks


def concerned(ctx: Context, entries: Iterable[Any]) -> frozenset[str]:
    """Return the published assets with taints that changed in these feed entries."""
    from plinth_registry import taint

    records = {one.number: one.mark for one in taint.statements(ctx)}
    marks = [records[entry.record] for entry in entries if entry.of == "taint"]
    return frozenset(each.asset for mark in marks for each in taint.affected(ctx, mark) if each.state == "published")
