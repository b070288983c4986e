"""State of a run, for the index, checklists, metrics, `status` and `job`; and a watch over the runs of a workspace."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from plinth.errors import LaunchError, PlinthError
from plinth.launch.base import JobStatus, Launcher, choose, read_handle
from plinth.training.config import RunConfig
from plinth.training.shared_run.shipping import active_elsewhere
from plinth.training.supervise.result import JobResult
from plinth.training.telemetry.timeline import JOB_ENDS, last_event

# State of a run, for the index, checklists, metrics, `status` and `job`.
#
# The result file decides, then the last event, then the launcher, because a killed supervisor leaves neither a result
# nor an event.

#: Maximum seconds from the event `submitted` until the job's handle or its supervisor's first event is written.
SUBMITTING_S = 30.0


class RunState(StrEnum):
    """State of a run's last job."""

    PREPARED = "prepared"  # never submitted
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"  # no processes and no result: killed, or its machine went down
    UNKNOWN = "unknown"  # its launcher is not reachable from here

    @property
    def needs_attention(self) -> bool:
        """True if the job ended unexpectedly and will not be restarted automatically."""
        return self in (RunState.FAILED, RunState.LOST)


def run_state(config: RunConfig) -> RunState:
    """Return the current state of a run. A damaged result file is ignored."""
    with suppress(ValueError):
        if ended := result(config):
            return RunState(ended.status)
    last = last_event(config.directory.events)
    if last is not None and last["event"] in JOB_ENDS:
        return RunState(last["event"])
    if last is None and not config.directory.handle.exists():  # the event precedes every submission
        return RunState.PREPARED
    try:
        launcher = launcher_of(config)
        handle = launcher.find(config.directory.root)
        status = launcher.poll(handle) if handle else JobStatus.GONE
        status = status if status.alive else _elsewhere(config)
    except LaunchError:  # the scheduler does not respond, the job is on another machine, or its handle is damaged
        return RunState.UNKNOWN
    if status.alive:
        return RunState.QUEUED if status is JobStatus.PENDING else RunState.RUNNING
    with suppress(ValueError):
        if ended := result(config):  # it ended between the two checks
            return RunState(ended.status)
    if last is not None and last["event"] == "submitted" and time.time() - float(last["time"]) < SUBMITTING_S:
        return RunState.QUEUED
    return RunState.LOST


def _elsewhere(config: RunConfig) -> JobStatus:
    """Return the status of a run without a job here: in a shared workspace, another machine may run one."""
    with suppress(PlinthError):
        if active_elsewhere(config.directory):
            return JobStatus.RUNNING
    return JobStatus.GONE


def launcher_of(config: RunConfig) -> Launcher:
    """Return the launcher of the run's job: the launcher in the job's handle or, without a handle, the recipe's
    launcher.

    If the recipe now names another launcher, the job stays with the launcher that submitted it.
    """
    known = read_handle(config.directory.root)
    return choose(known.launcher if known else config.launch.kind, config.launch, config.supervision.grace_s)


def result(config: RunConfig) -> JobResult | None:
    """Return the result of the last job, or None if the job is running or was killed."""
    try:
        return JobResult.model_validate_json(config.directory.result.read_bytes())
    except FileNotFoundError:
        return None


# Watch over the runs of a workspace: which runs are open, and which wrote last.
#
# A run with a result has ended: its files are not read again until the time of `runs/` changes, which happens when a
# run is created, removed or restarted (`RunDirectory.reopen`).

#: Nanoseconds within which a folder can change twice without a new modification time.
_RACY_NS = 2_000_000_000


class TimelineFile(NamedTuple):
    """Attributes of a timeline file in a folder: modification time (Unix time in nanoseconds) and size in bytes."""

    written_ns: int
    size: int


class RunWatch:
    """Watch over the runs in a folder.

    Args:
        runs: `runs/` of the workspace.
        kept_s: number of seconds after its last write for which an ended run stays listed by name. Ended runs that are
            no longer listed are still counted.
    """

    def __init__(self, runs: Path, kept_s: float = math.inf) -> None:
        self._runs, self._kept_s = runs, kept_s
        self._changed_ns = self._folder_ns = -1
        self._ended: dict[str, TimelineFile] = {}
        self._open: dict[str, TimelineFile] = {}
        self._ended_count = self.looked_at = 0

    def look(self) -> RunWatch:
        """Read the state of changed runs, and return this watch.

        Open runs are always checked. All runs are checked after a run was created, removed or restarted.
        """
        try:
            folder = os.open(self._runs, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            self._folder_ns, self._ended_count, self._ended, self._open = 0, 0, {}, {}
            return self
        try:  # relative names: the kernel resolves the folder once, not per run
            changed_ns = self._folder_ns = os.fstat(folder).st_mtime_ns
            names = list(self._open)
            if changed_ns != self._changed_ns:
                names, self._ended, self._ended_count = os.listdir(folder), {}, 0
            self._open = {}
            for name in names:
                self._look_at(folder, name)
        finally:
            os.close(folder)
        settled = time.time_ns() - changed_ns > _RACY_NS
        self._changed_ns = changed_ns if settled else -1
        return self

    def facts(self) -> list[object]:
        """Return a value that changes when a run is created or removed, ends, or has a new event."""
        return [self._folder_ns, self._ended_count, sorted([name, *seen] for name, seen in self._open.items())]

    def timelines(self) -> dict[str, TimelineFile]:
        """Return the timeline file of each run that is open or still listed by name. If a run has no timeline, the
        fields are 0."""
        return self._ended | self._open

    def open_runs(self) -> list[str]:
        """Return the names of the runs that have no result yet."""
        return sorted(self._open)

    def newest(self) -> list[str]:
        """Return the names of the runs with a timeline, sorted by their newest event, the latest first."""
        found = {name: seen.written_ns for name, seen in self.timelines().items() if seen.written_ns}
        return sorted(found, key=lambda name: (-found[name], name))

    def _look_at(self, folder: int, name: str) -> None:
        self.looked_at += 1
        ended = os.access(f"{name}/result.json", os.F_OK, dir_fd=folder)  # written last: the timeline is complete
        try:
            stat = os.stat(f"{name}/events.jsonl", dir_fd=folder)
            seen = TimelineFile(stat.st_mtime_ns, stat.st_size)
        except OSError:
            seen = TimelineFile(0, 0)
        self._ended_count += ended
        if not ended:
            self._open[name] = seen
        elif time.time() - seen.written_ns / 1e9 < self._kept_s:
            self._ended[name] = seen
