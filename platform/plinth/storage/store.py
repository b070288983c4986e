"""Content store: blobs by content, in the layout of DVC's cache (`files/md5/ab/cdef…`).

Local work needs no DVC code. Only `dvc.py` (trees, remotes and checkouts) uses `dvc-data`, whose version is pinned.
MD5 is an address only: manifests have every blob's SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from plinth import private
from plinth.errors import IntegrityError, MissingError
from plinth.records import Blob
from plinth.storage import atomic
from plinth.storage.atomic import locked, named_failures, require_no_link, sync_directory
from plinth.storage.objects import ObjectFacts, files_below, is_old, unlink_old


class Store:
    """Blobs under `root`. Instances are cheap and have their own counters; an instance sent to another process is
    opened there again."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.files = self.root / "files" / "md5"
        self.opened = self.checked = self.written = self.written_bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root,)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__reduce__() == self.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    @contextmanager
    def for_task(self) -> Iterator[Store]:
        """Open the store for one task. The counters count this task only, and files that it opens stay available until
        it ends."""
        yield Store(self.root)

    def require_folder(self, doing: str) -> None:
        """Refuse an operation on the files of a store that is not a folder.

        Raises:
            StorageError: the store is not a folder of this machine.
        """

    def path(self, blob: Blob | str) -> Path:
        """Return the path of a blob, which need not exist. Accepts a blob or an MD5."""
        md5 = blob if isinstance(blob, str) else blob.md5
        return self.files / md5[:2] / md5[2:]

    def has(self, blob: Blob) -> bool:
        """Return True if the blob is there with its recorded length; its bytes are not read."""
        try:
            return self.path(blob).stat().st_size == blob.bytes
        except FileNotFoundError:
            return False

    def remove(self, blob: Blob) -> None:
        """Remove a blob that nothing refers to; a missing blob is not an error."""
        with named_failures(self.path(blob)):
            self.path(blob).unlink(missing_ok=True)

    def facts(self) -> Iterator[ObjectFacts]:
        """Yield the metadata of every blob and every DVC directory object, by MD5 and unordered."""
        require_no_link(self.files.parent, self.files)  # old files are deleted
        for name, found in files_below(self.files):
            yield ObjectFacts(name.replace("/", ""), found.st_size, found.st_mtime)

    def remove_old(self, md5: str, before: float) -> bool:
        """Remove a blob that was last written before a time; return False if it is younger. A missing blob is not an
        error."""
        with locked(self.root / "lock"):
            return unlink_old(self.path(md5), before)

    def directory(self, md5: str) -> bytes:
        """Return the content of a DVC directory object by its MD5 with its suffix, or empty bytes if there is none."""
        try:
            return self.path(md5).read_bytes()
        except FileNotFoundError:
            return b""

    def has_all(self, blobs: Iterable[Blob]) -> bool:
        """Return True if every blob is there."""
        return all(map(self.has, blobs))

    @contextmanager
    def staging(self, suffix: str = "") -> Iterator[Path]:
        """Create a temporary path on the store's own file system; a file there is removed afterward."""
        folder = self.root / "staging"
        with named_failures(folder):
            folder.mkdir(parents=True, exist_ok=True)
            fd, name = tempfile.mkstemp(suffix=suffix, dir=folder)
            os.close(fd)
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def put_file(self, path: Path) -> Blob:
        """Move a finished local file into the store; the caller must not use `path` afterward."""
        with named_failures(path), path.open("rb") as stream:
            os.fchmod(stream.fileno(), 0o444)
            before = identity(os.fstat(stream.fileno()))
            blob = hash_stream(stream)
            os.fsync(stream.fileno())
            unchanged = identity(os.fstat(stream.fileno())) == before
        self.written, self.written_bytes = self.written + 1, self.written_bytes + blob.bytes
        target = self.path(blob)
        with named_failures(target):
            if self._sound(blob) and not is_old(target.stat().st_mtime):
                path.unlink()
                return blob
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.root / "lock") if target.exists() else nullcontext():  # see `remove_old`
                path.replace(target)
            sync_directory(target.parent)
            if unchanged:
                remember(target, blob)
        return blob

    def _sound(self, blob: Blob) -> bool:
        """Return True if the store has the blob with the right bytes; otherwise the caller writes it again."""
        if not self.has(blob):
            return False
        try:
            verify_once(self.path(blob), blob)
        except (IntegrityError, FileNotFoundError):
            return False
        return True

    def put_bytes(self, data: bytes) -> Blob:
        """Store a small blob."""
        with self.staging() as path:
            with named_failures(path):
                path.write_bytes(data)
            return self.put_file(path)

    def scratch(self, name: str) -> Path:
        """Return the path of a temporary file with its own name, written by one task and read by others."""
        return self.root / "staging" / name

    def keep_scratch(self, path: Path, name: str) -> None:
        """Move a finished temporary file to its scratch name, so that other tasks can read it."""
        path.replace(self.scratch(name))

    def has_scratch(self, name: str, size: int) -> bool:
        """Return True if the scratch file exists with this length."""
        path = self.scratch(name)
        return path.exists() and path.stat().st_size == size

    def open_scratch(self, name: str, blob: Blob) -> Path:
        """Return the path of a scratch file for reading; call `has_scratch` first."""
        return self.scratch(name)

    def remove_scratch(self, name: str) -> None:
        """Remove a scratch file; a missing file is not an error."""
        self.scratch(name).unlink(missing_ok=True)

    def open_path(self, blob: Blob) -> Path:
        """Return the path of a blob for reading. Its first reader on this machine compares its SHA-256.

        Raises:
            MissingError: the blob is missing.
            IntegrityError: its length or bytes differ from the record.
        """
        path = self.located(blob)
        self.opened += 1
        self.checked += verify_once(path, blob)
        return path

    def located(self, blob: Blob) -> Path:
        """Return the path of a blob that the store has with its recorded length; no byte is read.

        Raises:
            MissingError, IntegrityError: the blob is missing or has another length.
        """
        path = self.path(blob)
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise MissingError(
                f"blob {blob.md5} is missing from the store {self.root}",
                expected=f"{blob.bytes} bytes with SHA-256 {blob.sha256}",
                remedy="restore it from a backup, or rerun the stage, whose record is now invalid",
            ) from error
        if size != blob.bytes:
            raise IntegrityError(
                f"{path} is truncated",
                found=f"{size} bytes",
                expected=f"{blob.bytes} bytes",
                remedy="delete the file and run the same command again",
            )
        return path

    def verify(self, blob: Blob) -> None:
        """Read the whole blob and compare its SHA-256.

        Raises:
            MissingError, IntegrityError: the blob is absent or its bytes have changed.
        """
        self.opened += 1
        require_unchanged(self.located(blob), blob)

    def read_bytes(self, blob: Blob) -> bytes:
        """Return a small blob's verified bytes."""
        self.opened += 1
        chunks: list[bytes] = []
        require_unchanged(self.located(blob), blob, chunks.append)
        return b"".join(chunks)


