"""`plinth sli`: service-level indicators of all runs and assets, their error budgets; as Parquet for DuckDB."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from jobs.cli.options import Settings, examples, group, json_option, shared

at_option = click.option("--at", type=click.DateTime(), help="UTC; as things stood then.", show_default="now")


@group(
    invoke_without_command=True,
    epilog=examples(
        "plinth sli",
        "plinth sli --gate --only goodput",
        "plinth sli --at 2026-03-01 --json",
        "plinth sli export levels",
    ),
)
@click.option("--gate", is_flag=True, help="Fail (exit code 6) where an error budget is spent.")
@click.option("--only", multiple=True, metavar="INDICATOR", help="Show and ask these alone; can be repeated.")
@at_option
@shared
@json_option
@click.pass_context
def sli(
    ctx: click.Context, settings: Settings, gate: bool, only: tuple[str, ...], at: datetime | None, as_json: bool
) -> None:
    """Show service-level indicators: good seconds of all, and how much of each error budget is spent.

    From the timelines of all runs of the workspace, the ledger of spending, and the log of its assets; objectives are
    in its `objectives.yaml`.
    """
    if ctx.invoked_subcommand is not None:
        return
    from jobs.cli import output
    from plinth.errors import RequestError
    from plinth.operation import indicators, objectives
    from registry import service_levels

    if unknown := sorted(set(only) - set(indicators.INDICATORS)):
        raise RequestError(f"no indicator {unknown[0]}", expected=", ".join(indicators.INDICATORS))
    state, until = settings.context(), _until(at)
    wanted = objectives.load(state.workspace)
    found = [one for one in service_levels.measure(state, wanted, until) if not only or one.indicator in only]
    if as_json:
        rows = [{**one.model_dump(), "value": one.value, "spent": one.spent} for one in found]
        output.emit_json({"until": until, "objectives": wanted, "indicators": rows})
    else:
        for one in found:
            output.line(f"{one.indicator:<23}{in_words(one)}")
    if gate:
        indicators.refuse_spent(found)


def in_words(one: object) -> str:
    """An error budget for people."""
    from jobs.cli import output
    from plinth.operation.indicators import ErrorBudget

    assert isinstance(one, ErrorBudget)
    measure = "" if one.measure is None else f"{one.measure:,.4g} {one.measured_in}"
    if one.value is None or one.spent is None:
        return measure or "nothing measured"
    seconds = f"{one.total_s:,.1f} {one.unit}" if one.total_s < 1000 else f"{output.duration(one.total_s)} ({one.unit})"
    said = f"{one.value:>8.2%} of {seconds}; objective {one.target:.2%}, budget spent {one.spent:.0%}"
    return f"{said}; {measure}" if measure else said


@sli.command(epilog=examples("plinth sli export levels", 'duckdb -init levels/views.sql -c "from levels"'))
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@at_option
@shared
@json_option
def export(settings: Settings, directory: Path, at: datetime | None, as_json: bool) -> None:
    """Write service levels below DIRECTORY: `tallies.parquet`, `objectives.parquet`, and `views.sql` for DuckDB."""
    from jobs.cli import output
    from plinth.operation import level_export, objectives
    from registry import service_levels

    state, until = settings.context(), _until(at)
    wanted = objectives.load(state.workspace)
    found = service_levels.tallies(state, wanted, until)
    files = level_export.export(found, wanted, until, directory)
    if as_json:
        output.emit_json({"until": until, "tallies": len(found), "files": [str(path) for path in files]})
    else:
        output.say(f"{len(found):,} tallies in {directory}; try: duckdb -init {directory}/views.sql -c 'from levels'")


def _until(at: datetime | None) -> float:
    return (at.replace(tzinfo=UTC) if at else datetime.now(UTC)).timestamp()
