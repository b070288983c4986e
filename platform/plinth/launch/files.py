"""Files of a job's directory that all launchers share: the handle, the submission lock, the log."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from plinth import fingerprint
from plinth.errors import LaunchError, WorkspaceError
from plinth.launch.base import Handle, JobStatus
from plinth.storage import locks, safe_path
from plinth.storage.atomic import write_bytes

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
