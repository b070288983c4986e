"""Costs of jobs, computed from their timelines: by run, bucket, team and person, with goodput and energy."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from plinth.compute.context import Context
from plinth.errors import LaunchError, MissingError, PlinthError
from plinth.launch.base import JobStatus
from plinth.model.architectures import flops_exact
from plinth.operation import spending
from plinth.operation.spending import Spending, ledger_place, load, workspace_name
from plinth.operation.spending_ledger import CORPUS, MICROS, JobCost, Ledger, Reservation
from plinth.records import Frozen, bucket_of
from plinth.tokens.mixture.apportion import shares_over_run
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.run_state import launcher_of
from plinth.training.telemetry.devices import read_samples
from plinth.training.telemetry.goodput import Cause, GoodputLedger
from plinth.training.telemetry.goodput_account import account
from plinth.training.telemetry.timeline import JOB_ENDS, read_events

# Cost of a job: the rank-seconds on its timeline times its price at admission.
#
# A job is charged from the start of its supervisor until its end, including start-up, waits and repeated work. A job
# that was killed is charged until its last event. Time in a scheduler's queue is free.

#: Seconds before a submission without a job is closed, because its scheduler may still be processing it.
SUBMITTING_S = 600.0


def held_s(config: RunConfig) -> float:
    """Return the rank-seconds that the jobs of a run have taken."""
    return account(read_events(config.directory.events), config.ranks).held_rank_s


def job_cost(config: RunConfig, one: Reservation) -> JobCost:
    """Return the cost of a submission's job so far."""
    taken, tokens = max(0.0, held_s(config) - one.before_s), 0
    for event in read_events(config.directory.events):
        if event["event"] == "step":
            tokens = max(tokens, int(event["tokens"]))
    return JobCost(spent=round(taken / 3600 * one.price), rank_s=taken, tokens=tokens)


def settle(ctx: Context, ledger: Ledger | None = None) -> list[Reservation]:
    """Settle all submissions of this workspace whose jobs have ended; return the submissions that are still open.

    Raises:
        StorageError: the ledger cannot be reached.
    """
    ledger = ledger or Ledger(spending.ledger_place(ctx.workspace, spending.load(ctx.workspace)))
    still = []
    for one in (one for place in ctx.workspace.places for one in ledger.find(place, open_only=True)):
        cost = None
        # the run's folder was deleted, or its job is known only to another machine, so its bound stays reserved
        with suppress(MissingError, LaunchError):
            config = configuration.load(ctx.workspace.runs / one.run / "config.json")
            if _ended(config, one):
                cost = job_cost(config, one)
        if cost is None:
            still.append(one)
        else:
            ledger.settle(one.id, cost, time.time())
    return still


def _ended(config: RunConfig, one: Reservation) -> bool:
    """Return True if the job of a submission has ended, so that its cost is final."""
    launcher = launcher_of(config)
    handle = launcher.find(config.directory.root)
    if handle is not None and launcher.poll(handle).alive:
        return False
    ends = [event for event in read_events(config.directory.events) if event["event"] in JOB_ENDS]
    return time.time() - one.made > SUBMITTING_S or any(float(end["time"]) >= one.made for end in ends)


#: Keys of summaries of spending.
By = Literal["run", "bucket", "team", "experiment", "person", "recipe"]

#: Label of rows without a known team, experiment or bucket.
UNKNOWN = "-"


class SpendRow(Frozen):
    """One row of a cost summary, for one run, bucket, team or other name. Money is in the currency of the prices."""

    name: str
    submissions: int
    refused: int
    reserved: float  # bounds of open submissions
    spent: float
    rank_hours: float
    price_per_rank_hour: float  # mean price of spent rank-hours
    causes: Mapping[str, float]  # spending by cause, for runs of this workspace
    queue_hours: float  # free rank-hours in a queue
    kwh: float | None  # energy of devices; None if unknown for any run
    measured: float  # share of device time with sampled power; the rest is at rated power
    co2_kg: float | None


