"""Reservation of the maximum cost before a job is submitted or a corpus stage runs."""

from __future__ import annotations

import getpass
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from plinth import fingerprint
from plinth.compute.context import AssetCost, Context, load
from plinth.launch import devices
from plinth.launch.base import Handle
from plinth.launch.devices import Device
from plinth.operation import forecast, ranking, spending
from plinth.operation.forecast import work_of
from plinth.operation.settlement import held_s, job_cost
from plinth.operation.spending import STATED, CorpusPrices, Efficiency, PlannedDevice, of_table, this_machine
from plinth.operation.spending_ledger import CORPUS, MICROS, JobCost, Ledger, Reservation
from plinth.records import Manifest
from plinth.training import job
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.contract import LaunchContract
from plinth.training.supervise import result
from plinth.training.supervise.result import Allowance

# Jobs: settle the run's last job, then reserve the maximum cost of the new job, or refuse it.
#
#     submit ─► find its job ─► none alive ─► settle ─► bound ─► reserve ─► allowance ─► launcher
#                    └─► alive, or finished: nothing new is spent
#
# Without a limit no job is refused and no allowance is written, but every submission is recorded in the ledger.


def submit(ctx: Context, config: RunConfig) -> Handle:
    """Submit a job, or find its live job, if its cost stays within the limits of the ledger.

    Raises:
        BudgetError: the job could exceed a limit; nothing was submitted.
        RequestError: the settings of the budget are wrong.
        StorageError: the ledger cannot be reached.
        RecipeError, LaunchError: the job could not be submitted, as in `job.submit_or_find`.
        LineageError, SignatureError, MissingError: the launch contract of the run does not allow it; no job was
            stopped.
    """
    from plinth.operation import contracts  # drafts its budget with this module

    if job.pending(config):  # the live job would be stopped first
        contracts.require_amended(ctx, config)
    return job.submit_or_find(ctx, config, before=lambda: reserve(ctx, config, contracts.require(ctx, config))[1])


def reserve(ctx: Context, config: RunConfig, promised: LaunchContract | None = None) -> tuple[Reservation, int]:
    """Record a submission in the ledger, and write the job's allowance into the run's directory. Return the record, and
    the number of the allowance for the job's command, or 0: the file may be removed before the job starts.

    Args:
        promised: launch contract of the run, whose budget limits the allowance.

    Raises:
        BudgetError: the job could exceed a limit.
    """
    settings = spending.load(ctx.workspace)
    ledger = Ledger(spending.ledger_place(ctx.workspace, settings))
    price = settings.price(config.stopping.price_per_rank_hour)
    place, now = spending.workspace_name(ctx.workspace), time.time()
    most, reason = expected_cost_of_run(ctx, config)
    if not price:
        most, reason = None, "no price: neither budget/settings.yaml nor the recipe sets a price"
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
    grants = [] if promised is None else [promised.budget.rank_hours * 3600]
    if limited and granted.reserved is not None:
        grants.append(granted.before_s + granted.reserved / granted.price * 3600)
    grant = Allowance(rank_s=min(grants), price_per_rank_hour=granted.price / MICROS) if grants else None
    return granted, result.write_allowance(config.directory, grant)


def expected_cost_of_run(ctx: Context, config: RunConfig) -> Bound:
    """Return the maximum cost of the rest of a run, in rank-seconds. The planner's forecast of a step is stored before
    the first job."""
    settings = spending.load(ctx.workspace)
    on = _planned_on(ctx, config, settings)
    reached = STATED if on is None else forecast.efficiency(forecast.known(ctx.workspace)[0], on, work_of(config))
    if on is not None:
        forecast.keep(config, forecast.predict(config, on, reached))
    like = Ledger(spending.ledger_place(ctx.workspace, settings)).find(work=work(config))
    return bound(config, settings.rated, settings.margin, settings.start_s, like, reached)


def _planned_on(ctx: Context, config: RunConfig, settings: spending.Spending) -> PlannedDevice | None:
    """Return the device that the settings name. If they name none, return this machine's device, provided the ranks
    start here."""
    if settings.device:
        return of_table(settings.device, devices.read(settings.device_table))
    if config.launch.kind != "local":
        return None
    precision = "fp32" if config.precision == "auto" else config.precision
    return this_machine(ctx.workspace, precision, config.ranks)


