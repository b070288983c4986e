"""What a job really cost: the rank-seconds of its timeline, times the price it was admitted at.

A job is paid for from when its supervisor is up until it has ended, whatever it did meanwhile: starting, waiting, doing
again. One that was killed without an end is paid until its last event. Waiting in a scheduler's queue costs nothing.
"""

from __future__ import annotations

import time
from contextlib import suppress

from plinth.compute.context import Context
from plinth.errors import LaunchError, MissingError
from plinth.operation.spending import parameters
from plinth.operation.spending.ledger import JobCost, Ledger, Reservation
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.run_state import launcher_of
from plinth.training.telemetry.goodput.account import account
from plinth.training.telemetry.timeline import JOB_ENDS, read_events

#: A submission whose job cannot be found is not given up before: its scheduler may still be busy with it.
SUBMITTING_S = 600.0


def held_s(config: RunConfig) -> float:
    """Rank-seconds that the jobs of a run have taken."""
    return account(read_events(config.directory.events), config.ranks).held_rank_s


def job_cost(config: RunConfig, one: Reservation) -> JobCost:
    """What the job of a submission has cost until now."""
    taken, tokens = max(0.0, held_s(config) - one.before_s), 0
    for event in read_events(config.directory.events):
        if event["event"] == "step":
            tokens = max(tokens, int(event["tokens"]))
    return JobCost(spent=round(taken / 3600 * one.price), rank_s=taken, tokens=tokens)


def settle(ctx: Context, ledger: Ledger | None = None) -> list[Reservation]:
    """Settle all submissions of this workspace whose jobs have ended; returns those that are still open.

    Raises:
        StorageError: the ledger cannot be reached.
    """
    ledger = ledger or Ledger(parameters.ledger_place(ctx.workspace, parameters.load(ctx.workspace)))
    still = []
    for one in (one for place in ctx.workspace.places for one in ledger.find(place, open_only=True)):
        cost = None
        # the run's folder was deleted, or only another machine knows its job: it stays as it was bounded
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
    """Whether the job of a submission will spend no more."""
    launcher = launcher_of(config)
    handle = launcher.find(config.directory.root)
    if handle is not None and launcher.poll(handle).alive:
        return False
    ends = [event for event in read_events(config.directory.events) if event["event"] in JOB_ENDS]
    return time.time() - one.made > SUBMITTING_S or any(float(end["time"]) >= one.made for end in ends)
