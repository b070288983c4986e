"""Dagster schedules that write the weekly and monthly reviews. The schedules produce no asset."""

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace
from plinth_assets.framework.placement import DagsterPlacement
from plinth_jobs.definitions import AddedDefinitions, scheduled
from plinth_ops.reviews import review
from plinth_ops.reviews.review import Length

#: Schedule of each review (UTC), after the end of the week or month.
CRON: dict[Length, str] = {"week": "0 6 * * 1", "month": "0 6 1 * *"}


def definitions(recipe: Recipe, workspace: Path, place: DagsterPlacement) -> dg.Definitions:
    """Return the Dagster schedules of the weekly and the monthly review."""
    return dg.Definitions(schedules=[_schedule(workspace, length, place) for length in CRON])


def _schedule(workspace: Path, length: Length, place: DagsterPlacement) -> dg.ScheduleDefinition:
    @dg.op(name=place.name(f"write_{length}_review"))
    def _write(context: dg.OpExecutionContext) -> None:
        path = review.write(Context(Workspace(workspace)), length, datetime.now(UTC).timestamp())
        context.log.info(str(path))

    @dg.job(name=place.name(f"review_{length}"), description=f"Write the review of the last {length} to reports/.")
    def _job() -> None:
        _write()

    return scheduled(_job, place.name(f"review_{length}"), CRON[length], f"Write the review of the last {length}.")


DEFINITIONS = AddedDefinitions("reviews", definitions)
