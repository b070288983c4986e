"""The state of a run: the one answer to whether it lives, for the index, checklists, metrics, `status` and `job`.

The result file decides, then the last event, then the launcher: a supervisor that was killed leaves neither a result
nor an event. Does not belong here: how often to ask (each reader has its own pace), what a run has done (`telemetry/`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from enum import StrEnum

from plinth.errors import LaunchError
from plinth.launch.base import JobStatus, Launcher, read_handle
from plinth.launch.choose import choose
from plinth.training.config import RunConfig
from plinth.training.supervise.result import JobResult
from plinth.training.telemetry.timeline import JOB_ENDS, last_event

#: Seconds between the event `submitted` and the handle of the job, or the first event of its supervisor.
SUBMITTING_S = 30.0


class RunState(StrEnum):
    """State of a run's last job."""

    PREPARED = "prepared"  # never submitted
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"  # its processes are gone and it wrote no result: killed, or its machine went down
    UNKNOWN = "unknown"  # its launcher cannot be asked from here

    @property
    def needs_attention(self) -> bool:
        """True if the job ended without being asked to, and nothing starts it again."""
        return self in (RunState.FAILED, RunState.LOST)


def run_state(config: RunConfig) -> RunState:
    """Return the state of a run now; a damaged result counts as none."""
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
    except LaunchError:  # the scheduler does not answer, the job is another machine's, or its handle is damaged
        return RunState.UNKNOWN
    if status.alive:
        return RunState.QUEUED if status is JobStatus.PENDING else RunState.RUNNING
    with suppress(ValueError):
        if ended := result(config):  # it has ended between the two looks
            return RunState(ended.status)
    if last is not None and last["event"] == "submitted" and time.time() - float(last["time"]) < SUBMITTING_S:
        return RunState.QUEUED
    return RunState.LOST


def launcher_of(config: RunConfig) -> Launcher:
    """The launcher of the run's job: the one of its handle, or, where there is none, the one of its recipe.

    A recipe may name another launcher than the one that the job was submitted with; the job stays where it is.
    """
    known = read_handle(config.directory.root)
    return choose(known.launcher if known else config.launch.kind, config.launch, config.supervision.grace_s)


def result(config: RunConfig) -> JobResult | None:
    """The result of the last job, or None while it runs or when it was killed."""
    try:
        return JobResult.model_validate_json(config.directory.result.read_bytes())
    except FileNotFoundError:
        return None
