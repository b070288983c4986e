"""Where a job runs and how it is kept alive."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plinth.records import Frozen


class Supervision(Frozen):
    """Restarts inside the allocation."""

    max_restarts: int = Field(3, ge=0, description="Restarts from the last committed checkpoint.")
    backoff_s: float = Field(1.0, ge=0, description="Before the first restart; doubles each time.")
    hang_s: float = Field(300.0, gt=0, description="No event for this long means the ranks hang.")
    grace_s: float = Field(60.0, gt=0, description="Time to save and leave after SIGTERM.")


class Launch(Frozen):
    """Where the job runs. Bears no identity."""

    kind: Literal["local"] = Field("local", description="Launcher.")
    ranks: int = Field(2, ge=1, description="Processes, one per device.")
