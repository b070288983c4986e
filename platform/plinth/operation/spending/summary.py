"""What was spent, by whom and on what: rows of the ledger added up, a run's money divided between buckets by tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.operation.spending.energy import Energy
from plinth.operation.spending.ledger import CORPUS, MICROS, Ledger, Reservation
from plinth.operation.spending.parameters import Spending, ledger_place, load, workspace_name
from plinth.operation.spending.use import RunUse, use
from plinth.records import Frozen, bucket_of
from plinth.tokens.mixture.mixture_audit import shares_over_run
from plinth.training import config as configuration

#: By what spending is added up.
By = Literal["run", "bucket", "team", "experiment", "person", "recipe"]

#: What a row is called whose team, experiment or bucket is not known.
UNKNOWN = "-"


class SpendRow(Frozen):
    """One name of a summary. Money as prices state it."""

    name: str
    submissions: int
    refused: int
    reserved: float  # of submissions that are not settled
    spent: float
    rank_hours: float
    price_per_rank_hour: float  # mean, of what was spent
    causes: Mapping[str, float]  # what of it was spent on; of runs that are not in this workspace nothing is known
    queue_hours: float  # rank-hours in a queue, which cost nothing
    kwh: float | None  # of devices; None where it is not known of some run
    measured: float  # share of the device time whose power was sampled, the rest is at rated power
    co2_kg: float | None


def summarise(ctx: Context, settings: Spending, rows: Sequence[Reservation], by: By) -> list[SpendRow]:
    """The dearest first. Causes and energy of a run are divided between its submissions by rank-seconds."""
    known = {run: found for run in {one.run for one in rows} if (found := use(ctx, settings, run))}
    intensity = settings.grams_co2_per_kwh
    if by == "bucket":
        return _added(_by_bucket(ctx, rows), known, intensity)
    return _added(((getattr(one, by) or UNKNOWN, 1.0, one) for one in rows), known, intensity)


def run_spend(ctx: Context, run: str) -> SpendRow | None:
    """Of one run of this workspace; None where it was never submitted.

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
    """Money by cause, rank-seconds in queues, energy: of shares of submissions, by their shares of their runs."""
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
    """Every submission by the share of each bucket in the tokens that its run had seen when it was settled; a stage of
    the corpus by its asset."""
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
    """The counts of a run's mixture, and the tokens of a sequence; None where the run was not in this workspace."""
    try:
        config = configuration.load(ctx.workspace.runs / run / "config.json")
        return ctx.refs.load(config.mixture).stats, config.sequence_tokens
    except PlinthError:
        return None


def bucket_shares(stats: Mapping[str, Any], sequence_tokens: int, tokens: int) -> dict[str, float]:
    """Shares of the buckets in the first so many tokens of a mixture; of all of it where there are none."""
    end = -(-tokens // sequence_tokens) or stats["sequences"]
    found: dict[str, float] = defaultdict(float)
    for row in shares_over_run(stats):
        seen = max(0, min(row["stop"], end) - row["first"])
        for stream, share in row["realised"].items():
            found[bucket_of(stream)] += seen * share
    total = sum(found.values())
    return {bucket: seen / total for bucket, seen in found.items() if seen}
