"""Dagster's schedules: of jobs over assets, and of the pages of weeks and months (`reviews`), which make no asset.

Does not belong here: which job starts when (`definitions`).
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth_jobs.reviews import review
from plinth_jobs.reviews.period import Length

#: When each page is written, in UTC: after a week or month has ended.
CRON: dict[Length, str] = {"week": "0 6 * * 1", "month": "0 6 1 * *"}


def of_job(job: Any, name: str, cron: str, description: str) -> dg.ScheduleDefinition:
    """The schedule of a job, running from the start; times in UTC."""
    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=description,
    )


def of_reviews(workspace: Path) -> list[dg.ScheduleDefinition]:
    """One for each length."""
    return [_schedule(workspace, length) for length in CRON]


def _schedule(workspace: Path, length: Length) -> dg.ScheduleDefinition:
    @dg.op(name=f"write_{length}_review")
    def _write(context: dg.OpExecutionContext) -> None:
        path = review.write(Context(Workspace(workspace)), length, datetime.now(UTC).timestamp())
        context.log.info(str(path))

    @dg.job(name=f"review_{length}", description=f"The page of the last {length}, into reports/.")
    def _job() -> None:
        _write()

    return of_job(_job, f"review_{length}", CRON[length], f"Writes the review of the {length} that has ended.")
