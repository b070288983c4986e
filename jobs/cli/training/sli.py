"""`plinth sli`: service-level indicators of all runs, and their error budgets."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from jobs.cli.options import Settings, examples, json_option, shared


@click.command(epilog=examples("plinth sli", "plinth sli --gate", "plinth sli --at 2026-03-01 --json"))
@click.option("--gate", is_flag=True, help="Fail (exit code 6) where an error budget is spent.")
@click.option("--at", type=click.DateTime(), help="UTC; as things stood then.", show_default="now")
@shared
@json_option
def sli(settings: Settings, gate: bool, at: datetime | None, as_json: bool) -> None:
    """Show service-level indicators: good rank-seconds of all, and how much of each error budget is spent.

    From the timelines of all runs of the workspace; objectives are in its `objectives.yaml`.
    """
    from jobs.cli import output
    from plinth.operation import indicators, objectives

    ctx = settings.context()
    until = (at.replace(tzinfo=UTC) if at else datetime.now(UTC)).timestamp()
    wanted = objectives.load(ctx.workspace)
    found = objectives.measure(ctx, wanted, until)
    if as_json:
        rows = [{**one.model_dump(), "value": one.value, "spent": one.spent} for one in found]
        output.emit_json({"until": until, "objectives": wanted, "indicators": rows})
    else:
        for one in found:
            if one.value is None or one.spent is None:
                output.line(f"{one.indicator:<16}nothing measured")
                continue
            output.line(
                f"{one.indicator:<16}{one.value:>8.2%} of {one.total_s:,.1f} rank-s;"
                f" objective {one.target:.2%}, budget spent {one.spent:.0%}"
            )
    if gate:
        indicators.refuse_spent(found)
