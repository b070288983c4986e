"""Dagster's schedules of the pages of weeks and months (`reviews`). They read, and make no asset.

Does not belong here: the nightly job of the corpus (`sensors`).
"""

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from jobs import reviews
from plinth.compute.context import Context
from plinth.storage.workspace import Workspace

#: When each page is written, in UTC: after a week or month has ended.
CRON: dict[reviews.Length, str] = {"week": "0 6 * * 1", "month": "0 6 1 * *"}


def of_reviews(workspace: Path) -> list[dg.ScheduleDefinition]:
    """One for each length."""
    return [_schedule(workspace, length) for length in CRON]


def _schedule(workspace: Path, length: reviews.Length) -> dg.ScheduleDefinition:
    @dg.op(name=f"write_{length}_review")
    def _write(context: dg.OpExecutionContext) -> None:
        path = reviews.write(Context(Workspace(workspace)), length, datetime.now(UTC).timestamp())
        context.log.info(str(path))

    @dg.job(name=f"review_{length}", description=f"The page of the last {length}, into reports/.")
    def _job() -> None:
        _write()

    return dg.ScheduleDefinition(
        name=f"review_{length}",
        job=_job,
        cron_schedule=CRON[length],
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Writes the review of the {length} that has ended.",
    )
