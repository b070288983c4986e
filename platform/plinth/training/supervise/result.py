"""The end of a job: the supervisor writes it, the process that follows the job reads it."""

from __future__ import annotations

from typing import Literal

from plinth.records import Frozen
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
