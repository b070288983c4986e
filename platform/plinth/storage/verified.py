"""Compare blobs with their SHA-256: now, or once on this machine.

The first reader of a blob on a machine reads it whole. The file that was compared is remembered by its device, inode,
length and times of change, in a private folder: whoever can write the workspace cannot write that memory, and a file
that was rewritten, replaced or touched since is another file. The processes of a machine share the memory; losing it
costs hashing again, nothing else. It forgets the oldest first.

A change on the disk that leaves the inode alone is found by `Store.verify` and `plinth verify`, which trust no memory.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from plinth import private
from plinth.errors import IntegrityError
from plinth.records import Blob
from plinth.storage import locks

CHUNK_BYTES = 1 << 20
#: Files that are remembered: about 40 MB.
MOST_FILES = 500_000
#: What one process keeps at hand.
AT_HAND = 100_000
FOLDER = "first-reads"
BUSY_S = 10.0

_SCHEMA = "create table if not exists reads (number integer primary key, file blob unique)"


def require_unchanged(path: Path, blob: Blob, copy: Callable[[bytes], object] | None = None, *, part: str = "") -> None:
    """Read a file and compare its SHA-256 with the blob's.

    Args:
        copy: called with each chunk of bytes as it is read, before the comparison.
        part: name of the part in a manifest, for the message.

    Raises:
        IntegrityError: the file has changed.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            if copy is not None:
                copy(chunk)
    if digest.hexdigest() != blob.sha256:
        raise IntegrityError(
            f"{path}{f' ({part})' if part else ''} has changed since it was written",
            found=f"SHA-256 {digest.hexdigest()}",
            expected=f"SHA-256 {blob.sha256}",
            remedy="delete the file and run the same command again, or restore it from a remote",
        )


def verify_once(path: Path, blob: Blob) -> bool:
    """Compare a blob's SHA-256 unless this very file was compared on this machine; returns whether it was read now.

    Processes that come at once wait for the first.

    Raises:
        IntegrityError: the file has changed.
        WorkspaceError: the folder of the memory is not private.
    """
    if known(path, blob):
        return False
    with locks.locked(private.folder(FOLDER) / "locks" / blob.sha256[:3]):
        if known(path, blob):
            return False
        before = _file(path, blob)
        require_unchanged(path, blob)
        if _file(path, blob) == before:
            _memory().add(before)
    return True


def known(path: Path, blob: Blob) -> bool:
    """Whether this very file was compared with the blob's digest before."""
    return _memory().has(_file(path, blob))


def remember(path: Path, blob: Blob) -> None:
    """Note that the file has the blob's digest, as whoever has just written and hashed it knows."""
    _memory().add(_file(path, blob))


def identity(found: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is written, replaced or touched."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _file(path: Path, blob: Blob) -> bytes:
    """A file with the digest that it was compared with, as 16 bytes."""
    text = f"{blob.sha256} {identity(path.stat())}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class _Memory:
    """The files that were compared, in a database that the processes of a machine share."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._at_hand = path, threading.Lock(), set[bytes]()
        self._connection = self._connect()

    def has(self, file: bytes) -> bool:
        with self._lock:
            if file in self._at_hand:
                return True
            with suppress(sqlite3.Error):
                query = "select 1 from reads where file = ?"
                if self._connection and self._connection.execute(query, (file,)).fetchone():
                    self._keep(file)
                    return True
        return False

    def add(self, file: bytes) -> None:
        with self._lock:
            self._keep(file)
            if self._connection is None:
                return
            with suppress(sqlite3.Error), self._connection:  # a busy or full disk costs hashing again
                self._connection.execute("insert or ignore into reads (file) values (?)", (file,))
                newest = "(select max(number) from reads)"
                self._connection.execute(f"delete from reads where number <= {newest} - ?", (MOST_FILES,))

    def _keep(self, file: bytes) -> None:
        if len(self._at_hand) >= AT_HAND:
            self._at_hand.clear()
        self._at_hand.add(file)

    def _connect(self) -> sqlite3.Connection | None:
        for _ in range(2):
            try:
                connection = sqlite3.connect(self._path, timeout=BUSY_S, check_same_thread=False)
                connection.execute("pragma synchronous = off")
                connection.execute(_SCHEMA)
                connection.commit()
                return connection
            except sqlite3.OperationalError:
                return None
            except sqlite3.DatabaseError:  # damaged: a memory is not worth repairing
                self._path.unlink(missing_ok=True)
        return None


def _memory() -> _Memory:
    return _memory_of(os.getpid(), os.environ.get(private.VARIABLE), os.environ.get("HOME"))


@lru_cache(maxsize=4)
def _memory_of(process: int, *places: str | None) -> _Memory:
    """One for a process and its private folder: a child must not use its parent's connection."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"  # a home may be that of several machines
    return _Memory(private.folder(FOLDER) / f"{host}.sqlite")
