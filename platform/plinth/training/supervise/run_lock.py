"""One supervisor at a time: a lock on the run that lives as long as anything that was started under it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from plinth.errors import LaunchError
from plinth.storage.atomic import named_failures

#: How long to wait for the ranks of a supervisor that was killed to be gone.
PATIENCE_S = 30.0

POLL_S = 0.1


def hold(path: Path) -> int:
    """Take the run's lock; returns its descriptor, inheritable and held until every holder has ended.

    Raises:
        LaunchError: another supervisor, or a rank of one, is alive.
    """
    with named_failures(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError as error:
            if time.monotonic() > until:
                os.close(fd)
                raise LaunchError(
                    f"another supervisor works on the run in {path.parent}",
                    expected="one at a time",
                    remedy="follow that one, or cancel it first",
                ) from error
            time.sleep(POLL_S)
