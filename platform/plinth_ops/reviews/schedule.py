"""Schedules of Dagster that write the page of each week and month that has ended; they make no asset."""

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace
from plinth_jobs.definitions import AddedDefinitions, scheduled
from plinth_ops.reviews import review
from plinth_ops.reviews.review import Length

#: When each page is written, in UTC: after a week or month has ended.
CRON: dict[Length, str] = {"week": "0 6 * * 1", "month": "0 6 1 * *"}


def definitions(recipe: Recipe, workspace: Path, pages: str) -> dg.Definitions:
    """Return the schedules of both reviews."""
    return dg.Definitions(schedules=[_schedule(workspace, length) for length in CRON])


def _schedule(workspace: Path, length: Length) -> dg.ScheduleDefinition:
    @dg.op(name=f"write_{length}_review")
    def _write(context: dg.OpExecutionContext) -> None:
        path = review.write(Context(Workspace(workspace)), length, datetime.now(UTC).timestamp())
        context.log.info(str(path))

    @dg.job(name=f"review_{length}", description=f"The page of the last {length}, into reports/.")
    def _job() -> None:
        _write()

    return scheduled(_job, f"review_{length}", CRON[length], f"Writes the review of the {length} that has ended.")


DEFINITIONS = AddedDefinitions("reviews", definitions)
