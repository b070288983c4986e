"""Before a job is submitted: settle the run's last one, reserve the most that this one may cost, or refuse.

    submit ─► find its job ─► none alive ─► settle ─► bound ─► reserve ─► allowance ─► launcher
                   └─► alive, or finished: nothing new is spent

Without a limit nothing is refused and nothing granted, but every submission stands in the ledger.
"""

from __future__ import annotations

import getpass
import time
import uuid

from plinth.compute.context import Context
from plinth.launch import devices
from plinth.launch.base import Handle
from plinth.operation.planning import forecast, machine, recorded
from plinth.operation.planning.efficiency import STATED
from plinth.operation.planning.forecast import work_of
from plinth.operation.spending import parameters
from plinth.operation.spending.bounds import bound, work
from plinth.operation.spending.ledger import MICROS, Ledger, Reservation
from plinth.operation.spending.settlement import held_s, job_cost
from plinth.training import job
from plinth.training.config import RunConfig
from plinth.training.supervise import allowance
from plinth.training.supervise.allowance import Allowance


def submit(ctx: Context, config: RunConfig) -> Handle:
    """`job.submit_or_find`, within the limits of the ledger.

    Raises:
        BudgetError: it could exceed a limit; nothing was submitted.
        RequestError: the settings of the budget are wrong.
        StorageError: the ledger cannot be reached.
        RecipeError, LaunchError: as `job.submit_or_find`.
    """
    return job.submit_or_find(ctx, config, before=lambda: reserve(ctx, config))


def reserve(ctx: Context, config: RunConfig) -> Reservation:
    """Enter a submission, and write what its job may take into the run's directory.

    Raises:
        BudgetError: it could exceed a limit.
    """
    settings = parameters.load(ctx.workspace)
    ledger = Ledger(parameters.ledger_place(ctx.workspace, settings))
    price = settings.price(config.stopping.price_per_rank_hour)
    place, now = parameters.workspace_name(ctx.workspace), time.time()
    on = _planned_on(ctx, config, settings)
    reached = STATED if on is None else recorded.efficiency(recorded.known(ctx.workspace)[0], on, work_of(config))
    if on is not None:
        forecast.keep(config, forecast.foretell(config, on, reached))
    most, reason = bound(
        config, settings.rated, settings.margin, settings.start_s, ledger.find(work=work(config)), reached
    )
    if not price:
        most, reason = None, "no price: neither budget/settings.yaml nor the recipe states one"
    mine = [one for one in ledger.find(place, open_only=True) if one.run == config.run_id]
    wanted = Reservation(
        id=uuid.uuid4().hex,
        workspace=place,
        run=config.run_id,
        recipe=config.recipe,
        team=settings.team,
        experiment=ctx.workspace.experiment,
        person=ctx.requested_by or getpass.getuser(),
        ranks=config.ranks,
        price=round(price * MICROS),
        spot=settings.spot,
        reserved=None if most is None else round(most * price / 3600 * MICROS),
        reason=reason,
        work=work(config),
        before_s=held_s(config),
        made=now,
    )
    granted = ledger.reserve(wanted, job_cost(config, mine[0]) if mine else None)
    limited = any(limit.covers(granted) for limit, _ in ledger.limits(now))
    grant = None
    if limited and granted.reserved is not None:
        grant = Allowance(
            rank_s=granted.before_s + granted.reserved / granted.price * 3600,
            price_per_rank_hour=granted.price / MICROS,
        )
    allowance.write(config.directory.allowance, grant)
    return granted


def _planned_on(ctx: Context, config: RunConfig, settings: parameters.Spending) -> machine.PlannedDevice | None:
    """The device of the settings; without one, that of this machine, where the ranks are started here."""
    if settings.device:
        return machine.of_table(settings.device, devices.read(settings.device_table))
    if config.launch.kind != "local":
        return None
    precision = "fp32" if config.precision == "auto" else config.precision
    return machine.this_machine(ctx.workspace, precision, config.ranks)