# Upper bound for the rest of a run, in rank-seconds. It is the minimum of these bounds:
#
# table of devices   the run's division at the planner's lowest efficiency, plus a margin
# like runs          maximum cost per token of runs in the ledger with the same work and ranks, plus a margin
# own rules          `stopping.seconds`, or `stopping.money` at the recipe's price, plus a margin

#: Minimum share of a run's tokens that another run must have trained to be compared, because start-up dominates short
#: runs.
LEAST = 0.1


class Bound(NamedTuple):
    """Upper bound in rank-seconds, with its source. The bound is None if nothing bounds the run."""

    rank_s: float | None
    reason: str


def work(config: RunConfig) -> str:
    """Return a digest of everything that determines the cost per token: model, rows, batch, parallel layout, ranks,
    launcher."""
    launch = config.launch.model_dump(include={"kind", "ranks", "nodes"})
    names = {"model", "vocab_size", "precision", "parallel", "sequence_tokens", "micro_batch_sequences"}
    names |= {"global_batch_sequences", "optimizer"}
    return fingerprint.digest({"launch": launch, **config.model_dump(mode="json", include=names)})[:16]


def bound(
    config: RunConfig,
    device: Device | None,
    margin: float,
    start_s: float,
    known: Sequence[Reservation],
    efficiency: Efficiency = STATED,
) -> Bound:
    """Return the lowest known bound for the steps after the last commit; start and exit times are included.

    Args:
        device: device of a rank, if the settings name one.
        margin: share added to predictions.
        start_s: seconds until ranks train.
        known: submissions in the ledger with the same work.
        efficiency: efficiency of the device; its lower end is used.
    """
    found = list(_bounds(config, device, 1 + margin, known, efficiency))
    if not found:
        return Bound(None, "no device is set in budget/settings.yaml, no similar run is in the ledger, and "
                 "training.stopping limits neither time nor money")  # fmt: skip
    least, reason = min(found)
    return Bound(least + (start_s + config.supervision.grace_s) * config.ranks, reason)


def _bounds(
    config: RunConfig, device: Device | None, factor: float, known: Sequence[Reservation], efficiency: Efficiency
) -> Iterator[tuple[float, str]]:
    done = max(checkpoint.committed(config.directory), default=0)
    total, behind = config.tokens_through(config.total_steps), config.tokens_through(done)
    if like := _a_token(known, total * LEAST):
        yield like * (total - behind) * factor, "similar runs in the ledger"
    elif device is not None:
        seconds = step_s(config, device, efficiency.low) * (config.total_steps - done + config.checkpoints.audit_steps)
        source = "" if efficiency == STATED else f", lowest of {efficiency.source}"
        yield seconds * config.ranks * factor, f"the planner, at {efficiency.low:.0%} of the device's peak{source}"
    rules = config.stopping
    if rules.seconds is not None:
        yield rules.seconds * config.ranks * factor, "training.stopping.seconds"
    if rules.money is not None:
        yield rules.money / rules.price_per_rank_hour * 3600 * factor, "training.stopping.money"


def step_s(config: RunConfig, device: Device, efficiency: float = STATED.low) -> float:
    """Return the predicted seconds per step for the run's parallel layout on a device."""
    micro, ranks = config.micro_batch_sequences, config.ranks
    return ranking.of_block(work_of(config), config.parallel, micro, ranks, device, efficiency).step_s


def _a_token(known: Sequence[Reservation], least: float) -> float:
    """Return the highest rank-seconds per token among past runs with at least `least` tokens; 0 if there are none."""
    taken, tokens = dict[tuple[str, str], float](), dict[tuple[str, str], int]()
    for one in known:
        if one.rank_s is not None:
            key = one.workspace, one.run
            taken[key] = taken.get(key, 0.0) + one.rank_s
            tokens[key] = max(tokens.get(key, 0), one.tokens or 0)
    return max((taken[key] / count for key, count in tokens.items() if count >= least), default=0.0)


# Corpus stages: reserve the expected cost of cores and requests, or refuse the stage; settle the cost afterward.
#
#     bound = cost per item of the last materialization, for all items, scaled by input bytes, plus a margin
#
# The first materialization of an asset has no bound. It reserves the smallest amount, so it is refused only if a limit
# is already spent; afterward its actual cost counts. A stage whose process died stays open at its bound until the next
# materialization. Workspaces without budget settings and limits keep no account.

