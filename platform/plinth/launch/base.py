"""The interface of launchers: handles, job status, methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from plinth.extensions import NoParams
from plinth.launch.parameters import Launch
from plinth.records import Frozen


class JobStatus(StrEnum):
    """Whether a job exists; the job itself records how it ended."""

    PENDING = "pending"  # it waits for its turn, for the first time or after a preemption
    RUNNING = "running"
    GONE = "gone"

    @property
    def alive(self) -> bool:
        """Whether the job runs, or will run without another submission."""
        return self is not JobStatus.GONE


class Handle(Frozen):
    """A submitted job, durable: `handle.json` in the job's directory finds it again from any process.

    `started` is the launcher's own proof that the identifier still means the same job. `host` is the machine,
    or the cluster, that knows the identifier.
    """

    launcher: str
    id: str
    started: str
    host: str


class Launcher(Protocol):
    """Submits jobs and finds them again. All methods may be called from any process at any time."""

    def submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        """Start a job, or return the one that is alive in this directory already: never two at once.

        Raises:
            LaunchError: it could not be started.
        """
        ...

    def find(self, directory: Path) -> Handle | None:
        """The handle last written in this directory, whether or not its job is still there.

        Without one it may be that of a living job whose submitter died before the handle was written.

        Raises:
            LaunchError: the file is not a handle.
        """
        ...

    def poll(self, handle: Handle) -> JobStatus:
        """The status of the job.

        Raises:
            LaunchError: the scheduler cannot be reached, or the job belongs to another machine.
        """
        ...

    def cancel(self, handle: Handle, grace_s: float) -> None:
        """Signal the job to stop, wait at most `grace_s`, then end all its processes."""
        ...

    def logs(self, log: Path, lines: int) -> str:
        """The last lines of the job's output."""
        ...


@dataclass(frozen=True)
class LauncherKind:
    """A kind of launcher, as a recipe names it.

    Args:
        name: `training.launch.kind` of the recipe, and `launcher` of its handles.
        description: one sentence.
        make: `(the recipe's block, seconds that a job may take to leave after SIGTERM) -> launcher`.
        params: frozen model of `training.launch.options`, which `make` finds raw in `launch.options`.
        preview: `(block, seconds, command, run's directory, log) -> the scheduler's input`, as text; None where there
            is no such text.
    """

    name: str
    description: str
    make: Callable[[Launch, float], Launcher]
    params: type[Frozen] = NoParams
    preview: Callable[[Launch, float, Sequence[str], Path, Path], str] | None = None
