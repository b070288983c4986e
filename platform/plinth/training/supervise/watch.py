"""Wait for the ranks of one attempt: forward a stop, end those that hang, and those whose sibling has died."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from plinth.launch.parameters import Supervision
from plinth.training.rank_failure import NODE_SILENT

#: Exit status (EX_TEMPFAIL) of a rank or a job that left after a signal, with the state committed.
EXIT_PREEMPTED = 75

#: Stands for the exit status of a rank whose node sends no heartbeat.
NODE_LOST = 76

#: Exit status of a rank whose connection to another one broke: what failed is the other one.
EXIT_PARTNER_LOST = 77

POLL_S = 0.1

#: After one rank has failed, its siblings wait in a collective and will not leave by themselves.
SIBLING_TIMEOUT_S = 2.0


class Process(Protocol):
    """A rank, on this node or another."""

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, sig: int) -> None: ...


class LastChange:
    """Seconds since a file last changed, by the monotonic clock: a wall clock that is set back cannot make it hang."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen, self._changed = self._status(), time.monotonic()

    def age_s(self) -> float:
        found, now = self._status(), time.monotonic()
        if found != self._seen:
            self._seen, self._changed = found, now
        return now - self._changed

    def _status(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_size, status.st_mtime_ns


def watch(
    ranks: Sequence[Process],
    timeline: Path,
    supervision: Supervision,
    asked_to_stop: Callable[[], int],
    on_poll: Callable[[], None],
    on_hang: Callable[[], None],
) -> str:
    """Wait until every rank has ended; returns why they were ended, or an empty string.

    Args:
        ranks: the processes of this attempt.
        timeline: the file whose changes show that they still work.
        supervision: how long to wait for what.
        asked_to_stop: the signal to forward, or 0.
        on_poll: called several times a second.
        on_hang: called before ranks that hang are ended, when each has been asked what it waits for.
    """
    deadline = float("inf")  # when the remaining ranks are killed
    signalled, pulse = False, LastChange(timeline)
    while any(process.poll() is None for process in ranks):
        on_poll()
        now = time.monotonic()
        if asked_to_stop() and not signalled:
            _send(ranks, signal.SIGTERM)
            signalled, deadline = True, now + supervision.grace_s
        if any(process.poll() not in (None, 0, EXIT_PREEMPTED) for process in ranks):
            deadline = min(deadline, now + SIBLING_TIMEOUT_S)
        if now > deadline:
            _send(ranks, signal.SIGKILL)
        elif pulse.age_s() > supervision.hang_s:
            _send(ranks, signal.SIGUSR1)  # each rank writes its stacks and the collectives that it is in
            time.sleep(1.0)
            on_hang()
            _send(ranks, signal.SIGKILL)
            return f"no event for {supervision.hang_s:g} s: the ranks hang"
        time.sleep(POLL_S)
    return ""


def describe_exit(rank: int, code: int) -> str:
    """The end of a rank in words."""
    if code == NODE_LOST:
        return f"the node of rank {rank} {NODE_SILENT}"
    if code == EXIT_PARTNER_LOST:
        return f"rank {rank} lost its connection to another rank"
    if code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name}"
    return f"rank {rank} ended with status {code}"


def _send(ranks: Sequence[Process], number: int) -> None:
    for process in ranks:
        if process.poll() is None:
            process.send_signal(number)
