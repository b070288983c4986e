"""One supervisor at a time: a lock on the run that lives as long as anything that was started under it."""

from __future__ import annotations

from pathlib import Path

from plinth.errors import LaunchError
from plinth.storage import locks

#: How long to wait until the ranks of a killed supervisor have ended.
TIMEOUT_S = 30.0


def hold(path: Path) -> int:
    """Take the run's lock; returns its descriptor, inheritable and held until every holder has ended.

    Raises:
        LaunchError: another supervisor, or a rank of one, is alive.
    """
    fd = locks.try_take(path, wait_s=TIMEOUT_S)
    if fd is None:
        raise LaunchError(
            f"another supervisor works on the run in {path.parent}",
            expected="one at a time",
            remedy="follow that one, or cancel it first",
        )
    return fd
