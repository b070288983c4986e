"""`plinth cost`: the ledger of what runs may cost and have cost."""

from __future__ import annotations

import getpass
import time
from typing import TYPE_CHECKING, Literal

import click

from jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.operation.spending.ledger import Ledger

BY = ("run", "bucket", "team", "experiment", "person", "recipe")


@click.group(
    epilog=examples(
        "plinth cost show --by team --this-month",
        "plinth cost limit team=web 5000 --per month",
        "plinth cost limits",
    )
)
def cost() -> None:
    """Show what was spent and is reserved; set limits. Runs that could exceed a limit are not submitted."""


@cost.command(epilog=examples("plinth cost show", "plinth cost show --by bucket --json"))
@click.option("--by", type=click.Choice(BY), default="run", show_default=True, help="What to add up by.")
@click.option("--this-month", is_flag=True, help="Only what was submitted in this calendar month (UTC).")
@click.option("--everywhere", is_flag=True, help="Of all workspaces in the ledger, not of this one alone.")
@shared
@json_option
def show(
    settings: Settings,
    by: Literal["run", "bucket", "team", "experiment", "person", "recipe"],
    this_month: bool,
    everywhere: bool,
    as_json: bool,
) -> None:
    """Add up what was spent, after settling the jobs of this workspace that have ended."""
    from jobs.cli import output
    from plinth.operation.spending import settlement
    from plinth.operation.spending.admission import workspace_name
    from plinth.operation.spending.ledger import month
    from plinth.operation.spending.summary import summarise

    ctx, ledger, now = settings.context(), _ledger(settings), time.time()
    settlement.settle(ctx, ledger)
    since = month(now) if this_month else 0.0
    rows = summarise(ctx, ledger.find("" if everywhere else workspace_name(ctx), since=since), by)
    if as_json:
        output.emit_json({"by": by, "rows": rows, "limits": _limits(ledger, now)})
        return
    header = [by, "submitted", "refused", "reserved", "spent", "rank hours", "a rank hour"]
    table = [
        [
            row.name, f"{row.submissions:,}", f"{row.refused:,}" if row.refused else "", f"{row.reserved:,.2f}",
            f"{row.spent:,.2f}", f"{row.rank_hours:,.2f}", f"{row.price_per_rank_hour:,.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    output.table(header, table, right=header[1:])
    output.say(f"{sum(row.spent for row in rows):,.2f} spent, {sum(row.reserved for row in rows):,.2f} reserved.")


@cost.command(epilog=examples("plinth cost limit all 20000", "plinth cost limit team=web 5000 --per month"))
@click.argument("whose")
@click.argument("amount", type=click.FloatRange(min=0), required=False)
@click.option("--per", type=click.Choice(["total", "month"]), default="total", show_default=True, help="Period.")
@click.option("--lift", is_flag=True, help="No limit any more.")
@shared
@json_option
def limit(
    settings: Settings, whose: str, amount: float | None, per: Literal["total", "month"], lift: bool, as_json: bool
) -> None:
    """Limit what WHOSE runs may cost: `all`, `team=NAME`, `experiment=NAME` or `workspace=PLACE`.

    The ledger keeps who set which limit and when. In PostgreSQL, who may set one is a right of the table `limits`.
    """
    from plinth.operation.spending.ledger import MICROS, Limit

    scope, _, name = whose.partition("=")
    if scope not in ("all", "team", "experiment", "workspace") or bool(name) == (scope == "all"):
        raise click.UsageError(f"cannot limit {whose!r}: say all, team=NAME, experiment=NAME or workspace=PLACE")
    if (amount is None) != lift:
        raise click.UsageError("give an AMOUNT, or --lift")
    micros = None if amount is None else round(amount * MICROS)
    ledger, now = _ledger(settings), time.time()
    ledger.limit(Limit(scope=scope, name=name, amount=micros, period=per, person=getpass.getuser(), made=now))
    _show_limits(ledger, now, as_json)


@cost.command(epilog=examples("plinth cost limits", "plinth cost limits --json"))
@shared
@json_option
def limits(settings: Settings, as_json: bool) -> None:
    """List the limits, with what is spent or reserved of each."""
    _show_limits(_ledger(settings), time.time(), as_json)


def _ledger(settings: Settings) -> Ledger:
    from plinth.operation.spending import parameters
    from plinth.operation.spending.ledger import Ledger

    workspace = settings.context().workspace
    return Ledger(parameters.ledger_place(workspace, parameters.load(workspace)))


def _limits(ledger: Ledger, now: float) -> list[dict[str, object]]:
    from plinth.operation.spending.ledger import MICROS

    return [
        {**one.model_dump(), "amount": (one.amount or 0) / MICROS, "counted": counted / MICROS, "words": one.text}
        for one, counted in ledger.limits(now)
    ]


def _show_limits(ledger: Ledger, now: float, as_json: bool) -> None:
    from jobs.cli import output

    rows = _limits(ledger, now)
    if as_json:
        output.emit_json(rows)
        return
    output.table(
        ["limit", "spent or reserved", "set by"],
        [[row["words"], f"{row['counted']:,.2f}", row["person"]] for row in rows],
        right=["spent or reserved"],
    )
