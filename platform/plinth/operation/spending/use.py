"""What a run's rank-seconds went to, and the energy of its devices: from the files of its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.operation.spending.energy import Energy, energy
from plinth.operation.spending.parameters import Spending
from plinth.report.run import metrics
from plinth.training import config as configuration
from plinth.training.telemetry.devices import read_samples
from plinth.training.telemetry.job_spans import job_spans
from plinth.training.telemetry.timeline import read_events


class RunUse(NamedTuple):
    """One run.

    Args:
        shares: of what was held, by cause; they add up to 1.
        held_s: rank-seconds.
        queue_s: rank-seconds that its jobs waited in a queue, which cost nothing.
    """

    shares: Mapping[str, float]
    held_s: float
    queue_s: float
    energy: Energy


def use(ctx: Context, settings: Spending, run: str) -> RunUse | None:
    """Of a run; None where it was not in this workspace, or its folder is gone.

    Raises:
        RequestError: the settings name a device that the table does not have.
    """
    rated = settings.rated
    try:
        config = configuration.load(ctx.workspace.runs / run / "config.json")
        events = list(read_events(config.directory.events))
    except PlinthError:
        return None
    held = sum(one.rank_s for one in job_spans(events))
    watts, overhead = rated.watts if rated is not None else None, settings.power_usage_effectiveness
    spent = energy(read_samples(config.directory), held, config.telemetry.devices_s, watts, overhead)
    cost = metrics.cost(events)
    return RunUse(causes(events), held, cost.queued_s * config.ranks, spent)


def causes(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Shares of the time that jobs held their ranks; lost work and retries stand apart."""
    cost, again = metrics.cost(events), retry_s(events)
    seconds = {
        "goodput": cost.useful_s,
        "input": cost.wait_s,
        "checkpoints": cost.save_s,
        "lost work": cost.lost_s,
        "retries": min(again, cost.start_s),
        "start": max(0.0, cost.start_s - again),
        "rest": cost.idle_s,
    }
    total = sum(seconds.values())
    return {cause: value / total for cause, value in seconds.items() if value} if total else {}


def retry_s(events: Sequence[Mapping[str, Any]]) -> float:
    """Seconds until ranks were up again: after a failure, and of every job of the run but its first."""
    total, since, jobs = 0.0, math.nan, 0
    for event in events:
        now, kind = float(event["time"]), event["event"]
        if kind == "restart" or (kind == "job_started" and jobs):
            since = now
        jobs += kind == "job_started"
        if kind == "run_started" and not math.isnan(since):
            total, since = total + max(0.0, now - since), math.nan
    return total
