"""The goodput ledger of a run, from its timeline and the state of its job. What runs cost, SLIs and alerts read it.

    of_run(config)   one run: rank-seconds by cause and by attempt
    merged(ledgers)  several together

The arithmetic is `training.telemetry.goodput`, which is pure.
"""

from __future__ import annotations

import time

from plinth.launch.base import JobStatus
from plinth.training.config import RunConfig
from plinth.training.run_state import launcher_of
from plinth.training.telemetry.goodput.account import account
from plinth.training.telemetry.goodput.ledger import CAUSES, AttemptTime, Cause, GoodputLedger, merged
from plinth.training.telemetry.timeline import read_events

__all__ = ["CAUSES", "AttemptTime", "Cause", "GoodputLedger", "account", "merged", "of_run"]


def of_run(config: RunConfig, until: float | None = None) -> GoodputLedger:
    """The ledger of a run as its timeline stands.

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
