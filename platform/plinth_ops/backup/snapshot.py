"""Contents of a backup, the record of one backup, and the archive of all backups in one folder or bucket.

A process that changes the workspace writes content before the pointers to this content: first blobs, then records and
manifests, then references. A record of a signed log is written before the head that names the record. A backup copies
pointers first, then content. Content is never removed, therefore everything that a copied pointer names still exists
when the content is copied. Content that is added during the backup may be copied without a pointer; an interrupted
process leaves the same state. The release log may be at most one record longer than its head; later records are
excluded. Each database is copied in its own transaction, because no database refers to another.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from plinth import fingerprint
from plinth.errors import IntegrityError, MissingError, StorageError, WorkspaceError
from plinth.records import Blob, Frozen
from plinth.storage.atomic import refused
from plinth.storage.uris import DigestWriter, WrittenFile, read_file, remove_file, sizes, write_file
from plinth.storage.workspace import Workspace

#: Folders that a shared workspace keeps in its bucket.
SHARED: Final = ("store", "records", "manifests", "refs", "pins", "exclusions")
#: Head of the release history, which names the newest record of every log.
HEAD: Final = "releases/head"
LOGS: Final = (
    *("releases", "taint", "feed", "consumers", "logins", "audit", "providers", "exclusions", "policies"),
    *("approvals", "attestations", "trust", "papers", "trials", "reviews", "takedown"),
    *("incidents", "check-waivers", "gamedays", "qualifications"),
)
#: Assets whose blobs cannot be rebuilt, or only by training again: fetched documents and checkpoints.
KEPT_ASSETS: Final = re.compile(r".*/sources|.*/documents|lists/.*|run|checkpoint|models/.*|initial.*")
_LEFT_OUT: Final = re.compile(
    r".*\.lock|.*/lock|.*\.tmp|runs/[^/]+/(staging|writers|profiles|handle\.json)(/.*)?|.*/server\.(json|log)"
)
#: References of experiment arms, stored where the references of the workspace are.
_BRANCH: Final = re.compile(r"experiments/.+/refs/")
_COMMIT: Final = re.compile(r"(runs/[^/]+/checkpoints/step-\d+)\.json")


#: Folders that may be links to another disk.
_ELSEWHERE: Final = ("runs", "models", "mlflow", "mlflow/artifacts", "dagster")


class InventoryGroup(NamedTuple):
    """Group of folders or files that are backed up together."""

    name: str
    places: tuple[str, ...]


GROUPS: Final = (
    InventoryGroup("pointers", (HEAD, "refs", "experiments", "pins")),
    InventoryGroup("logs", LOGS),
    InventoryGroup("runs", ("runs", "models", "budget", "costs", "recipe.json", "assets.jsonl")),
    InventoryGroup("records", ("manifests", "records")),
    InventoryGroup("artifacts", ("mlflow/artifacts",)),
)


def location(workspace: Workspace, path: str) -> str:
    """Return the URL of a workspace file if it is in the workspace's bucket, otherwise its path on this machine."""
    shared = workspace.uri and (path.partition("/")[0] in SHARED or _BRANCH.match(path))
    return f"{workspace.uri}/{path}" if shared else str(workspace.root / path)


def own(workspace: Workspace, path: str) -> Path:
    """Return the resolved path of a file in the workspace's folder.

    Raises:
        WorkspaceError: a link leads out of the workspace.
    """
    real = Path(os.path.realpath(workspace.root / path))
    if any(real.is_relative_to(os.path.realpath(workspace.root / one)) for one in ("", *_ELSEWHERE)):
        return real
    raise not_carried(path, f"a link to {real}")


def not_carried(path: str, found: str) -> WorkspaceError:
    """Return the error for a file that cannot be backed up, such as a pipe or a link out of the workspace."""
    return refused(f"{path} cannot be backed up", found)


def files(workspace: Workspace, group: InventoryGroup) -> Iterator[str]:
    """Yield the paths of a group's files, relative to the workspace.

    Links to folders of the workspace are excluded, because the files in these folders are listed by their own paths.
    The commit record of a checkpoint is excluded if no file of the checkpoint was listed.

    Raises:
        WorkspaceError: a link leads to a folder outside the workspace.
        StorageError: a folder or bucket cannot be listed.
    """
    found: list[str] = []
    for place in group.places:
        where = location(workspace, place)
        if "://" not in where and Path(where).is_file():
            found.append(place)
        else:
            found += [f"{place}/{name}" for name in sizes(where)]
    if workspace.uri and "experiments" in group.places:
        found += [f"experiments/{name}" for name in sizes(f"{workspace.uri}/experiments")]
    known = {path.rpartition("/")[0] for path in found}
    for path in found:
        commit = _COMMIT.fullmatch(path)
        if (path == HEAD and group.name != "pointers") or _LEFT_OUT.fullmatch(path):
            continue
        if os.path.isdir(location(workspace, path)) and own(workspace, path):
            continue
        if commit is None or any(folder.startswith(commit[1]) for folder in known):
            yield path


