"""Processes that Plinth started for a workspace on this machine, and the addresses of `plinth up`.

    folder             private folder of a workspace's records, out of reach of the workspace's writers
    RunningProcess     a process, identified by its number and start time
    use, wait_until_unused   use of a server, which lives while a process holds its lock
    note, known, page_url    addresses for links from pages and from Dagster, while the serving process is alive

Does not belong here: jobs of runs, found by their launchers (`plinth.launch`).
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import psutil

from plinth import private
from plinth.errors import PlinthError
from plinth.records import Frozen
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace

POLL_S = 1.0
#: Locks that this process holds until it ends, by file.
_USED: dict[Path, tuple[int, int]] = {}


class RunningProcess(Frozen):
    """Process on this machine, identified by its number and start time."""

    pid: int
    started_at_s: float

    @classmethod
    def of(cls, pid: int) -> RunningProcess:
        """Return the live process with this process id."""
        return cls(pid=pid, started_at_s=psutil.Process(pid).create_time())

    def find(self) -> psutil.Process | None:
        """Return the process, or None if it has ended."""
        try:
            found = psutil.Process(self.pid)
            same = abs(found.create_time() - self.started_at_s) < 1.0
            return found if same and found.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


def folder(workspace: Workspace) -> Path:
    """Return the folder of a workspace's records, named by its resolved path and private to this user.

    Raises:
        WorkspaceError: the folder is not private or cannot be created.
    """
    place = private.folder("started") / hashlib.sha256(str(workspace.root.resolve()).encode()).hexdigest()[:16]
    return private.required(place)


def use(path: Path) -> None:
    """Hold a server's lock until this process ends; wait for a server that is shutting down."""
    held = _USED.get(path)
    if held is None or held[0] != os.getpid():
        _USED[path] = (os.getpid(), atomic.share(path))


def wait_until_unused(path: Path, linger_s: float, poll_s: float = POLL_S) -> int:
    """Wait until no process has used a server for `linger_s` seconds; return the lock, which keeps new users out."""
    since = time.monotonic()
    while True:
        fd = atomic.try_take(path)
        if fd is None:
            since = time.monotonic()
        elif time.monotonic() - since >= linger_s:
            return fd
        else:
            os.close(fd)
        time.sleep(poll_s)


FILE = "addresses.json"


class Addresses(Frozen):
    """Addresses of the servers, each with a trailing slash; `corpus` is empty if the corpus page is not served."""

    process: RunningProcess
    dagster: str
    pages: str
    corpus: str = ""


def note(workspace: Workspace, dagster: str, pages: str, corpus: str = "") -> None:
    """Record the addresses that this process serves, until it ends.

    Raises:
        WorkspaceError: the folder of the records is not private or cannot be created.
    """
    known = Addresses(process=RunningProcess.of(os.getpid()), dagster=dagster, pages=pages, corpus=corpus)
    write_bytes(folder(workspace) / FILE, known.model_dump_json().encode())


def known(workspace: Workspace) -> Addresses | None:
    """Return the current addresses of a workspace; None if it is not served."""
    try:
        found = Addresses.model_validate_json((folder(workspace) / FILE).read_bytes())
    except (OSError, ValueError, PlinthError):
        return None
    return found if found.process.find() else None


def page_url(workspace: Workspace, path: Path) -> str | None:
    """Return the address of a page of the workspace; None if it is not served, or the page is elsewhere."""
    served, root = known(workspace), workspace.root.resolve()
    if served is None or not path.resolve().is_relative_to(root):
        return None
    return f"{served.pages}{path.resolve().relative_to(root).as_posix()}"
