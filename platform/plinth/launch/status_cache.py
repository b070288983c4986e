"""Cache of a scheduler's answers: few queries, and tolerance for a scheduler that restarts.

Administrators block clients that query a controller several times a second; a controller that restarts for a minute
does not mean that its jobs have gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from plinth.errors import LaunchError
from plinth.launch.base import Handle, JobStatus

#: A finished job is noticed this late at most.
EVERY_S = 5.0

#: The last answer holds this long while the scheduler does not answer.
SILENCE_S = 900.0


class StatusCache:
    """The last answer to `ask`, no older than `every_s`."""

    def __init__(
        self, ask: Callable[[Handle], JobStatus], every_s: float = EVERY_S, silence_s: float = SILENCE_S
    ) -> None:
        self._ask, self._every_s, self._silence_s = ask, every_s, silence_s
        self._answers: dict[Handle, tuple[JobStatus, float]] = {}  # answer and when it came
        self._asked = -every_s

    def __call__(self, handle: Handle) -> JobStatus:
        """The status of the job, from the last answer.

        Raises:
            LaunchError: the scheduler has not answered for `silence_s`, or never has.
        """
        known, now = self._answers.get(handle), time.monotonic()
        if known is not None and (known[0] is JobStatus.GONE or now - self._asked < self._every_s):
            return known[0]
        self._asked = now
        try:
            status = self._ask(handle)
        except LaunchError:
            if known is None or now - known[1] > self._silence_s:
                raise
            return known[0]
        self._answers[handle] = status, now
        return status

    def forget(self) -> None:
        """Discard the last answer."""
        self._answers.clear()
