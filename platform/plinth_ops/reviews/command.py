"""`plinth ops retrospective`: the page of the last week or month."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, shared


@click.command(
    short_help="Write the page of the last week or month.",
    epilog=examples("plinth ops retrospective", "plinth ops retrospective --month --at 2026-11-02"),
)
@click.option("--month", is_flag=True, help="Of the last calendar month; else of the last week, Monday to Sunday.")
@click.option("--at", type=click.DateTime(), help="UTC; of the last one that had ended then.", show_default="now")
@shared
@json_option
def retrospective(settings: Settings, month: bool, at: datetime | None, as_json: bool) -> None:
    """Write the page of a week or month: failed jobs, unusual cost, service levels, proofs, suites, releases.

    Schedules of `plinth up` write both when one has ended.
    """
    from plinth_ops.reviews import review
    from plinth_ops.reviews.review import Length, period

    until = (at.replace(tzinfo=UTC) if at else datetime.now(UTC)).timestamp()
    length: Length = "month" if month else "week"
    ctx = settings.context()
    if as_json:
        output.emit_json(review.review(ctx, period(length, until)))
    else:
        output.line(review.write(ctx, length, until).absolute().as_uri())
