"""Interface of launchers, selection of a launcher, and shared code: the handle, the submission lock and the log in a
job's directory, a cache of scheduler answers, and the shell wrapper of a command.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from plinth import fingerprint
from plinth.errors import LaunchError, WorkspaceError
from plinth.extensions import Catalogue, NoParams
from plinth.launch.parameters import Launch
from plinth.records import Frozen
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace


class JobStatus(StrEnum):
    """State of a job in its scheduler; the job itself records how it ended."""

    PENDING = "pending"  # queued, for the first time or after a preemption
    RUNNING = "running"
    GONE = "gone"

    @property
    def alive(self) -> bool:
        """True if the job is running, or will run without another submission."""
        return self is not JobStatus.GONE


class Handle(Frozen):
    """Durable handle of a submitted job. Any process can find the job again from `handle.json` in the job's directory.

    `started` lets the launcher prove that the identifier still means the same job. `host` is the machine or cluster
    that knows the identifier.
    """

    launcher: str
    id: str
    started: str
    host: str


class Launcher(Protocol):
    """Interface of launchers, which submit jobs and find them again. All methods may be called from any process at any
    time."""

    def submit(self, command: Sequence[str], directory: Path, log: Path) -> Handle:
        """Start a job, or return the live job of this directory. A directory never has two live jobs.

        Raises:
            LaunchError: the job could not be started.
        """
        ...

    def find(self, directory: Path) -> Handle | None:
        """Return the handle that was last written in this directory, or None. The job itself may no longer exist.

        If the submitter died before it wrote a handle, some launchers can still return the handle of the live job.

        Raises:
            LaunchError: `handle.json` is not a valid handle.
        """
        ...

    def poll(self, handle: Handle) -> JobStatus:
        """Return the status of the job.

        Raises:
            LaunchError: the scheduler cannot be reached, or the job belongs to another machine.
        """
        ...

    def cancel(self, handle: Handle, grace_s: float) -> None:
        """Signal the job to stop, wait at most `grace_s` seconds, then end all of its processes."""
        ...

    def logs(self, log: Path, lines: int) -> str:
        """Return the last lines of the job's output."""
        ...


@dataclass(frozen=True)
class LauncherKind:
    """Kind of launcher in a recipe.

    Args:
        kind: `training.launch.kind` of the recipe, and `launcher` of its handles.
        description: one sentence.
        make: `(the recipe's block, seconds that a job may take to exit after SIGTERM) -> launcher`.
        params: frozen model of `training.launch.options`; `make` gets the raw values in `launch.options`.
        preview: `(block, seconds, command, run's directory, log) -> the scheduler's input`, as text; None if the
            launcher cannot show its input.
    """

    name: str
    description: str
    make: Callable[[Launch, float], Launcher]
    params: type[Frozen] = NoParams
    preview: Callable[[Launch, float, Sequence[str], Path, Path], str] | None = None


HANDLE = "handle.json"
#: Written last by an ended job.
RESULT = "result.json"

#: Machines excluded from the run, one name per line (`training.supervision.host_checks`).
EXCLUDED = "excluded_hosts"

_LOG_TAIL_BYTES = 1 << 16


class _HandleFile(Handle):
    """Content of `handle.json`: the handle and its directory. In a copy of the directory, the handle belongs to the
    original's job."""

    directory: str = ""


def read_handle(directory: Path) -> Handle | None:
    """Return the handle in `directory`, or None if nothing was submitted there.

    Return None also if the directory is a copy without a result: the handle belongs to the original's job, which may be
    alive.

    Raises:
        LaunchError: `handle.json` is not a valid handle.
    """
    path = directory / HANDLE
    try:
        written = _HandleFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LaunchError(
            f"{path} is not a handle", found=error, remedy="make sure that no job runs, then delete this file"
        ) from error
    if written.directory and not (directory / RESULT).exists():
        with suppress(OSError):  # a missing directory was moved here
            if not Path(written.directory).samefile(directory):
                return None
    return Handle.model_validate(written.model_dump(exclude={"directory"}))


def excluded_hosts(directory: Path) -> list[str]:
    """Return the machines on which this run must not be placed."""
    path = directory / EXCLUDED
    return path.read_text().split() if path.exists() else []


def write_handle(directory: Path, handle: Handle) -> Handle:
    """Write the handle atomically with its directory; return it."""
    written = _HandleFile(**handle.model_dump(), directory=str(directory.resolve()))
    write_bytes(directory / HANDLE, fingerprint.canonical(written))
    return handle


def submit_once(
    directory: Path,
    find: Callable[[Path], Handle | None],
    ask: Callable[[Handle], JobStatus],
    start: Callable[[], Handle],
) -> Handle:
    """Return the live job of this directory, or start a new job and write its handle.

    Args:
        find: returns the job that was submitted here last.
        ask: returns the current status of a job.
        start: called under the lock. Adopts a live job that `find` does not know, because its submitter died too early.
    """
    with locked(directory):
        known = find(directory)
        if known is None or not ask(known).alive:
            known = start()
        return write_handle(directory, known)


def tail(log: Path, lines: int) -> str:
    """Return the last lines of `log`, or an empty string if there is no log. A link or special file is not read; a
    note reports this."""
    try:
        with atomic.opened(log, one_name=True, remedy=atomic.DELETE) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _LOG_TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    except WorkspaceError as error:  # the caller reports an error of its own
        return f"{error.what}: {error.found}"
    return "\n".join(text.splitlines()[-lines:])


