"""What a job leaves for the processes after it: its end, written by the supervisor and read by the process that follows
the job, and the lock on the run that lives as long as anything that was started under it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from plinth.errors import LaunchError
from plinth.records import Frozen
from plinth.storage import atomic
from plinth.training.rank_failure import RankFailure

Ending = Literal["finished", "stopped", "failed"]


class JobResult(Frozen):
    """The content of `result.json`."""

    status: Ending
    step: int
    restarts: int
    lost_steps: int
    lost_s: float
    restart_s: float = 0.0  # from failures to the first step after each
    reason: str = ""
    failure: RankFailure | None = None  # the error that a rank named


#: How long to wait until the ranks of a killed supervisor have ended.
TIMEOUT_S = 30.0


def hold(path: Path) -> int:
    """Take the run's lock; returns its descriptor, inheritable and held until every holder has ended.

    Raises:
        LaunchError: another supervisor, or a rank of one, is alive.
    """
    fd = atomic.try_take(path, wait_s=TIMEOUT_S)
    if fd is None:
        raise LaunchError(
            f"another supervisor works on the run in {path.parent}",
            expected="one at a time",
            remedy="follow that one, or cancel it first",
        )
    return fd
