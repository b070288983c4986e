"""Command `plinth ops cost`: spending by run, team, cause or bucket; cost limits; cost of the corpus.

Does not belong here: the ledger, reservations before a run and their settlement (`plinth.operation.spending`).
"""

from __future__ import annotations

import getpass
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plinth.operation.settlement import SpendRow
    from plinth.operation.spending import CorpusPrices
    from plinth.operation.spending_ledger import Ledger
    from plinth.storage.state import State

BY = ("run", "bucket", "team", "experiment", "person", "recipe")


@group(
    short_help="Show spending by run, team or cause; set limits.",
    epilog=examples(
        "plinth ops cost show --by team --this-month",
        "plinth ops cost limit team=web 5000 --per month",
        "plinth ops cost limits",
    ),
)
def cost() -> None:
    """Show spent and reserved cost, and set limits. Runs that could exceed a limit are not submitted."""


@cost.command(epilog=examples("plinth ops cost show", "plinth ops cost show --by bucket --json"))
@click.option("--by", type=click.Choice(BY), default="run", show_default=True, help="Grouping.")
@click.option("--this-month", is_flag=True, help="Only jobs submitted in this calendar month (UTC).")
@click.option("--everywhere", is_flag=True, help="Include all workspaces that are in the ledger.")
@shared
@json_option
def show(
    settings: Settings,
    by: Literal["run", "bucket", "team", "experiment", "person", "recipe"],
    this_month: bool,
    everywhere: bool,
    as_json: bool,
) -> None:
    """Settle the finished jobs of this workspace, and show spending by group."""
    from plinth.operation import settlement, spending
    from plinth.operation.settlement import summarise
    from plinth.operation.spending_ledger import month

    ctx, ledger, now = settings.context(), _ledger(settings), time.time()
    settlement.settle(ctx, ledger)
    since = month(now) if this_month else 0.0
    found = ledger.find("" if everywhere else spending.workspace_name(ctx.workspace), since=since)
    rows = summarise(ctx, spending.load(ctx.workspace), found, by)
    if as_json:
        output.emit_json({"by": by, "rows": rows, "limits": _limits(ledger, now)})
        return
    header = [by, "submitted", "refused", "reserved", "spent", "rank-hours", "per rank-hour"]
    table = [
        [
            row.name, f"{row.submissions:,}", f"{row.refused:,}" if row.refused else "", f"{row.reserved:,.2f}",
            f"{row.spent:,.2f}", f"{row.rank_hours:,.2f}", f"{row.price_per_rank_hour:,.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    output.table(header, table, right=header[1:])
    output.say(f"{sum(row.spent for row in rows):,.2f} spent, {sum(row.reserved for row in rows):,.2f} reserved.")
    if free := sum(row.rank_hours > 0 and not row.price_per_rank_hour for row in rows):
        output.say(f"{free} rows without a price: set `device` or `price_per_rank_hour` in budget/settings.yaml.")
    _show_uses(by, rows)


def _show_uses(by: str, rows: Sequence[SpendRow]) -> None:
    """Print the cost by cause and the device energy of runs in this workspace."""
    from plinth.operation.settlement import Energy

    spent = [row for row in rows if row.rank_hours]
    causes = list(dict.fromkeys(cause for row in spent for cause in row.causes))
    if causes:
        header = [by, *causes, "queue hours"]
        table = [
            [row.name, *(f"{row.causes.get(cause, 0.0):,.2f}" for cause in causes), f"{row.queue_hours:,.2f}"]
            for row in spent
        ]
        output.heading("Cost by cause")
        output.table(header, table, right=header[1:])
    if spent:
        output.heading("Device energy")
        table = [
            [
                row.name,
                "" if row.kwh is None else f"{row.kwh:,.3g}",
                "" if row.co2_kg is None else f"{row.co2_kg:,.3g}",
                Energy(row.kwh, row.measured).source,
            ]
            for row in spent
        ]
        output.table([by, "kWh", "kg of CO2", "source"], table, right=["kWh", "kg of CO2"])


@cost.command(epilog=examples("plinth ops cost corpus", "plinth ops cost corpus --json"))
@shared
@json_option
def corpus(settings: Settings, as_json: bool) -> None:
    """Show the corpus cost by bucket: storage per month, and requests and core-hours of the last computation."""
    from plinth.operation import spending

    ctx = settings.context()
    rows = corpus_costs(ctx, spending.load(ctx.workspace).prices)
    if as_json:
        output.emit_json(rows)
        return
    header = ["bucket", "stored", "per month", "reads", "writes", "request cost", "core-hours", "core cost"]
    table = [
        [
            "shared" if row.bucket == COMMON else row.bucket, output.size(row.stored_bytes),
            output.money(row.storage_month), f"{row.reads:,}", f"{row.writes:,}",
            output.money(row.requests), f"{row.core_hours:,.3g}", output.money(row.cores),
        ]
        for row in rows
    ]  # fmt: skip
    output.table(header, table, right=header[1:])
    output.say(output.CURRENCY)


@cost.command(epilog=examples("plinth ops cost limit all 20000", "plinth ops cost limit team=web 5000 --per month"))
@click.argument("whose")
@click.argument("amount", type=click.FloatRange(min=0), required=False)
@click.option("--per", type=click.Choice(["total", "month"]), default="total", show_default=True, help="Period.")
@click.option("--lift", is_flag=True, help="Remove the limit.")
@shared
@json_option
def limit(
    settings: Settings, whose: str, amount: float | None, per: Literal["total", "month"], lift: bool, as_json: bool
) -> None:
    """Limit the cost of runs. WHOSE is `all`, `team=NAME`, `experiment=NAME` or `workspace=PLACE`.

    The ledger records who set each limit and when. In PostgreSQL, grant the table `limits` to those who may set limits.
    """
    from plinth.operation.spending_ledger import MICROS, Limit

    scope, _, name = whose.partition("=")
    if scope not in ("all", "team", "experiment", "workspace") or bool(name) == (scope == "all"):
        raise click.UsageError(
            f"invalid scope {whose!r}; expected `all`, `team=NAME`, `experiment=NAME` or `workspace=PLACE`"
        )
    if (amount is None) != lift:
        raise click.UsageError("expected either an AMOUNT or --lift")
    micros = None if amount is None else round(amount * MICROS)
    ledger, now = _ledger(settings), time.time()
    ledger.limit(Limit(scope=scope, name=name, amount=micros, period=per, person=getpass.getuser(), made=now))
    _show_limits(ledger, now, as_json)


@cost.command(epilog=examples("plinth ops cost limits", "plinth ops cost limits --json"))
@shared
@json_option
def limits(settings: Settings, as_json: bool) -> None:
    """List the cost limits, each with its spent and reserved amount."""
    _show_limits(_ledger(settings), time.time(), as_json)


def _ledger(settings: Settings) -> Ledger:
    from plinth.operation import spending
    from plinth.operation.spending_ledger import Ledger

    workspace = settings.context().workspace
    return Ledger(spending.ledger_place(workspace, spending.load(workspace)))


def _limits(ledger: Ledger, now: float) -> list[dict[str, object]]:
    from plinth.operation.spending_ledger import MICROS

    return [
        {**one.model_dump(), "amount": (one.amount or 0) / MICROS, "counted": counted / MICROS, "words": one.text}
        for one, counted in ledger.limits(now)
    ]


def _show_limits(ledger: Ledger, now: float, as_json: bool) -> None:
    rows = _limits(ledger, now)
    if as_json:
        output.emit_json(rows)
        return
    if not rows:
        output.say("No limit is set. To set one: `plinth ops cost limit all 5000 --per month`.")
        return
    output.table(
        ["limit", "spent or reserved", "set by"],
        [[row["words"], f"{row['counted']:,.2f}", row["person"]] for row in rows],
        right=["spent or reserved"],
    )


# Cost of the corpus by bucket: storage of published assets; requests and core-hours of their last computation.
#
# A blob in several assets is charged once: to an asset of a bucket before a shared one, the first by key. Requests are
# the store files that tasks opened and wrote, as recorded (`plinth.compute.context`); assets without a record count
# only with their bytes.

#: Row of shared assets, which belong to no bucket.
COMMON = "-"


@dataclass(frozen=True, kw_only=True)
class CorpusRow:
    """Cost of the corpus text of one bucket, in the currency of the prices."""

    bucket: str
    stored_bytes: int
    reads: int
    writes: int
    core_hours: float
    storage_month: float
    requests: float
    cores: float


def corpus_costs(state: State, prices: CorpusPrices) -> list[CorpusRow]:
    """Return the cost of the corpus by bucket, highest storage cost first."""
    from plinth.compute import context
    from plinth.records import bucket_of

    refs = list(state.refs.all())
    buckets = {bucket_of(ref.asset) for ref in refs if ref.asset.endswith("/documents")}
    refs.sort(key=lambda ref: (bucket_of(ref.asset) not in buckets, ref.asset))
    stored, seen = defaultdict[str, int](int), set[str]()
    reads, writes, core_s = defaultdict[str, int](int), defaultdict[str, int](int), defaultdict[str, float](float)
    for ref in refs:
        bucket = bucket_of(ref.asset) if bucket_of(ref.asset) in buckets else COMMON
        for part in state.refs.load(ref.digest).parts:
            if part.blob.md5 not in seen:
                seen.add(part.blob.md5)
                stored[bucket] += part.blob.bytes
        cost = context.load(state.workspace, ref.asset)
        if cost is not None:
            reads[bucket] += cost.tasks.opened
            writes[bucket] += cost.tasks.written
            core_s[bucket] += cost.tasks.cpu_s + cost.driver_cpu_s
    rows = [
        CorpusRow(
            bucket=bucket,
            stored_bytes=stored[bucket],
            reads=reads[bucket],
            writes=writes[bucket],
            core_hours=core_s[bucket] / 3600,
            storage_month=stored[bucket] / 1e9 * prices.gigabyte_month,
            requests=prices.requests(reads[bucket], writes[bucket]),
            cores=core_s[bucket] / 3600 * prices.core_hour,
        )
        for bucket in {*stored, *core_s}
    ]
    return sorted(rows, key=lambda row: (-row.stored_bytes, row.bucket))