def locked(directory: Path) -> AbstractContextManager[None]:
    """Return a context that allows one submission at a time, on all machines that share the directory. If its process
    dies, the lock is released."""
    return atomic.locked(directory / "submit.lock")


# Cache of scheduler answers: few queries, and tolerance for a scheduler restart.
#
# Administrators block clients that query a controller several times per second; during a controller's restart its jobs
# continue.

#: Maximum delay of noticing a finished job, in seconds.
EVERY_S = 5.0

#: Seconds for which the last answer is valid while the scheduler does not respond.
SILENCE_S = 900.0


class StatusCache:
    """Cache of a job's status, which can be the `poll` of a launcher. `ask` is called again if the last answer is older
    than `every_s` seconds."""

    def __init__(
        self, ask: Callable[[Handle], JobStatus], every_s: float = EVERY_S, silence_s: float = SILENCE_S
    ) -> None:
        self._ask, self._every_s, self._silence_s = ask, every_s, silence_s
        self._answers: dict[Handle, tuple[JobStatus, float]] = {}  # answer and its time
        self._asked = -every_s

    def __call__(self, handle: Handle) -> JobStatus:
        """Return the status of the job from the last answer.

        Raises:
            LaunchError: the scheduler has not answered for `silence_s`, or has never answered.
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


#: Built-in launchers, and those of installed packages (entry points of the group `plinth.launchers`).
LAUNCHERS = Catalogue(
    "plinth.launchers",
    "launcher",
    LauncherKind,
    {
        "local": "plinth.launch.local:KIND",
        "slurm": "plinth.launch.slurm:KIND",
        "ray": "plinth.launch.ray_jobs:KIND",
        "kubernetes": "plinth.launch.kubernetes:KIND",
    },
)


def choose(kind: str, launch: Launch, grace_s: float) -> Launcher:
    """Return a launcher of this kind, with the settings from the recipe.

    Args:
        kind: kind in the recipe or in a handle.
        launch: the recipe's block.
        grace_s: seconds that a job may take to exit after SIGTERM.

    Raises:
        LaunchError: no launcher of this kind.
        ExtensionError: the package that provides the launcher cannot be used.
    """
    if kind not in LAUNCHERS:
        raise LaunchError(
            f"no launcher {kind!r}",
            expected=", ".join(LAUNCHERS),
            remedy="install the package that provides it; `plinth doctor` lists installed packages",
        )
    return LAUNCHERS[kind].make(launch, grace_s)


def given(launch: Launch, grace_s: float, command: Sequence[str], directory: Path, log: Path) -> str:
    """Return the script for `sbatch`, manifests for `kubectl apply -f -`, or the request of an installed launcher.

    Raises:
        LaunchError: this launcher cannot show its input.
        RecipeError: there is no launcher of this kind.
    """
    kind = LAUNCHERS.find(launch.kind)
    if kind.preview is None:
        raise LaunchError(
            f"the launcher {launch.kind} has no manifest to show",
            expected="training.launch.kind slurm or kubernetes, or an installed launcher that shows its request",
            remedy="`plinth run job submit RUN` starts the job",
        )
    return kind.preview(launch, grace_s, command, directory.absolute(), log.absolute())


#: Exit status (EX_TEMPFAIL) of a supervisor stopped by a signal with the state committed: start it again.
LEFT = 75

#: Shell code that signals the command to stop. Ends with `;` or `&`, like a command of a list.
TERMINATE = 'kill -TERM "$job" 2>/dev/null;'


def waiting(words: str, ask: str = TERMINATE) -> list[str]:
    """Return lines of bash that run the command `words`, run `ask` on SIGTERM, and leave the exit status in `$status`.

    A signal before `words` start prevents them from starting; a signal during their start is repeated once they have a
    process id. If SIGTERM ends the command before it could handle the signal, nothing was done, and the status is
    `LEFT`.

    The shell polls twice per second instead of waiting: if the signal ends the command at the moment it interrupts
        `wait`, bash 5.2 may wait forever.
    """
    return [
        f"asked= job= status={LEFT}",
        f"trap 'asked=1; if [ -n \"$job\" ]; then {ask} fi' TERM INT",
        'if [ -z "$asked" ]; then',
        f"  {words} &",
        "  job=$!",
        f'  if [ -n "$asked" ]; then {ask} fi',
        '  while kill -0 "$job" 2>/dev/null; do sleep 0.5; done',
        '  wait "$job"; status=$?',
        f'  if [ -n "$asked" ] && [ "$status" = {128 + signal.SIGTERM} ]; then status={LEFT}; fi',
        "fi",
    ]


def is_shared(directory: Path) -> bool:
    """Return True if a job's directory is this machine's copy of one in a bucket. Other machines have their own."""
    return bool(Workspace(directory.parent.parent).uri)


def logged(command: Sequence[str], log: Path) -> str:
    """Return a script for `bash -c`: it runs a command and writes its output to the caller's and to `log`."""
    lines = [
        f"mkdir -p {shlex.quote(str(log.parent))}",
        f"exec > >(trap '' TERM INT; exec tee -a {shlex.quote(str(log))}) 2>&1",
        "tee=$!",
        *waiting(shlex.join(command)),
        "exec >&- 2>&-",
        'wait "$tee"',
        'exit "$status"',
    ]
    return "\n".join(lines)
