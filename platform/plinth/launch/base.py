"""The interface of launchers, and what all of them share: the handle, the submission lock and the log in a job's
directory, and a cache of a scheduler's answers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from plinth import fingerprint
from plinth.errors import LaunchError, WorkspaceError
from plinth.extensions import NoParams
from plinth.launch.parameters import Launch
from plinth.records import Frozen
from plinth.storage import locks, safe_path
from plinth.storage.atomic import write_bytes


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


HANDLE = "handle.json"
#: Written last by a job that has ended.
RESULT = "result.json"

#: Machines that the run may not be placed on again, one name a line (`training.supervise.exclusion`).
EXCLUDED = "excluded_hosts"

_LOG_TAIL_BYTES = 1 << 16


class _HandleFile(Handle):
    """A handle and where it was submitted: the one in a copy of that directory is of the original's job."""

    directory: str = ""


def read_handle(directory: Path) -> Handle | None:
    """The handle in `directory`, or None when nothing was submitted there.

    In a copy of a directory without a result, it is of a job that may be alive, and that is the original's: None.

    Raises:
        LaunchError: the file is not a handle.
    """
    path = directory / HANDLE
    try:
        written = _HandleFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LaunchError(
            f"{path} is not a handle", found=error, remedy="make sure no job runs, then delete it"
        ) from error
    if written.directory and not (directory / RESULT).exists():
        with suppress(OSError):  # a directory that is gone was moved here
            if not Path(written.directory).samefile(directory):
                return None
    return Handle.model_validate(written.model_dump(exclude={"directory"}))


def excluded_hosts(directory: Path) -> list[str]:
    """The machines that a run of this folder may not be placed on."""
    path = directory / EXCLUDED
    return path.read_text().split() if path.exists() else []


def write_handle(directory: Path, handle: Handle) -> Handle:
    """Write the handle atomically, with its directory; returns it."""
    written = _HandleFile(**handle.model_dump(), directory=str(directory.resolve()))
    write_bytes(directory / HANDLE, fingerprint.canonical(written))
    return handle


def submit_once(
    directory: Path,
    find: Callable[[Path], Handle | None],
    ask: Callable[[Handle], JobStatus],
    start: Callable[[], Handle],
) -> Handle:
    """The job of this directory that is alive, or one that is started now; its handle is written.

    Args:
        find: the job that was submitted here last.
        ask: the present status of a job.
        start: called under the lock. Adopts a job that `find` does not know, because its submitter died too early.
    """
    with locked(directory):
        known = find(directory)
        if known is None or not ask(known).alive:
            known = start()
        return write_handle(directory, known)


def tail(log: Path, lines: int) -> str:
    """The last lines of `log`; empty when there is none. Of a link or the like, that it is not read."""
    try:
        with safe_path.opened(log, one_name=True, remedy=safe_path.DELETE) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _LOG_TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    except WorkspaceError as error:  # what asks for the tail has an error of its own to tell
        return f"{error.what}: {error.found}"
    return "\n".join(text.splitlines()[-lines:])


def locked(directory: Path) -> AbstractContextManager[None]:
    """One submission at a time, on any machine that sees the directory; the lock dies with its holder."""
    return locks.locked(directory / "submit.lock")


# Cache of a scheduler's answers: few queries, and tolerance for a scheduler that restarts.
#
# Administrators block clients that query a controller several times a second; a controller that restarts for a minute
# does not mean that its jobs have gone.

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
