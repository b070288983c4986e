"""The goodput ledger of a run, from its timeline and the state of its job."""

from __future__ import annotations

import time

from plinth.launch.base import JobStatus
from plinth.training.config import RunConfig
from plinth.training.run_state import launcher_of
from plinth.training.telemetry.goodput.account import account
from plinth.training.telemetry.goodput.ledger import GoodputLedger
from plinth.training.telemetry.timeline import read_events


def run_goodput(config: RunConfig, until: float | None = None) -> GoodputLedger:
    """Rank-seconds of a run by cause and by attempt, as its timeline is now; costs, SLIs and alerts read it.

    Args:
        until: Unix seconds to which a job that is still queued has waited; None: now, where its scheduler says so.

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