#: Reservation of a materialization without a bound, in millionths.
UNBOUNDED = 1


def input_bytes(inputs: Iterable[Manifest]) -> int:
    """Return the total bytes of all parts of the inputs."""
    return sum(part.blob.bytes for manifest in inputs for part in manifest.parts)


def reserve_stage(ctx: Context, asset: str, inputs_bytes: int, max_price: float | None = None) -> Reservation | None:
    """Reserve the cost of materializing an asset in the ledger.

    Return None if the workspace has neither budget settings nor limits. `max_price` is a bound that the stage itself
    enforces, if there is one.

    Raises:
        BudgetError: the cost could exceed a limit.
        RequestError: the settings of the budget are wrong.
        StorageError: the ledger cannot be reached.
    """
    settings = spending.load(ctx.workspace)
    place, now = spending.ledger_place(ctx.workspace, settings), time.time()
    stated = spending.settings_file(ctx.workspace).exists()
    if not stated and not Path(place).exists():
        return None
    ledger = Ledger(place)
    if not stated and not ledger.limits(now):
        return None
    most = stage_bound(load(ctx.workspace, asset), inputs_bytes, settings.prices, settings.margin)
    reason = "no earlier materialization" if most is None else "the last materialization"
    if max_price is not None:
        most, reason = max_price, "the budget of its endpoint"
    share = "" if ctx.share is None else f" {ctx.share}"
    wanted = Reservation(
        id=uuid.uuid4().hex,
        workspace=spending.workspace_name(ctx.workspace),
        run=f"{CORPUS}{asset}{share}",
        recipe="",
        team=settings.team,
        experiment=ctx.workspace.experiment,
        person=ctx.requested_by or getpass.getuser(),
        ranks=1,
        price=round(settings.prices.core_hour * MICROS),
        spot=False,
        reserved=UNBOUNDED if most is None else max(UNBOUNDED, round(most * MICROS)),
        reason=reason,
        work="",
        before_s=0.0,
        made=now,
    )
    return ledger.reserve(wanted)


def settle_stage(ctx: Context, held: Reservation | None, cost: AssetCost) -> None:
    """Replace the reserved bound of a materialization with its actual cost, even if the materialization did not
    complete."""
    if held is not None:
        settings = spending.load(ctx.workspace)
        spent = JobCost(spent=round(stage_price(cost, settings.prices) * MICROS), rank_s=0.0, tokens=0)
        Ledger(spending.ledger_place(ctx.workspace, settings)).settle(held.id, spent, time.time())


def stage_price(cost: AssetCost, prices: CorpusPrices) -> float:
    """Return the price of the cores, requests and language model tokens of one materialization."""
    own = cost.tasks
    hours = (own.cpu_s + cost.driver_cpu_s) / 3600
    return hours * prices.core_hour + prices.requests(own.opened, own.written) + own.endpoint_price


def stage_bound(last: AssetCost | None, inputs_bytes: int, prices: CorpusPrices, margin: float) -> float | None:
    """Return the maximum cost of a materialization without cached results.

    The bound is the cost of the last materialization, scaled to all items and to the inputs' size, plus the margin.
    Return None if the last materialization is unknown or did no work.
    """
    factor = _growth(last, inputs_bytes)
    return None if last is None or factor is None else stage_price(last, prices) * factor * (1 + margin)


def expected_cost(last: AssetCost | None, inputs_bytes: int, prices: CorpusPrices) -> tuple[float, float] | None:
    """Return the CPU hours and the price of the next materialization: those of the last one, for all items, scaled to
    the size of the inputs. Return None if the last materialization is unknown or did no work."""
    factor = _growth(last, inputs_bytes)
    if last is None or factor is None:
        return None
    return (last.tasks.cpu_s + last.driver_cpu_s) / 3600 * factor, stage_price(last, prices) * factor


def _growth(last: AssetCost | None, inputs_bytes: int) -> float | None:
    """Return the work of a materialization without cached results, relative to the last materialization."""
    if last is None or (last.tasks.spared and not last.tasks.tasks):
        return None
    whole = 1 + last.tasks.spared / max(1, last.tasks.tasks)
    return whole * (inputs_bytes / last.input_bytes if inputs_bytes and last.input_bytes else 1.0)
