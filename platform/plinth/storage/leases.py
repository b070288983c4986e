"""Leases of processes that share a cache on a machine: locked files, so that a dead process holds none."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from plinth.storage import locks
from plinth.storage.atomic import named_failures, require_no_link


class Lease:
    """The blobs that this process has open, in a file that stays locked as long as the process lives."""

    def __init__(self, folder: Path) -> None:
        with named_failures(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._stream = (folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}").open("w")
            locks.lock(self._stream.fileno())
        self._held: set[str] = set()

    def add(self, md5: str) -> None:
        """Lease a blob."""
        if md5 not in self._held:
            self._held.add(md5)
            self._stream.write(f"{md5}\n")
            self._stream.flush()

    def end(self) -> None:
        """Give all of them back."""
        self._stream.close()


def leases(folder: Path) -> set[str]:
    """Blobs that living processes have leased; leases of dead processes are removed."""
    require_no_link(folder)
    every: set[str] = set()
    for path in folder.glob("*"):
        if locks.held(path):
            every.update(path.read_text().split())
        else:
            path.unlink(missing_ok=True)
    return every
