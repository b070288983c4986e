"""Locks between processes: a lock on an open file, so that one who has died holds none (flock(2)).

Does not belong here: what a lock is for. Some keep one for as long as they live (tokens.leases, training.lock,
training.writer) and others ask by it whether they do.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plinth.storage.atomic import named_failures


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Held by one process, and by one thread of it, on any machine that sees the file; others wait."""
    with named_failures(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a")
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def held(path: Path) -> bool:
    """Whether somebody holds the lock of a file."""
    try:
        with path.open("r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
