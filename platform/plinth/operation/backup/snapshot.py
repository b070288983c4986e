"""The record of one backup, and the archive that keeps the content of all backups at one place."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from pydantic import ValidationError

from plinth import fingerprint
from plinth.errors import IntegrityError, MissingError, StorageError
from plinth.records import Blob, Frozen
from plinth.storage.destination import DigestWriter, WrittenFile, read_file, remove_file, sizes, write_file

_NAME: Final = re.compile(r"\d{8}T\d{6}(?:\.\d{6})?Z-([0-9a-f]{64})\.json")


class BackupEntry(Frozen):
    """A file of a backup: its path in the workspace, its group, its content."""

    path: str
    group: str
    sha256: str
    bytes: int


class DatabaseCopy(Frozen):
    """A database at one moment: its dump, and how many rows each table had."""

    name: str
    kind: str
    path: str
    sha256: str
    bytes: int
    rows: Mapping[str, int]


class BackupSnapshot(Frozen):
    """One backup. `missing` counts blobs that are listed and not kept: `plinth run` makes them again."""

    at: str
    workspace: str
    root: str
    root_version: int
    entries: tuple[BackupEntry, ...]
    databases: tuple[DatabaseCopy, ...]
    blobs: tuple[Blob, ...]
    missing: tuple[Blob, ...]
    counts: Mapping[str, int]


class BackupArchive:
    """Backups at a folder or URI."""

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")
        self._known: dict[str, int] | None = None

    def has(self, sha256: str, size: int) -> bool:
        """Whether content is there with its length; listed once."""
        if self._known is None:
            self._known = sizes(f"{self.place}/objects")
        return self._known.get(_object(sha256)) == size

    def keep(self, content: Iterator[bytes], sha256: str, size: int, what: str) -> bool:
        """Keep content of a known digest, unless it is there. Returns whether it was written.

        Raises:
            IntegrityError: it is other content; nothing of it is kept.
            StorageError: the place cannot be written.
        """
        if self.has(sha256, size):
            return False

        def write(stream: DigestWriter) -> None:
            for piece in content:
                stream.write(piece)

        where = self._where(sha256)
        written = write_file(where, write)
        if written != WrittenFile(bytes=size, sha256=sha256):
            with suppress(StorageError):  # the role that backs up may not delete
                remove_file(where)
            raise IntegrityError(
                f"{what} is not what its digest says",
                found=f"SHA-256 {written.sha256}, {written.bytes} bytes",
                expected=f"{sha256}, {size} bytes",
                remedy="`plinth run` makes what can be made again; then back up again",
            )
        assert self._known is not None
        self._known[_object(sha256)] = size
        return True

    def content(self, sha256: str, size: int, what: str) -> Iterator[bytes]:
        """Kept content in pieces, compared as it passes.

        Raises:
            IntegrityError: it is missing, short, or other content.
        """
        if not self.has(sha256, size):
            raise IntegrityError(
                f"the backup is torn: content of {what} is missing or of another length",
                found=f"no {self._where(sha256)} of {size} bytes",
                remedy="restore an earlier backup (`plinth ops backup list PLACE`), and find out who can write there",
            )
        digest = hashlib.sha256()
        for piece in read_file(self._where(sha256)):
            digest.update(piece)
            yield piece
        if digest.hexdigest() != sha256:
            raise IntegrityError(
                f"the backup was changed: content of {what}",
                found=f"SHA-256 {digest.hexdigest()} in {self._where(sha256)}",
                expected=sha256,
                remedy="restore an earlier backup (`plinth ops backup list PLACE`), and find out who can write there",
            )

    def commit(self, snapshot: BackupSnapshot) -> str:
        """Write the record of a backup, whose content is all there; returns its name."""
        data = fingerprint.canonical(snapshot)
        stamp = re.sub(r"[-:]|\+00:00", "", snapshot.at) + "Z"
        name = f"{stamp}-{hashlib.sha256(data).hexdigest()}.json"
        write_file(f"{self.place}/snapshots/{name}", lambda stream: stream.write(data))
        return name

    def names(self) -> list[str]:
        """Records of backups, oldest first.

        Raises:
            MissingError: there is none.
        """
        found = sorted(name for name in sizes(f"{self.place}/snapshots") if _NAME.fullmatch(name))
        if not found:
            raise MissingError(f"no backup at {self.place}", remedy=f"plinth ops backup to {self.place}")
        return found

    def named(self, name: str = "") -> str:
        """The full name of a backup, by its beginning; the newest by default.

        Raises:
            MissingError: none or several begin so.
        """
        matching = [each for each in self.names() if each.startswith(name)]
        if not matching or (name and len(matching) > 1):
            raise MissingError(f"{len(matching)} backups at {self.place} begin with {name!r}", expected="one")
        return matching[-1]

    def read(self, name: str = "") -> BackupSnapshot:
        """A backup by its name, or the beginning of it; the newest by default.

        Raises:
            MissingError, IntegrityError: there is none of that name, or its record was changed.
        """
        full = self.named(name)
        where = f"{self.place}/snapshots/{full}"
        data = b"".join(read_file(where))
        found, wanted = hashlib.sha256(data).hexdigest(), full.partition("-")[2].removesuffix(".json")
        if found != wanted:
            raise IntegrityError(
                f"the record of a backup was changed: {where}", found=f"SHA-256 {found}", expected=wanted
            )
        try:
            return BackupSnapshot.model_validate_json(data)
        except ValidationError as error:
            raise IntegrityError(f"{where} is no record of a backup", found=error) from error

    def _where(self, sha256: str) -> str:
        return f"{self.place}/objects/{_object(sha256)}"


def _object(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256}"