def summarise(ctx: Context, settings: Spending, rows: Sequence[Reservation], by: By) -> list[SpendRow]:
    """Sum up costs by name, highest first. A run's causes and energy are divided between its submissions by
    rank-seconds."""
    known = {run: found for run in {one.run for one in rows} if (found := use(ctx, settings, run))}
    intensity = settings.grams_co2_per_kwh
    if by == "bucket":
        return _added(_by_bucket(ctx, rows), known, intensity)
    return _added(((getattr(one, by) or UNKNOWN, 1.0, one) for one in rows), known, intensity)


def run_spend(ctx: Context, run: str) -> SpendRow | None:
    """Return the costs of a run of this workspace, or None if it was never submitted.

    Raises:
        StorageError: the ledger cannot be reached.
    """
    settings = load(ctx.workspace)
    rows = Ledger(ledger_place(ctx.workspace, settings)).find(workspace_name(ctx.workspace))
    return next(iter(summarise(ctx, settings, [one for one in rows if one.run == run], "run")), None)


def _added(
    shares: Iterable[tuple[str, float, Reservation]], known: Mapping[str, RunUse], intensity: float | None
) -> list[SpendRow]:
    groups: dict[str, list[tuple[float, Reservation]]] = defaultdict(list)
    for name, share, one in shares:
        groups[name].append((share, one))
    found = []
    for name, parts in groups.items():
        spent = sum(share * (one.spent or 0) for share, one in parts) / MICROS
        of_ranks = sum(share * (one.spent or 0) for share, one in parts if one.rank_s) / MICROS
        hours = sum(share * (one.rank_s or 0.0) for share, one in parts) / 3600
        refused = sum(one.refused for _, one in parts)
        causes, queue_s, energy = _used(parts, known)
        found.append(
            SpendRow(
                name=name,
                submissions=len(parts) - refused,
                refused=refused,
                reserved=sum(share * (one.reserved or 0) for share, one in parts if one.ended is None) / MICROS,
                spent=spent,
                rank_hours=hours,
                price_per_rank_hour=of_ranks / hours if hours else 0.0,
                causes=causes,
                queue_hours=queue_s / 3600,
                kwh=energy.kwh,
                measured=energy.measured,
                co2_kg=energy.kilograms(intensity),
            )
        )
    return sorted(found, key=lambda row: (-row.spent, -row.reserved, row.name))


def _used(
    parts: Sequence[tuple[float, Reservation]], known: Mapping[str, RunUse]
) -> tuple[dict[str, float], float, Energy]:
    """Return the money by cause, the rank-seconds in queues, and the energy of submissions. A submission gets its share
    of its run's values."""
    causes, queue_s, kwh, measured_s, held_s = defaultdict[str, float](float), 0.0, 0.0, 0.0, 0.0
    unknown = False
    for share, one in parts:
        taken, found = share * (one.rank_s or 0.0), known.get(one.run)
        held_s += taken
        if found is None or not found.held_s:
            unknown = unknown or taken > 0
            continue
        of_run = taken / found.held_s
        for cause, part in found.shares.items():
            causes[cause] += share * part * (one.spent or 0) / MICROS
        queue_s += of_run * found.queue_s
        unknown = unknown or (taken > 0 and found.energy.kwh is None)
        kwh += of_run * (found.energy.kwh or 0.0)
        measured_s += taken * found.energy.measured
    energy = Energy(None if unknown else kwh, measured_s / held_s if held_s else 0.0)
    return {cause: money for cause, money in causes.items() if money}, queue_s, energy


def _by_bucket(ctx: Context, rows: Sequence[Reservation]) -> Iterable[tuple[str, float, Reservation]]:
    """Yield bucket, share and submission. The share is that of the bucket in the run's tokens when the submission was
    settled. A corpus stage counts fully for the bucket of its asset."""
    mixtures = {run: _mixture(ctx, run) for run in {one.run for one in rows if not one.run.startswith(CORPUS)}}
    buckets = {bucket_of(ref.asset) for ref in ctx.refs.all() if ref.asset.endswith("/documents")}
    for one in rows:
        if one.run.startswith(CORPUS):
            bucket = bucket_of(one.run.removeprefix(CORPUS))
            yield bucket if bucket in buckets else UNKNOWN, 1.0, one
            continue
        known = mixtures[one.run]
        found = bucket_shares(*known, one.tokens or 0) if known else {UNKNOWN: 1.0}
        yield from ((bucket, share, one) for bucket, share in found.items())


