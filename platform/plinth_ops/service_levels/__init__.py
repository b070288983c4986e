"""Service levels: indicators as shares of time, error budgets, and the gate on them.

    timelines, samples, prices, asset log ──▶ facts ──▶ indicators ──▶ tallies ──▶ any window ──▶ budget

    tallies      good and total seconds of an interval; good share in a window; error budgets
    indicators   every indicator by name, with its unit and function; all budgets; the gate `error_budget`
    objectives   `objectives.yaml` of a workspace, and the indicators of all of its runs and assets
    asset        the asset `service_levels` with its chart and checks, every hour
    export       Parquet tables and views for DuckDB; error budgets on the index page

A training platform has few jobs and many rank-seconds. Therefore, an objective is a share of seconds and not a share of
jobs. An indicator is a pure function from facts to tallies. It reads no data from after the time of the facts, so that
past values can be recomputed, and live and recomputed values are equal.

Also here: the command `plinth ops sli`, which loads the other modules when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.errors import RequestError
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth_ops.service_levels.tallies import ErrorBudget

at_option = click.option("--at", type=click.DateTime(), help="UTC time of the report.", show_default="now")


@group(
    short_help="Show service-level indicators and error budgets of all runs.",
    invoke_without_command=True,
    epilog=examples(
        "plinth ops sli",
        "plinth ops sli --gate --only goodput",
        "plinth ops sli --at 2026-03-01 --json",
        "plinth ops sli export levels",
    ),
)
@click.option("--gate", is_flag=True, help="Exit with code 6 if an error budget is exhausted.")
@click.option(
    "--only",
    multiple=True,
    metavar="INDICATOR",
    help="Show only this indicator and, with --gate, evaluate only this indicator. Repeatable.",
)
@at_option
@shared
@json_option
@click.pass_context
def sli(
    ctx: click.Context, settings: Settings, gate: bool, only: tuple[str, ...], at: datetime | None, as_json: bool
) -> None:
    """Show service levels: SLI attainment, and the spent share of each error budget.

    An error budget is the number of bad seconds that the objective allows; at 100% it is exhausted. Sources are the
    timelines of all runs, the spending ledger and the asset log of the workspace, and its `objectives.yaml`.
    """
    if ctx.invoked_subcommand is not None:
        return
    from plinth_ops.service_levels import objectives
    from plinth_ops.service_levels.indicators import INDICATORS
    from plinth_ops.service_levels.tallies import refuse_spent

    if unknown := sorted(set(only) - set(INDICATORS)):
        raise RequestError(f"there is no indicator {unknown[0]}", expected=", ".join(INDICATORS))
    state, until = settings.context(), _until(at)
    wanted = objectives.load(state.workspace)
    measured = objectives.measure(state, wanted, until, objectives.completeness(state))
    found = [one for one in measured if not only or one.indicator in only]
    if as_json:
        rows = [{**one.model_dump(), "value": one.value, "spent": one.spent} for one in found]
        output.emit_json({"until": until, "objectives": wanted, "indicators": rows})
    else:
        _show(found, wanted.window_days, until)
    if gate:
        refuse_spent(found)


def _show(found: Sequence[ErrorBudget], days: float, until: float) -> None:
    """Print one row per service level indicator."""
    at = datetime.fromtimestamp(until, UTC)
    columns = ("indicator", "attainment", "total time", "objective", "error budget", "measured")
    title = f"SLI attainment in the {days:g} days until {at:%Y-%m-%d %H:%M} UTC (definitions: docs/slis.md)"
    output.table(columns, map(_row, found), title=title, right=columns[1:2])


def _row(one: ErrorBudget) -> tuple[object, ...]:
    measure = None if one.measure is None else f"{one.measure:,.4g} {one.measured_in}"
    if one.value is None or one.spent is None:
        return one.indicator, None, None, None, None, measure or "nothing measured"
    state = output.coloured(f"{one.state}: exhausted", "red") if one.is_spent else one.state
    total = f"{output.duration(one.total_s)} × {one.unit.removesuffix('-s')}"
    return one.indicator, f"{one.value:.2%}", total, f"{one.target:.2%}", state, measure


@sli.command(
    "export", epilog=examples("plinth ops sli export levels", 'duckdb -init levels/views.sql -c "from levels"')
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@at_option
@shared
@json_option
def export_command(settings: Settings, directory: Path, at: datetime | None, as_json: bool) -> None:
    """Write service levels to DIRECTORY: `tallies.parquet`, `objectives.parquet`, and `views.sql` for DuckDB."""
    from plinth_ops.service_levels import export as level_export
    from plinth_ops.service_levels import objectives

    state, until = settings.context(), _until(at)
    wanted = objectives.load(state.workspace)
    found = objectives.tallies(state, wanted, until, objectives.completeness(state))
    files = level_export.export(found, wanted, until, directory)
    if as_json:
        output.emit_json({"until": until, "tallies": len(found), "files": [str(path) for path in files]})
    else:
        tallies = counted(len(found), "tally")
        output.say(f"{tallies} in {directory}; try: duckdb -init {directory}/views.sql -c 'from levels'")


def _until(at: datetime | None) -> float:
    return (at.replace(tzinfo=UTC) if at else datetime.now(UTC)).timestamp()
