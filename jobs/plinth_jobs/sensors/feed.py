"""Marks and movements of releases: into the signed feed, to consumers, to the alerts, and onto assets.

Does not belong here: who sends what to whom (`plinth_registry.feed`, `plinth_registry.feed`).
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import PlinthError, TrustError
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace
from plinth.text.plural import counted
from plinth_assets.framework.marks import evaluations
from plinth_jobs import marks
from plinth_jobs.sensors.alarms import HEARTBEAT, record_failure

RUNNING = dg.DefaultSensorStatus.RUNNING
INTERVAL_S = 15
#: Events of the feed that go to the alerts; a release is none.
ALARMING = ("tainted", "rollback", "withdrawn", "returned")


def feed(recipe: Recipe, workspace: Path) -> dg.SensorDefinition:
    """Adds marks and movements of releases to the feed, sends it, alarms about it, and shows it on the assets; a marked
    champion gives way where the release's policy says so."""

    @dg.sensor(name="feed", minimum_interval_seconds=INTERVAL_S, default_status=RUNNING)
    def _feed(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Brings the signed feed up to date and sends consumers what waits for them."""
        from plinth_registry import feed
        from plinth_registry import feed as feeds

        ctx = Context(Workspace(workspace))
        (ctx.workspace.dagster / HEARTBEAT).touch()
        known, _, fault = (context.cursor or "0").partition("|")
        try:
            feeds.catch_up(ctx)
            fresh = feeds.entries(ctx, int(known))
            waiting = [each for each in feed.deliver(ctx, attempts=1) if each.error]
        except PlinthError as error:
            # An alarm for each new finding (a mark that was edited or removed), not for each tick.
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
                context.update_cursor(known)  # mended: the same finding would be a new one
            consumers = counted(len(waiting), "consumer", "wait")
            return dg.SkipReason(f"the feed has {counted(int(known), 'entry')}; {consumers}")
        marked = evaluations(ctx, marks.concerned(ctx, fresh))
        return dg.SensorResult(asset_events=[*observations(fresh), *marked], cursor=str(fresh[-1].number))

    return _feed


def _give_way(ctx: Context, recipe: Recipe, entry: Any) -> None:
    from plinth_registry import api

    if recipe.release is None:
        return
    try:
        moved = api.champion_gives_way(ctx, recipe, entry)
    except PlinthError as error:
        record_failure(ctx.workspace.root, "", "feed", f"the champion is marked and stays: {error}")
        return
    if moved is not None:
        to = f"back at version {moved.version}" if moved.version else "withdrawn"
        record_failure(ctx.workspace.root, "", "feed", f"{moved.model} is {to}: {moved.reason}")


def observations(entries: Iterable[Any]) -> Iterator[dg.AssetObservation]:
    """What entries of the feed say about published assets, for the asset's page."""
    for entry in entries:
        for asset in entry.assets:
            yield dg.AssetObservation(
                asset_key=dg.AssetKey(asset.split("/")),
                metadata={entry.event: f"{entry.by}: {entry.reason}", "target": entry.target, "feed": entry.number},
            )
