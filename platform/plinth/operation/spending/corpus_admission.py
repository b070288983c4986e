"""Before a stage of the corpus is made: reserve what it may cost in cores and requests, or refuse; settle what it did.

    bound = what the last making cost an item, for all items, by the bytes of the inputs then and now, and a margin

The first making of an asset has no bound: it is entered with the smallest amount, so that it is refused where a limit
is spent already, and counts with what it cost once it is made. A stage whose process died stays open at its bound until
it is made again. Workspaces without settings of a budget and without limits keep no account.
"""

from __future__ import annotations

import getpass
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from plinth.compute.context import AssetCost, Context, load
from plinth.operation.planning.prices import CorpusPrices
from plinth.operation.spending import parameters
from plinth.operation.spending.ledger import CORPUS, MICROS, JobCost, Ledger, Reservation
from plinth.records import Manifest

#: Millionths that a making without a bound reserves.
UNBOUNDED = 1


def input_bytes(inputs: Iterable[Manifest]) -> int:
    """Of all parts."""
    return sum(part.blob.bytes for manifest in inputs for part in manifest.parts)


def reserve_stage(ctx: Context, asset: str, inputs_bytes: int) -> Reservation | None:
    """Enter the making of an asset; None where no account is kept.

    Raises:
        BudgetError: it could exceed a limit.
        RequestError: the settings of the budget are wrong.
        StorageError: the ledger cannot be reached.
    """
    settings = parameters.load(ctx.workspace)
    place, now = parameters.ledger_place(ctx.workspace, settings), time.time()
    stated = parameters.settings_file(ctx.workspace).exists()
    if not stated and not Path(place).exists():
        return None
    ledger = Ledger(place)
    if not stated and not ledger.limits(now):
        return None
    most = stage_bound(load(ctx.workspace, asset), inputs_bytes, settings.prices, settings.margin)
    share = "" if ctx.share is None else f" {ctx.share}"
    wanted = Reservation(
        id=uuid.uuid4().hex,
        workspace=parameters.workspace_name(ctx.workspace),
        run=f"{CORPUS}{asset}{share}",
        recipe="",
        team=settings.team,
        experiment=ctx.workspace.experiment,
        person=ctx.requested_by or getpass.getuser(),
        ranks=1,
        price=round(settings.prices.core_hour * MICROS),
        spot=False,
        reserved=UNBOUNDED if most is None else max(UNBOUNDED, round(most * MICROS)),
        reason="no earlier making of it" if most is None else "its last making",
        work="",
        before_s=0.0,
        made=now,
    )
    return ledger.reserve(wanted)


def settle_stage(ctx: Context, held: Reservation | None, cost: AssetCost) -> None:
    """Put what a making cost, whole or not, in the place of its bound."""
    if held is not None:
        settings = parameters.load(ctx.workspace)
        spent = JobCost(spent=round(stage_price(cost, settings.prices) * MICROS), rank_s=0.0, tokens=0)
        Ledger(parameters.ledger_place(ctx.workspace, settings)).settle(held.id, spent, time.time())


def stage_price(cost: AssetCost, prices: CorpusPrices) -> float:
    """Cores and requests of one making."""
    hours = (cost.tasks.cpu_s + cost.driver_cpu_s) / 3600
    return hours * prices.core_hour + prices.requests(cost.tasks.opened, cost.tasks.written)


def stage_bound(last: AssetCost | None, inputs_bytes: int, prices: CorpusPrices, margin: float) -> float | None:
    """The most that a making may cost: as if no item were done; None where the last making says nothing."""
    if last is None or (last.tasks.spared and not last.tasks.tasks):
        return None
    whole = 1 + last.tasks.spared / max(1, last.tasks.tasks)
    larger = inputs_bytes / last.input_bytes if inputs_bytes and last.input_bytes else 1.0
    return stage_price(last, prices) * whole * larger * (1 + margin)
