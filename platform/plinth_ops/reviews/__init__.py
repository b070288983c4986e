"""Weekly and monthly review pages, and postmortems of incidents.

A review lists failed jobs, cost anomalies, service levels, provenance checks, suite results and promotions.

    review      review period, sections and page
    schedule    Dagster schedules of both reviews
    postmortem  facts of a postmortem, and their page

Reviews read existing records only. If the records of a section cannot be read, the section shows the error and does
not pass.

Also here: the commands `plinth ops retrospective` and `plinth ops incident`, which load the other modules when they
run.
Does not belong here: the signed records of incidents, which freeze promotions (`plinth_registry.incidents`).
"""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth_registry.incidents import Incident


@click.command(
    short_help="Write the review of the last week or month.",
    epilog=examples("plinth ops retrospective", "plinth ops retrospective --month --at 2026-11-02"),
)
@click.option("--month", is_flag=True, help="Review the last calendar month (default: the last week, from Monday).")
@click.option("--at", type=click.DateTime(), help="Review the last period before this UTC time.", show_default="now")
@shared
@json_option
def retrospective(settings: Settings, month: bool, at: datetime | None, as_json: bool) -> None:
    """Write the review of a week or month: failed jobs, unusual cost, service levels, provenance, suites, releases.

    `plinth up` writes both reviews by schedule.
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


# `plinth ops incident`: open, note, close and show incidents; promotions are frozen while one is open.

_by = click.option("--by", help="Your name.", default=getpass.getuser, show_default="your user on this machine")


@group(
    short_help="Freeze promotions during an incident; collect its facts.",
    epilog=examples(
        'plinth ops incident open "loss of web-7b diverges" --run web-7b-3f2a --target web/curated',
        'plinth ops incident note "shard 14 holds the wrong language"',
        "plinth ops check incident",
        "plinth ops incident close --reason 'the shard is replaced; the run is back on its curve'",
        "plinth ops incident show --page",
    ),
)
def incident() -> None:
    """Open an incident, which freezes promotions until compliance closes it.

    The log of incidents is signed and append-only. Rollbacks and the withdrawal of a canary stay possible. `show`
    prints the facts for a postmortem from signed records, alerts, timelines and the goodput ledger.
    """


@incident.command("open")
@click.argument("title")
@click.option("--run", "runs", multiple=True, help="ID of an affected run, or `latest` for the newest run. Repeatable.")
@click.option("--target", "targets", multiple=True, help="Affected target, as in `plinth release impact`. Repeatable.")
@_by
@shared
@json_option
def open_(
    settings: Settings, title: str, runs: tuple[str, ...], targets: tuple[str, ...], by: str, as_json: bool
) -> None:
    """Open an incident and freeze promotions."""
    from plinth_jobs.targets import find_run
    from plinth_registry import incidents

    ctx = settings.context()
    named = [find_run(ctx, run).run_id for run in runs]
    _say(incidents.declare(ctx, title, by, named, targets), as_json)


@incident.command()
@click.argument("text")
@click.option("--number", type=int, help="Incident number.", show_default="the newest open incident")
@_by
@shared
@json_option
def note(settings: Settings, text: str, number: int | None, by: str, as_json: bool) -> None:
    """Add an observation or action to an incident."""
    from plinth_registry import incidents

    ctx = settings.context()
    _say(incidents.note(ctx, incidents.find(ctx, number).number, text, by), as_json)


@incident.command()
@click.argument("number", type=int, required=False)
@click.option("--reason", required=True, help="Description of the fix and of its verification.")
@_by
@shared
@json_option
def close(settings: Settings, number: int | None, reason: str, by: str, as_json: bool) -> None:
    """Close incident NUMBER (default: the newest open incident). The role `compliance` signs the record."""
    from plinth_registry import incidents

    ctx = settings.context()
    _say(incidents.close(ctx, incidents.find(ctx, number).number, reason, by), as_json)


@incident.command("list")
@shared
@json_option
def list_(settings: Settings, as_json: bool) -> None:
    """List every incident."""
    from plinth_registry import incidents

    found = incidents.incidents(settings.context())
    if as_json:
        return output.emit_json(found)
    rows = [(one.number, one.opened, one.closed or "open", len(one.records), one.title) for one in found]
    return output.table(("number", "opened", "closed", "records", "title"), rows, right=("number", "records"))


@incident.command()
@click.argument("number", type=int, required=False)
@click.option(
    "--page", "as_page", is_flag=True, help="Write the facts to reports/incident-NUMBER.html and .md; print the path."
)
@shared
@json_option
def show(settings: Settings, number: int | None, as_page: bool, as_json: bool) -> None:
    """Show the facts of incident NUMBER (default: the newest open incident, or the newest if all are closed)."""
    import time

    from plinth.storage.atomic import write_bytes
    from plinth_ops.reviews import postmortem
    from plinth_ops.reviews import postmortem as incident_page
    from plinth_registry import incidents

    ctx = settings.context()
    facts = postmortem.collect(ctx, incidents.find(ctx, number), time.time())
    if as_json:
        return output.emit_json(facts)
    if not as_page:
        return output.line(incident_page.markdown(facts), end="")
    path = ctx.workspace.reports / f"incident-{facts.number}.html"
    write_bytes(path, incident_page.page(facts).encode())
    write_bytes(path.with_suffix(".md"), incident_page.markdown(facts).encode())
    return output.line(str(path))


def _say(found: Incident, as_json: bool) -> None:
    if as_json:
        return output.emit_json(found)
    state = f"closed {found.closed}" if found.closed else "open: promotions are frozen"
    return output.line(f"incident {found.number}, {state}: {found.title} ({counted(len(found.records), 'record')})")