_NAME: Final = re.compile(r"\d{8}T\d{6}(?:\.\d{6})?Z-([0-9a-f]{64})\.json")


class BackupEntry(Frozen):
    """File in a backup: its path in the workspace, group, digest and size."""

    path: str
    group: str
    sha256: str
    bytes: int


class DatabaseCopy(Frozen):
    """Consistent copy of a database: its dump and the row count of each table."""

    name: str
    kind: str
    path: str
    sha256: str
    bytes: int
    rows: Mapping[str, int]


class BackupSnapshot(Frozen):
    """Record of one backup. `missing` lists blobs that are not in the backup because `plinth run` can rebuild them."""

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
    """Archive of backups in a folder or at a URI."""

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")
        self._known: dict[str, int] | None = None

    def has(self, sha256: str, size: int) -> bool:
        """Return True if the archive has content with this digest and size. The archive is listed on the first call
        only."""
        if self._known is None:
            self._known = sizes(f"{self.place}/objects")
        return self._known.get(_object(sha256)) == size

    def keep(self, content: Iterator[bytes], sha256: str, size: int, what: str) -> bool:
        """Store content under its digest unless the archive already has it. Return True if the content was written.

        Raises:
            IntegrityError: the content does not match `sha256`; it is not stored.
            StorageError: the archive cannot be written.
        """
        if self.has(sha256, size):
            return False

        def write(stream: DigestWriter) -> None:
            for piece in content:
                stream.write(piece)

        where = self._where(sha256)
        written = write_file(where, write)
        if written != WrittenFile(bytes=size, sha256=sha256):
            with suppress(StorageError):  # the backup role may lack the permission to delete
                remove_file(where)
            raise IntegrityError(
                f"{what} does not match its digest",
                found=f"SHA-256 {written.sha256}, {written.bytes} bytes",
                expected=f"{sha256}, {size} bytes",
                remedy="rebuild the blob with `plinth run` if possible, then back up again",
            )
        assert self._known is not None
        self._known[_object(sha256)] = size
        return True

    def content(self, sha256: str, size: int, what: str) -> Iterator[bytes]:
        """Yield stored content in pieces and verify its digest.

        Raises:
            IntegrityError: the stored content is missing, truncated or changed.
        """
        if not self.has(sha256, size):
            raise IntegrityError(
                f"the backup is incomplete: the content of {what} is missing or has the wrong length",
                found=f"no {self._where(sha256)} with {size} bytes",
                remedy="restore an earlier backup (`plinth ops backup list PLACE`); check who can write to PLACE",
            )
        digest = hashlib.sha256()
        for piece in read_file(self._where(sha256)):
            digest.update(piece)
            yield piece
        if digest.hexdigest() != sha256:
            raise IntegrityError(
                f"the backup was changed: the content of {what} does not match its digest",
                found=f"SHA-256 {digest.hexdigest()} in {self._where(sha256)}",
                expected=sha256,
                remedy="restore an earlier backup (`plinth ops backup list PLACE`); check who can write to PLACE",
            )

    def commit(self, snapshot: BackupSnapshot) -> str:
        """Write the record of a backup, after all its content; return the name of the backup."""
        data = fingerprint.canonical(snapshot)
        stamp = re.sub(r"[-:]|\+00:00", "", snapshot.at) + "Z"
        name = f"{stamp}-{hashlib.sha256(data).hexdigest()}.json"
        write_file(f"{self.place}/snapshots/{name}", lambda stream: stream.write(data))
        return name

    def names(self) -> list[str]:
        """Return the names of all backups, oldest first.

        Raises:
            MissingError: there is no backup.
        """
        found = sorted(name for name in sizes(f"{self.place}/snapshots") if _NAME.fullmatch(name))
        if not found:
            raise MissingError(f"no backup at {self.place}", remedy=f"plinth ops backup to {self.place}")
        return found

    def named(self, name: str = "") -> str:
        """Return the full name of the backup with this prefix, or of the newest backup if no prefix is given.

        Raises:
            MissingError: no name or several names match.
        """
        matching = [each for each in self.names() if each.startswith(name)]
        if not matching or (name and len(matching) > 1):
            raise MissingError(f"{len(matching)} backups at {self.place} have the prefix {name!r}", expected="one")
        return matching[-1]

    def read(self, name: str = "") -> BackupSnapshot:
        """Read the record of a backup by name or prefix. If `name` is empty, read the record of the newest backup.

        Raises:
            MissingError, IntegrityError: there is no such backup, or its record was changed.
        """
        full = self.named(name)
        where = f"{self.place}/snapshots/{full}"
        data = b"".join(read_file(where))
        found, wanted = hashlib.sha256(data).hexdigest(), full.partition("-")[2].removesuffix(".json")
        if found != wanted:
            raise IntegrityError(f"the backup record {where} was changed", found=f"SHA-256 {found}", expected=wanted)
        try:
            return BackupSnapshot.model_validate_json(data)
        except ValidationError as error:
            raise IntegrityError(f"{where} is not a backup record", found=error) from error

    def _where(self, sha256: str) -> str:
        return f"{self.place}/objects/{_object(sha256)}"


def _object(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256}"