def _mixture(ctx: Context, run: str) -> tuple[Mapping[str, Any], int] | None:
    """Return the statistics of a run's mixture and the tokens per sequence, or None if the run is not in this
    workspace."""
    try:
        config = configuration.load(ctx.workspace.runs / run / "config.json")
        return ctx.refs.load(config.mixture).stats, config.sequence_tokens
    except PlinthError:
        return None


def bucket_shares(stats: Mapping[str, Any], sequence_tokens: int, tokens: int) -> dict[str, float]:
    """Return each bucket's share of the first `tokens` tokens of a mixture, or of the whole mixture if `tokens` is
    0."""
    end = -(-tokens // sequence_tokens) or stats["sequences"]
    found: dict[str, float] = defaultdict(float)
    for row in shares_over_run(stats):
        seen = max(0, min(row["stop"], end) - row["first"])
        for stream, share in row["realised"].items():
            found[bucket_of(stream)] += seen * share
    total = sum(found.values())
    return {bucket: seen / total for bucket, seen in found.items() if seen}


class Energy(NamedTuple):
    """Energy of the devices, with the site's overhead.

    Args:
        kwh: energy from measured and rated power together; None if neither is known for some of the time.
        measured: share of the device-seconds whose power was sampled.
    """

    kwh: float | None
    measured: float

    @property
    def source(self) -> str:
        """Source of the energy value, as text."""
        if self.kwh is None:
            return "unknown: no power samples, and no device is set"
        shares = {"measured": self.measured, "at rated power": 1 - self.measured}
        return ", ".join(f"{share:.0%} {how}" for how, share in shares.items() if share >= 0.005)

    def kilograms(self, grams_co2_per_kwh: float | None) -> float | None:
        """Return kilograms of CO2, if the carbon intensity of the grid is set."""
        known = self.kwh is not None and grams_co2_per_kwh is not None
        return self.kwh * grams_co2_per_kwh / 1000 if known else None  # type: ignore[operator]


class RunUse(NamedTuple):
    """Use of resources by one run.

    Args:
        shares: shares of the rank-seconds by cause of the goodput ledger; they add up to 1.
        held_s: rank-seconds.
        job_s: wall-clock seconds in which its jobs had ranks.
        queue_s: rank-seconds of its jobs in a queue, which are free.
    """

    shares: Mapping[Cause, float]
    held_s: float
    job_s: float
    queue_s: float
    energy: Energy


def use(ctx: Context, settings: Spending, run: str) -> RunUse | None:
    """Return the resource use of a run, or None if the run was not in this workspace or its folder no longer exists.

    Raises:
        RequestError: the table has no device with the name in the settings.
    """
    rated = settings.rated
    try:
        config = configuration.load(ctx.workspace.runs / run / "config.json")
        events = list(read_events(config.directory.events))
        ledger = account(events, config.ranks)
    except PlinthError:
        return None
    held, spent = ledger.held_rank_s, ledger.rank_s
    queued = spent.pop("queue")
    watts, overhead = rated.watts if rated is not None else None, settings.power_usage_effectiveness
    ranks = max(config.ranks, *(int(event["ranks"]) for event in events if event["event"] == "job_started"), 0)
    samples = of_own_devices(read_samples(config.directory), ranks)
    used = energy(samples, held, config.telemetry.devices_s, watts, overhead)
    shares = {cause: seconds / held for cause, seconds in spent.items() if seconds}
    return RunUse(shares, held, ledger.held_s, queued, used)


def amounts(ctx: Context, config: RunConfig) -> dict[str, float]:
    """Return the amounts that a run used, by name, for the trainer's signed cost attestation.

    `flops` counts all steps in the timeline. `device_s` has the rank-seconds and `job_s` the wall-clock seconds in
    which the jobs had ranks. `kwh` is the energy of the devices with the site's overhead, and `kwh_measured` the share
    of device-seconds whose power was sampled, and `pue` the site's power usage effectiveness in `kwh`; all three are
    absent if the energy is unknown.

    Raises:
        RequestError: the table has no device with the name in the budget settings.
    """
    found = {"flops": float(executed_flops(config, read_events(config.directory.events)))}
    settings = load(ctx.workspace)
    used = use(ctx, settings, config.run_id)
    if used is not None:
        found |= {"device_s": round(used.held_s, 3), "job_s": round(used.job_s, 3)}
        if used.energy.kwh is not None:
            found |= {"kwh": used.energy.kwh, "kwh_measured": used.energy.measured}
            found["pue"] = settings.power_usage_effectiveness
    return found


def executed_flops(config: RunConfig, events: Iterable[Mapping[str, Any]]) -> int:
    """Return the training FLOPs of the steps in a timeline by PaLM's formula (`flops_exact`). Steps that were repeated,
    discarded or vetoed also count."""
    steps = config.steps
    per_token = {one.length: flops_exact(config.model, config.vocab_size, one.length) for one in steps.stretches}
    done = (int(event["step"]) - 1 for event in events if event["event"] == "step")
    return sum(steps.tokens(step) * per_token[steps.length(step)] for step in done)


def run_goodput(config: RunConfig, until: float | None = None) -> GoodputLedger:
    """Return rank-seconds of a run by cause and by attempt, from its current timeline; for costs, SLIs and alerts.

    Args:
        until: time up to which a queued job has waited, in Unix seconds. If None, it is the current time, provided that
            the scheduler confirms the job.

    Raises:
        IntegrityError: the timeline is broken.
        LaunchError: a scheduler cannot be reached.
    """
    events = list(read_events(config.directory.events))
    if until is None and events and events[-1]["event"] == "submitted":
        launcher = launcher_of(config)
        handle = launcher.find(config.directory.root)
        if handle is not None and launcher.poll(handle) is JobStatus.PENDING:
            until = time.time()
    return account(events, config.ranks, until)


# Energy and carbon of a run's devices: measured if power was sampled, otherwise at rated power.
#
# Power is interpolated linearly between two samples of a device. Other seconds count at the rated power of the device
# in the settings. Only devices count, multiplied by the site's power usage effectiveness. Hosts, network and storage
# are not included.

#: Maximum distance between two samples, in sampling intervals. A longer distance is a gap.
GAP = 3.0

_JOULES_PER_KWH = 3.6e6


def of_own_devices(samples: Sequence[Mapping[str, Any]], ranks: int) -> Sequence[Mapping[str, Any]]:
    """Return the samples, or none if more devices were sampled than the run had ranks. On a shared node, the other
    devices would add the energy of other jobs, and hide that the run's own devices were not sampled all the time."""
    most: dict[int, int] = defaultdict(int)
    for event in samples:
        known = sum(gpu.get("power_w") is not None for gpu in event["gpus"])
        most[int(event["node"])] = max(most[int(event["node"])], known)
    return samples if sum(most.values()) <= ranks else ()


def energy(
    samples: Iterable[Mapping[str, Any]], rank_s: float, every_s: float, watts: float | None, overhead: float
) -> Energy:
    """Return the energy of a run.

    Args:
        samples: samples of its devices, in order of time (`training.telemetry.devices`).
        rank_s: rank-seconds of the run; each rank has one device.
        every_s: interval between two samples.
        watts: rated power of a device.
        overhead: power usage effectiveness of the site.
    """
    joules, covered = sampled(samples, GAP * every_s)
    covered = min(covered, rank_s)
    rest = rank_s - covered
    measured = covered / rank_s if rank_s else 0.0
    if watts is None and rest > 0.005 * rank_s:
        return Energy(None, measured)
    return Energy((joules + rest * (watts or 0.0)) * overhead / _JOULES_PER_KWH, measured)


def sampled(samples: Iterable[Mapping[str, Any]], gap_s: float) -> tuple[float, float]:
    """Return joules between samples of the same device at most `gap_s` apart, and the device-seconds that they
    cover."""
    last: dict[tuple[int, int], tuple[float, float]] = {}
    joules: dict[tuple[int, int], float] = defaultdict(float)
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    for event in samples:
        now = float(event["time"])
        for gpu in event["gpus"]:
            device, power = (int(event["node"]), int(gpu["gpu"])), gpu.get("power_w")
            before = last.pop(device, None)
            if power is None:
                continue
            last[device] = now, float(power)
            if before is not None and 0 <= now - before[0] <= gap_s:
                joules[device] += (now - before[0]) * (before[1] + float(power)) / 2
                seconds[device] += now - before[0]
    return sum(joules.values()), sum(seconds.values())
