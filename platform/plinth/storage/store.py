"""The content store: blobs by content, in the layout of DVC's cache (`files/md5/ab/cdef…`).

Local work needs no DVC code; trees, remotes and check-outs (see `dvc.py`) go through `dvc-data`, the
one module pinned to it. MD5 is an address only: every blob's SHA-256 travels beside it in manifests.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from plinth.errors import IntegrityError, MissingError
from plinth.records import Blob
from plinth.storage import verified
from plinth.storage.atomic import named_failures, require_no_link, sync_directory
from plinth.storage.locks import locked
from plinth.storage.objects import ObjectFacts, files_below, is_old, unlink_old
from plinth.storage.verified import CHUNK_BYTES, require_unchanged


class Store:
    """Blobs under `root`. Instances are cheap, and each counts what it does; one that is sent to another process is
    opened there."""

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
        """The store as one task uses it: it counts that task, and what it opens stays in place until the task ends."""
        yield Store(self.root)

    def require_folder(self, doing: str) -> None:
        """Refuse what works on the files of a store.

        Raises:
            StorageError: the store is not a folder of this machine.
        """

    def path(self, blob: Blob | str) -> Path:
        """Where a blob lies, whether or not it is there. Accepts a blob or an MD5."""
        md5 = blob if isinstance(blob, str) else blob.md5
        return self.files / md5[:2] / md5[2:]

    def has(self, blob: Blob) -> bool:
        """Whether the blob is there with its recorded length (its bytes are not read)."""
        try:
            return self.path(blob).stat().st_size == blob.bytes
        except FileNotFoundError:
            return False

    def remove(self, blob: Blob) -> None:
        """Remove a blob that nothing refers to; none is fine."""
        with named_failures(self.path(blob)):
            self.path(blob).unlink(missing_ok=True)

    def facts(self) -> Iterator[ObjectFacts]:
        """Every blob, and every directory object of DVC, by its MD5, in no order."""
        require_no_link(self.files.parent, self.files)  # old ones are deleted
        for name, found in files_below(self.files):
            yield ObjectFacts(name.replace("/", ""), found.st_size, found.st_mtime)

    def remove_old(self, md5: str, before: float) -> bool:
        """Remove a blob that was last written before a time; False where it is younger. None is fine."""
        with locked(self.root / "lock"):
            return unlink_old(self.path(md5), before)

    def directory(self, md5: str) -> bytes:
        """A directory object of DVC, by its MD5 with its suffix; empty where there is none."""
        try:
            return self.path(md5).read_bytes()
        except FileNotFoundError:
            return b""

    def has_all(self, blobs: Iterable[Blob]) -> bool:
        """Whether every blob is there."""
        return all(map(self.has, blobs))

    @contextmanager
    def staging(self, suffix: str = "") -> Iterator[Path]:
        """A temporary path on the store's own file system, removed afterwards if still there."""
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
        """Move a finished local file into the store; the caller must not use `path` afterwards."""
        with named_failures(path), path.open("rb") as stream:
            os.fchmod(stream.fileno(), 0o444)
            before = verified.identity(os.fstat(stream.fileno()))
            blob = hash_stream(stream)
            os.fsync(stream.fileno())
            unchanged = verified.identity(os.fstat(stream.fileno())) == before
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
                verified.remember(target, blob)
        return blob

    def _sound(self, blob: Blob) -> bool:
        """Whether the blob is there with its bytes: one that has changed is written again."""
        if not self.has(blob):
            return False
        try:
            verified.verify_once(self.path(blob), blob)
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
        """Where a temporary file with a name of its own lies, which one task writes and others read."""
        return self.root / "staging" / name

    def keep_scratch(self, path: Path, name: str) -> None:
        """Give a finished file its name."""
        path.replace(self.scratch(name))

    def has_scratch(self, name: str, size: int) -> bool:
        """Whether there is such a file, of this length."""
        path = self.scratch(name)
        return path.exists() and path.stat().st_size == size

    def open_scratch(self, name: str, blob: Blob) -> Path:
        """Its path for reading, after `has_scratch`."""
        return self.scratch(name)

    def remove_scratch(self, name: str) -> None:
        """Remove the file; none is fine."""
        self.scratch(name).unlink(missing_ok=True)

    def open_path(self, blob: Blob) -> Path:
        """The path of a blob for reading. Its first reader on this machine compares its SHA-256 (`verified`).

        Raises:
            MissingError: when it is not there.
            IntegrityError: when its length or its bytes differ from the record.
        """
        path = self.located(blob)
        self.opened += 1
        self.checked += verified.verify_once(path, blob)
        return path

    def located(self, blob: Blob) -> Path:
        """The path of a blob that is there with its recorded length; no byte is read.

        Raises:
            MissingError, IntegrityError: when it is not there, or torn.
        """
        path = self.path(blob)
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise MissingError(
                f"blob {blob.md5} is not in the store {self.root}",
                expected=f"{blob.bytes} bytes with SHA-256 {blob.sha256}",
                remedy="pull it from a remote, or run the stage again: its record no longer counts",
            ) from error
        if size != blob.bytes:
            raise IntegrityError(
                f"{path} is torn",
                found=f"{size} bytes",
                expected=f"{blob.bytes} bytes",
                remedy="delete the file and run the same command again",
            )
        return path

    def verify(self, blob: Blob) -> None:
        """Read the whole blob and compare its SHA-256.

        Raises:
            MissingError, IntegrityError: when it is absent or its bytes have changed.
        """
        self.opened += 1
        require_unchanged(self.located(blob), blob)

    def read_bytes(self, blob: Blob) -> bytes:
        """A small blob's bytes: those that were compared."""
        self.opened += 1
        chunks: list[bytes] = []
        require_unchanged(self.located(blob), blob, chunks.append)
        return b"".join(chunks)


def hash_stream(stream: IO[bytes]) -> Blob:
    """MD5, SHA-256 and length of a binary stream, read once."""
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    while chunk := stream.read(CHUNK_BYTES):
        md5.update(chunk)
        sha256.update(chunk)
        size += len(chunk)
    return Blob(md5=md5.hexdigest(), sha256=sha256.hexdigest(), bytes=size)
