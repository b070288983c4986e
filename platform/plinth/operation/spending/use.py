"""What a run's rank-seconds went to, and the energy of its devices: from the files of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.operation.spending.energy import Energy, energy
from plinth.operation.spending.parameters import Spending
from plinth.training import config as configuration
from plinth.training.telemetry.devices import read_samples
from plinth.training.telemetry.goodput.account import account
from plinth.training.telemetry.goodput.ledger import Cause
from plinth.training.telemetry.timeline import read_events


class RunUse(NamedTuple):
    """One run.

    Args:
        shares: of what was held, by the causes of the goodput ledger; they add up to 1.
        held_s: rank-seconds.
        queue_s: rank-seconds that its jobs waited in a queue, which cost nothing.
    """

    shares: Mapping[Cause, float]
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
        ledger = account(read_events(config.directory.events), config.ranks)
    except PlinthError:
        return None
    held, spent = ledger.held_rank_s, ledger.rank_s
    queued = spent.pop("queue")
    watts, overhead = rated.watts if rated is not None else None, settings.power_usage_effectiveness
    used = energy(read_samples(config.directory), held, config.telemetry.devices_s, watts, overhead)
    shares = {cause: seconds / held for cause, seconds in spent.items() if seconds}
    return RunUse(shares, held, queued, used)
