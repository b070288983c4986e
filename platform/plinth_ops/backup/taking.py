"""Backup of a workspace in use, with consistent copies of its databases. An interrupted backup can be continued."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from plinth import processes
from plinth.compute.progress import Progress, metered
from plinth.errors import IntegrityError, MissingError, SignatureError, StorageError
from plinth.records import Blob, Manifest
from plinth.storage import off_limits
from plinth.storage.state import State
from plinth.storage.uris import read_file
from plinth.storage.workspace import Workspace
from plinth.trust import dsse
from plinth.trust.root import Trust
from plinth_ops.backup import snapshot
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

# Consistent copies of databases in use, and their restore: SQLite by its online backup, PostgreSQL by `pg_dump` of an
# exported snapshot, in which the rows are counted as well.

SQLITE, POSTGRES = "sqlite", "postgres"
TIMEOUT_S: Final = 3600


def copy_sqlite(source: Path, target: Path) -> dict[str, int]:
    """Make a consistent copy of an SQLite database; return the number of rows in each table.

    Raises:
        StorageError: the database cannot be read.
    """
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as found,
            closing(sqlite3.connect(target)) as made,
        ):
            found.backup(made)
        return rows_of_sqlite(target)
    except sqlite3.Error as error:
        raise StorageError(f"cannot copy the database {source}", found=error) from error


def rows_of_sqlite(path: Path) -> dict[str, int]:
    """Return the number of rows in each table of an SQLite database.

    Raises:
        IntegrityError: the database file is damaged.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            verdict = database.execute("PRAGMA integrity_check").fetchone()[0]
            names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
            tables = [name for (name,) in database.execute(names)]
            found = {name: int(database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]) for name in tables}
        except sqlite3.DatabaseError as error:
            raise IntegrityError(f"the database {path} is damaged", found=error) from error
    if verdict != "ok":
        raise IntegrityError(f"the database {path} is damaged", found=verdict)
    return found


def dump_postgres(url: str, target: Path) -> dict[str, int]:
    """Dump a PostgreSQL database. Return the number of rows in each table, counted in the transaction of the dump.

    Raises:
        StorageError: the database cannot be reached, or `pg_dump` fails.
        MissingError: `pg_dump` is not installed.
    """
    with _connected(url) as connection:
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        cursor = connection.cursor()
        cursor.execute("SELECT pg_export_snapshot()")
        exported = cursor.fetchone()[0]
        found = _rows(cursor)
        _run(
            "pg_dump", "--format=custom", "--no-owner", f"--snapshot={exported}", f"--file={target}", f"--dbname={url}"
        )
    return found


def restore_postgres(url: str, dump: Path) -> dict[str, int]:
    """Restore a dump to an empty PostgreSQL database; return the number of rows in each table.

    Raises:
        StorageError: the database is not empty, cannot be reached, or rejects the dump, which is then rolled back.
    """
    with _connected(url) as connection:
        if found := _rows(connection.cursor()):
            raise StorageError(
                f"the database {_named_databases(url)} is not empty",
                found=", ".join(sorted(found)[:5]),
                expected="an empty database",
                remedy="create a new database for the restored installation",
            )
    _run("pg_restore", "--no-owner", "--single-transaction", "--exit-on-error", f"--dbname={url}", str(dump))
    with _connected(url) as connection:
        return _rows(connection.cursor())


