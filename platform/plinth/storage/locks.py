"""Locks between processes: flock(2) on an open file. The one place that calls it, but for
`plinth_text.compiled.build`, which is below.

A lock belongs to the open file, so a dead process holds none, and a child that inherits the descriptor holds the
lock as well, until the last holder has ended. Locks are advisory and work on every machine that sees the file.

    locked     a block under the lock; waits
    take       the descriptor of a lock that outlives the block; waits (`try_take` gives up)
    share      as `take`, at the same time as others who share it
    lock       the lock of a file that is open already
    held       whether any process holds the lock; an exclusive lock that lives as long as its process is a lease
    owner      the text that the holder wrote into the file

Does not belong here: what a lock protects.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plinth.storage.atomic import open_plain

POLL_S = 0.1


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Run a block while this process, and this thread of it, holds the lock; others wait."""
    fd = take(path)
    try:
        yield
    finally:
        os.close(fd)


def take(path: Path, *, owner: str = "") -> int:
    """Wait for the lock of a file; returns the descriptor, which holds it until it and its copies are closed.

    Args:
        owner: is written into the file, for `owner`.

    Raises:
        DiskFullError, WorkspaceError, StorageError: as the operating system refuses.
    """
    fd = _open(path)
    lock(fd)
    _sign(fd, owner)
    return fd


def try_take(path: Path, *, owner: str = "", wait_s: float = 0.0) -> int | None:
    """As `take`, or None when another process still holds the lock after `wait_s` seconds."""
    fd, until = _open(path), time.monotonic() + wait_s
    while not lock(fd, wait=False):
        if time.monotonic() >= until:
            os.close(fd)
            return None
        time.sleep(POLL_S)
    _sign(fd, owner)
    return fd


def share(path: Path) -> int:
    """Wait until no process holds the lock alone, and share it; returns the descriptor, which holds it.

    Raises:
        DiskFullError, WorkspaceError, StorageError: as the operating system refuses.
    """
    fd = _open(path)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def lock(fd: int, *, wait: bool = True) -> bool:
    """Lock an open file; returns whether it succeeded, which it always does with `wait`."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def held(path: Path) -> bool:
    """Whether any process holds the lock of a file. Two processes that test at once do not disturb each other."""
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def owner(path: Path) -> str:
    """The text of the process that took the lock last; empty when it wrote none."""
    try:
        return path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def _open(path: Path) -> int:
    return open_plain(path, os.O_RDWR)


def _sign(fd: int, owner: str) -> None:
    if owner:
        os.ftruncate(fd, 0)
        os.pwrite(fd, owner.encode(), 0)
