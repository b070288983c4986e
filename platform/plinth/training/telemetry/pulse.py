"""The sign that a rank works through a long phase in which it writes no event.

The supervisor ends ranks whose timeline does not change for long (`supervise.watch`). A phase that hashes, reads,
gathers or writes calls its pulse after each piece of work, so a phase that does not come to its next piece is found.

Does not belong here: events (timeline).
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

#: Least seconds between two changes of the file.
EVERY_S = 1.0


class Pulse:
    """Touches a timeline when called, at most once in `EVERY_S` seconds."""

    def __init__(self, timeline: Path) -> None:
        self._timeline, self._last = timeline, float("-inf")

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= EVERY_S:
            self._last = now
            with contextlib.suppress(OSError):  # no timeline yet, or a disk that others report
                os.utime(self._timeline)