def differences(found: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    """Return a sentence for each table whose number of rows is not the expected number."""
    names = sorted(found.keys() | expected.keys())
    return [
        f"{name}: {found.get(name)} rows, expected {expected.get(name)}"
        for name in names
        if found.get(name) != expected.get(name)
    ]


def _named_databases(url: str) -> str:
    """Return a database URL without credentials."""
    return re.sub("//[^@/]*@", "//", url)


def _rows(cursor: Any) -> dict[str, int]:
    cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY table_name")
    found = {}
    for (name,) in cursor.fetchall():
        cursor.execute(f'SELECT count(*) FROM "{name}"')
        found[name] = int(cursor.fetchone()[0])
    return found


@contextmanager
def _connected(url: str) -> Iterator[Any]:
    try:
        driver = importlib.import_module("psycopg2")
    except ImportError as error:
        raise MissingError(
            "the PostgreSQL driver is not installed", found=error, remedy="pip install 'plinth[postgres]'"
        ) from error
    try:
        with closing(driver.connect(url)) as connection:
            yield connection
    except driver.Error as error:
        raise StorageError(f"cannot copy the database {_named_databases(url)}", found=str(error).strip()) from error


def _run(name: str, *words: str) -> None:
    program = shutil.which(name)
    if program is None:
        raise MissingError(
            f"no {name} on this machine", remedy="install PostgreSQL's client (Debian: postgresql-client)"
        )
    done = processes.run([program, *words], *processes.STORES, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise StorageError(f"{name} failed", found=done.stderr.strip()[-1000:])


Blobs = Literal["needed", "all"]
#: Files up to this size are searched for private keys in PEM, which stop a backup.
KEY, KEY_BYTES = b"PRIVATE KEY-----", 1 << 16
#: Record of the release log, or anchor of a head (`plinth.trust.log_anchors`), with its number.
_RECORD: Final = re.compile(r"releases/(?:anchors/)?(\d+)(-[0-9a-f]+)?\.json")
PIECE_BYTES: Final = 1 << 20


class DatabaseSource(NamedTuple):
    """Database of an installation: an SQLite file in the workspace or a PostgreSQL URL."""

    name: str
    place: str

    @property
    def kind(self) -> str:
        return POSTGRES if self.place.startswith("postgres") else SQLITE


def take(
    state: State, archive: BackupArchive, sources: Iterable[DatabaseSource], blobs: Blobs, progress: Progress
) -> tuple[str, BackupSnapshot]:
    """Back up a workspace; return the name of the backup and its record.

    Args:
        blobs: `needed` copies only blobs that cannot be rebuilt; `all` copies every blob in a manifest.

    Raises:
        SignatureError: a file to copy contains a private key, or no root of trust is pinned.
        WorkspaceError: a link leads out of the workspace, or the path to copy is not a regular file.
        IntegrityError: a blob does not match its manifest.
        StorageError: a file cannot be read, or the archive cannot be read or written.
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
        at=datetime.now(UTC).isoformat(timespec="microseconds"),  # backup names sort by it
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
    """Yield the backup entries, except release records and anchors newer than the copied head of the release log.

    One record after the head is kept, because a record is written before the head that names it.
    """
    head = next((each for each in entries if each.path == HEAD), None)
    number = _named(b"".join(archive.content(head.sha256, head.bytes, HEAD))) if head else 0
    for each in entries:
        record = _RECORD.fullmatch(each.path)
        if record is None or int(record[1]) <= number + (record[2] is None):
            yield each


def _named(head: bytes) -> int:
    """Return the number of the newest release record, which the head of the log names."""
    try:
        return int(dsse.unverified(json.loads(head), HEAD)["predicate"]["number"])
    except (ValueError, KeyError, TypeError) as error:
        raise SignatureError(
            f"{HEAD} is not a log head", found=repr(error), remedy="restore releases/ from an earlier backup"
        ) from error


def _group(
    archive: BackupArchive, workspace: Workspace, group: InventoryGroup, scratch: Path, progress: Progress
) -> Iterator[BackupEntry]:
    """Copy the files of a group. If a checkpoint's file vanishes during the copy, the whole checkpoint is excluded.

    Raises:
        MissingError: a file vanished that should never be deleted.
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
    """Copy one file to the archive. A file that is still being written is copied up to its current end."""
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
            f"the workspace contains a private key: {path}",
            expected="private keys outside the workspace, so that they are never backed up",
            remedy="move it to the trust folder (`plinth keys show`), and replace it if others could read it",
        )
    archive.keep(_pieces(copy), digest.hexdigest(), size, path)
    return BackupEntry(path=path, group=group.name, sha256=digest.hexdigest(), bytes=size)


def _own_bytes(workspace: Workspace, path: str) -> Iterator[bytes]:
    """Yield the bytes of a file in the workspace's folder.

    Raises:
        WorkspaceError: the path is a link out of the workspace, a pipe, a device, or a hard link to a key.
        StorageError: the file cannot be read.
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
    if source.kind == POSTGRES:
        rows, path = dump_postgres(source.place, copy), ""
    else:
        rows, path = copy_sqlite(snapshot.own(workspace, source.place), copy), source.place
    with copy.open("rb") as stream:
        digest, size = hashlib.file_digest(stream, "sha256").hexdigest(), copy.stat().st_size
    archive.keep(_pieces(copy), digest, size, f"database {source.name}")
    return DatabaseCopy(name=source.name, kind=source.kind, path=path, sha256=digest, bytes=size, rows=rows)


def _blobs(
    archive: BackupArchive, state: State, blobs: Blobs, progress: Progress
) -> tuple[tuple[Blob, ...], tuple[Blob, ...]]:
    """Copy the blobs that manifests name. Return the copied blobs, and the blobs that are listed without a copy."""
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
        except MissingError:  # belongs to an older snapshot or another machine's cache
            listed[md5] = blob
            continue
        there[md5] = blob
    missing = {md5: blob for md5, blob in listed.items() if md5 not in there}
    return tuple(there.values()), tuple(blob for _, blob in sorted(missing.items()))


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            yield piece
