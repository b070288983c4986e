"""Runs work on idle cores until a rank waits for it.

Linux runs a thread of the class SCHED_IDLE only where nothing else would run, and takes its core away at the moment
that another thread becomes runnable (sched(7)); a process at the lowest priority keeps a core for some milliseconds
then, and training on all cores, whose ranks wait for each other hundreds of times in a second, waits for it as often.
Nobody may leave that class without a privilege, so the work goes piece by piece to a thread of that class, and is done
by the caller itself as soon as it is urgent.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

#: How long busy cores may delay the work, in seconds. After that it has the caller's own priority.
TIMEOUT_S = 10.0


class Idle:
    """Does pieces of work one after the other; each should be short, as a rank may wait for its end."""

    def __init__(self, urgent: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        self._urgent, self._timeout_s = urgent, timeout_s
        self._pool = ThreadPoolExecutor(1, "idle", _give_way)
        self.begin()

    def begin(self) -> None:
        """Begin new work, for which no rank waits yet."""
        self._until, self._hurries = time.monotonic() + self._timeout_s, False

    def __call__(self, work: Callable[[], object]) -> None:
        """Do a piece; its exception is raised here."""
        self._hurries = self._hurries or time.monotonic() > self._until or self._urgent()
        if self._hurries:
            work()
        else:
            self._pool.submit(work).result()


def _give_way() -> None:
    """Put this thread into the class; systems that have none leave it at the priority of its process."""
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