def hash_stream(stream: IO[bytes]) -> Blob:
    """Return MD5, SHA-256 and length of a binary stream, read once."""
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    while chunk := stream.read(CHUNK_BYTES):
        md5.update(chunk)
        sha256.update(chunk)
        size += len(chunk)
    return Blob(md5=md5.hexdigest(), sha256=sha256.hexdigest(), bytes=size)


# Comparison of blobs with their SHA-256: at each read, or once per machine.
#
# The first reader of a blob on a machine reads it whole. The compared file is remembered by device, inode, length and
# times of change, in a private folder out of reach of other writers of the workspace; a rewritten, replaced or touched
# file is compared again. The processes of a machine share this cache; losing it only costs hashing. The oldest entries
# are evicted first.
#
# A change on the disk that leaves the inode unchanged is found by `Store.verify` and `plinth verify`, which ignore the
# cache.

CHUNK_BYTES = 1 << 20
#: Maximum remembered files: about 40 MB.
MOST_FILES = 500_000
#: Maximum entries in the memory of one process.
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
    """Compare a blob's SHA-256 unless this file was compared on this machine before; return True if it was read now.

    Concurrent processes wait for the first one.

    Raises:
        IntegrityError: the file has changed.
        WorkspaceError: the folder of the database of verified files is not private.
    """
    if known(path, blob):
        return False
    with atomic.locked(private.folder(FOLDER) / "locks" / blob.sha256[:3]):
        if known(path, blob):
            return False
        before = _file(path, blob)
        require_unchanged(path, blob)
        if _file(path, blob) == before:
            _memory().add(before)
    return True


def known(path: Path, blob: Blob) -> bool:
    """Return True if this file was compared with the blob's digest before."""
    return _memory().has(_file(path, blob))


def remember(path: Path, blob: Blob) -> None:
    """Record that the file has the blob's digest; for callers that just wrote and hashed it."""
    _memory().add(_file(path, blob))


def identity(found: os.stat_result) -> tuple[int, ...]:
    """Return values that change when a file is written, replaced or touched."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _file(path: Path, blob: Blob) -> bytes:
    """Return the identity of a file and its verified digest as 16 bytes."""
    text = f"{blob.sha256} {identity(path.stat())}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class _Memory:
    """Database of verified files, shared by the processes of a machine."""

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
            with suppress(sqlite3.Error), self._connection:  # a busy or full disk only costs hashing
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
            except sqlite3.DatabaseError:  # a damaged cache is recreated
                self._path.unlink(missing_ok=True)
        return None


def _memory() -> _Memory:
    return _memory_of(os.getpid(), os.environ.get(private.VARIABLE), os.environ.get("HOME"))


@lru_cache(maxsize=4)
def _memory_of(process: int, *places: str | None) -> _Memory:
    """Return the database of verified files for a process. A child must not use its parent's connection."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"  # machines may share a home
    return _Memory(private.folder(FOLDER) / f"{host}.sqlite")
