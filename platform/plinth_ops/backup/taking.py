"""Take a backup of a workspace while others write; killed anywhere, the same command goes on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

from plinth.compute.progress import Progress, metered
from plinth.errors import MissingError, SignatureError, StorageError
from plinth.records import Blob, Manifest
from plinth.storage import off_limits
from plinth.storage.state import State
from plinth.storage.uris import read_file
from plinth.storage.workspace import Workspace
from plinth.trust import dsse
from plinth.trust.root import Trust
from plinth_ops.backup import databases, snapshot
from plinth_ops.backup.snapshot import (
    GROUPS,
    HEAD,
    KEPT_ASSETS,
    BackupArchive,
    BackupEntry,
    BackupSnapshot,
    DatabaseCopy,
    InventoryGroup,
)

Blobs = Literal["needed", "all"]
#: A private key in PEM, in any file up to this length, stops a backup.
KEY, KEY_BYTES = b"PRIVATE KEY-----", 1 << 16
_RECORD: Final = re.compile(r"releases/(\d+)\.json")
PIECE_BYTES: Final = 1 << 20


class DatabaseSource(NamedTuple):
    """A database of an installation: a file of SQLite in the workspace, or a URL of PostgreSQL."""

    name: str
    place: str

    @property
    def kind(self) -> str:
        return databases.POSTGRES if self.place.startswith("postgres") else databases.SQLITE


def take(
    state: State, archive: BackupArchive, sources: Iterable[DatabaseSource], blobs: Blobs, progress: Progress
) -> tuple[str, BackupSnapshot]:
    """Back up a workspace; returns the name of the backup and its record.

    Args:
        blobs: `needed` copies what cannot be made again, `all` every blob that a manifest names.

    Raises:
        SignatureError: a private key lies among what would be copied; no root of trust is pinned.
        WorkspaceError: a link among it leads elsewhere, or something is no plain file.
        IntegrityError: a blob that is copied is not what its manifest says.
        StorageError: something cannot be read or written.
    """
    trust = Trust.newest(state.workspace)
    with tempfile.TemporaryDirectory(prefix="plinth-backup-") as name:
        scratch = Path(name)
        wanted = tuple(sources)
        each_source = metered(progress, "databases", wanted, len(wanted))
        copies = tuple(_database(archive, state.workspace, source, scratch) for source in each_source)
        found = [entry for group in GROUPS for entry in _group(archive, state.workspace, group, scratch, progress)]
        entries = list(_not_outgrown(archive, found))
        kept, missing = _blobs(archive, state, blobs, progress)
    snapshot = BackupSnapshot(
        at=datetime.now(UTC).isoformat(timespec="microseconds"),  # names of backups sort by it
        workspace=state.workspace.uri or str(state.workspace.root),
        root=trust.root.name,
        root_version=trust.root.version,
        entries=tuple(sorted(entries, key=lambda each: each.path)),
        databases=copies,
        blobs=kept,
        missing=missing,
        counts=dict(Counter(each.group for each in entries)) | {"blobs": len(kept), "missing": len(missing)},
    )
    return archive.commit(snapshot), snapshot


def _not_outgrown(archive: BackupArchive, entries: list[BackupEntry]) -> Iterator[BackupEntry]:
    """Entries without release records that were made since their head was copied: a log may be one longer, no more."""
    head = next((each for each in entries if each.path == HEAD), None)
    number = _named(b"".join(archive.content(head.sha256, head.bytes, HEAD))) if head else 0
    for each in entries:
        record = _RECORD.fullmatch(each.path)
        if record is None or int(record[1]) <= number + 1:
            yield each


def _named(head: bytes) -> int:
    """The record that a head names."""
    try:
        return int(dsse.unverified(json.loads(head), HEAD)["predicate"]["number"])
    except (ValueError, KeyError, TypeError) as error:
        raise SignatureError(
            f"{HEAD} is not the head of a log", found=repr(error), remedy="restore releases/ from an earlier backup"
        ) from error


def _group(
    archive: BackupArchive, workspace: Workspace, group: InventoryGroup, scratch: Path, progress: Progress
) -> Iterator[BackupEntry]:
    """Copy the files of a group. What vanishes meanwhile takes its checkpoint with it.

    Raises:
        MissingError: a file has vanished that nobody deletes.
    """
    made, gone = [], set()
    for path in metered(progress, group.name, snapshot.files(workspace, group), 0):
        try:
            made.append(_file(archive, workspace, group, path, scratch))
        except MissingError:
            if group in GROUPS[:2] and not path.startswith("pins/"):  # `plinth ops gc unpin` deletes one
                raise
            gone.add(path.partition("/step-")[0] + "/step-" + path.partition("/step-")[2].partition("/")[0])
    yield from (each for each in made if not any(each.path.startswith(one) for one in gone))


def _file(archive: BackupArchive, workspace: Workspace, group: InventoryGroup, path: str, scratch: Path) -> BackupEntry:
    """Keep one file as it is now; one that is being appended to, up to where it ends now."""
    where, copy = snapshot.location(workspace, path), scratch / "file"
    digest, size = hashlib.sha256(), 0
    try:
        with copy.open("wb") as stream:
            for piece in read_file(where) if "://" in where else _own_bytes(workspace, path):
                digest.update(piece)
                size += stream.write(piece)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise MissingError(f"{where} has vanished") from error
        raise
    if size <= KEY_BYTES and KEY in copy.read_bytes():
        raise SignatureError(
            f"a private key lies in the workspace: {path}",
            expected="private keys outside it, in no backup",
            remedy="move it to the trust folder (`plinth keys show`), and replace it if others could read it",
        )
    archive.keep(_pieces(copy), digest.hexdigest(), size, path)
    return BackupEntry(path=path, group=group.name, sha256=digest.hexdigest(), bytes=size)


def _own_bytes(workspace: Workspace, path: str) -> Iterator[bytes]:
    """The bytes of a file in the workspace's folder.

    Raises:
        WorkspaceError: a link leads elsewhere; it is a pipe or a device; it is a key or a credential by another name.
        StorageError: it cannot be read.
    """
    where = snapshot.own(workspace, path)
    try:
        fd = os.open(where, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"cannot read {where}", found=error) from error
    with os.fdopen(fd, "rb") as stream:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise snapshot.not_carried(path, "a pipe or a device")
        if status.st_nlink > 1 and off_limits.current().has_inode(status):
            raise snapshot.not_carried(path, "a file of the trust folder, or a key or credential of another program")
        while piece := stream.read(PIECE_BYTES):
            yield piece


def _database(archive: BackupArchive, workspace: Workspace, source: DatabaseSource, scratch: Path) -> DatabaseCopy:
    copy = scratch / "database"
    copy.unlink(missing_ok=True)
    if source.kind == databases.POSTGRES:
        rows, path = databases.dump_postgres(source.place, copy), ""
    else:
        rows, path = databases.copy_sqlite(snapshot.own(workspace, source.place), copy), source.place
    digest, size = _digest(copy), copy.stat().st_size
    archive.keep(_pieces(copy), digest, size, f"database {source.name}")
    return DatabaseCopy(name=source.name, kind=source.kind, path=path, sha256=digest, bytes=size, rows=rows)


def _blobs(
    archive: BackupArchive, state: State, blobs: Blobs, progress: Progress
) -> tuple[tuple[Blob, ...], tuple[Blob, ...]]:
    """Copy blobs that manifests name. Returns those that are kept, and those that are listed only."""
    kept: dict[str, Blob] = {}
    listed: dict[str, Blob] = {}
    for _, data in state.refs.raw(state.refs.digests()):
        manifest = Manifest.parse(data)
        wanted = kept if blobs == "all" or KEPT_ASSETS.fullmatch(manifest.asset) else listed
        wanted.update({part.blob.md5: part.blob for part in manifest.parts})
    there = {}
    for md5, blob in metered(progress, "blobs", sorted(kept.items()), len(kept)):
        if archive.has(blob.sha256, blob.bytes):
            there[md5] = blob
            continue
        try:
            archive.keep(_pieces(state.store.open_path(blob)), blob.sha256, blob.bytes, f"blob {md5}")
        except MissingError:  # of an older snapshot, or of another machine's cache
            listed[md5] = blob
            continue
        there[md5] = blob
    missing = {md5: blob for md5, blob in listed.items() if md5 not in there}
    return tuple(there.values()), tuple(blob for _, blob in sorted(missing.items()))


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            yield piece


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(path):
        digest.update(piece)
    return digest.hexdigest()
