"""A run whose timeline a test writes has a job, too: a process that sleeps until the test ends."""

from __future__ import annotations

import atexit
import os
import signal
from contextlib import suppress

from plinth.launch.base import JobStatus
from plinth.launch.local import LocalLauncher
from plinth.training.config import RunConfig

#: Jobs that end with the current test (conftest.py).
_OF_TEST: set[int] = set()


def give_job(config: RunConfig, *, outlives_test: bool = False) -> int:
    """Start a job that does nothing for a run; returns its process id."""
    run = config.directory
    job = int(LocalLauncher().submit(["sleep", "3600"], run.root, run.log).id)
    if outlives_test:
        atexit.register(kill, job)
    else:
        _OF_TEST.add(job)
    return job


def end_jobs() -> None:
    """Kill the jobs of the current test."""
    while _OF_TEST:
        kill(_OF_TEST.pop())


def kill(job: int) -> None:
    """Kill a job as the kernel would: it writes nothing."""
    with suppress(ProcessLookupError):
        os.kill(job, signal.SIGKILL)


def kill_job_of(config: RunConfig) -> None:
    """Kill the job of a run, and wait until it is gone."""
    launcher = LocalLauncher()
    handle = launcher.find(config.directory.root)
    assert handle is not None
    kill(int(handle.id))
    while launcher.poll(handle) is not JobStatus.GONE:
        pass
