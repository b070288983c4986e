"""Put a backup back into an empty place: content first, pointers last, each byte compared.

A folder appears when it is whole: killed anywhere, nothing shows, and the same command begins anew. Below an `s3://`
prefix references come last, so that a killed restore has published nothing; the same command goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from plinth.compute.progress import Progress, metered
from plinth.errors import IntegrityError, MissingError, WorkspaceError
from plinth.records import Blob
from plinth.storage.safe_path import relative
from plinth.storage.uris import DigestWriter, sizes, write_file
from plinth.storage.workspace import Workspace
from plinth_ops.backup import databases, snapshot
from plinth_ops.backup.snapshot import GROUPS, BackupArchive, BackupSnapshot, DatabaseCopy

#: Behind the name of a folder that is being restored.
UNFINISHED: Final = ".restoring"


def restore(
    archive: BackupArchive,
    snapshot: BackupSnapshot,
    target: Workspace,
    urls: Mapping[str, str],
    progress: Progress,
) -> None:
    """Put a backup back.

    Args:
        target: a workspace with nothing in it; of a shared one, the folder of this machine too.
        urls: databases of PostgreSQL by their names in the backup; each must be empty.

    Raises:
        WorkspaceError: something lies there already.
        MissingError: a database of the backup has no place to go.
        IntegrityError: the backup is torn or was changed; says which content.
    """
    _require_empty(target)
    if lacking := [
        each.name for each in snapshot.databases if each.kind == databases.POSTGRES and each.name not in urls
    ]:
        raise MissingError(
            f"no place for the databases {', '.join(lacking)}",
            remedy="name empty ones: " + " ".join(f"--database {name}=postgresql://{name}@/NEW" for name in lacking),
        )
    place = _unfinished(target)
    for blob in metered(progress, "blobs", snapshot.blobs, len(snapshot.blobs)):
        _put(archive, place, _blob_path(blob), blob.sha256, blob.bytes, f"blob {blob.md5}")
    entries = [entry for group in reversed(GROUPS) for entry in snapshot.entries if entry.group == group.name]
    for entry in metered(progress, "files", entries, len(entries)):
        _put(archive, place, relative(entry.path, "a backup").as_posix(), entry.sha256, entry.bytes, entry.path)
    for copy in metered(progress, "databases", snapshot.databases, len(snapshot.databases)):
        _database(archive, place, copy, urls)
    if target.uri:
        (target.root / UNFINISHED).unlink()
    else:
        place.ensure()
        place.root.replace(target.root)


def _require_empty(target: Workspace) -> None:
    if target.uri:
        found = [name for folder in ("refs", "manifests") for name in sizes(f"{target.uri}/{folder}")]
        found = [] if (target.root / UNFINISHED).exists() else found
    else:
        found = [path.name for path in target.root.iterdir()] if target.root.exists() else []
    if found:
        raise WorkspaceError(
            f"{target.uri or target.root} is not empty",
            found=", ".join(sorted(found)[:5]),
            expected="a place with nothing in it",
            remedy="restore to another place, then move over what is needed",
        )


def _unfinished(target: Workspace) -> Workspace:
    """Where files go until the backup is whole: beside a folder; of a shared workspace, its own place."""
    if target.uri:
        target.ensure()
        (target.root / UNFINISHED).touch()
        return target
    target.root.parent.mkdir(parents=True, exist_ok=True)
    if target.root.exists():
        target.root.rmdir()
    place = Workspace(target.root.with_name(target.root.name + UNFINISHED))
    shutil.rmtree(place.root, ignore_errors=True)  # of a restore that was killed
    return place


def _put(archive: BackupArchive, place: Workspace, path: str, sha256: str, size: int, what: str) -> None:
    def write(stream: DigestWriter) -> None:
        for piece in archive.content(sha256, size, what):
            stream.write(piece)

    where = snapshot.location(place, path)
    written = write_file(where, write)
    if written.sha256 != sha256:
        raise IntegrityError(f"{where} was not written as it is in the backup", found=written.sha256, expected=sha256)
    if "://" not in where:
        Path(where).chmod(0o444 if path.startswith("store/") else 0o600)


def _blob_path(blob: Blob) -> str:
    return f"store/files/md5/{blob.md5[:2]}/{blob.md5[2:]}"


def _database(archive: BackupArchive, place: Workspace, copy: DatabaseCopy, urls: Mapping[str, str]) -> None:
    path = copy.path if copy.kind == databases.SQLITE else f"tmp/{copy.name}.dump"
    _put(archive, place, relative(path, "a backup").as_posix(), copy.sha256, copy.bytes, f"database {copy.name}")
    where = place.root / path
    if copy.kind == databases.SQLITE:
        found = databases.rows_of_sqlite(where)
    else:
        try:
            found = databases.restore_postgres(urls[copy.name], where)
        finally:
            where.unlink()
    if wrong := databases.differences(found, copy.rows):
        raise IntegrityError(f"the database {copy.name} was restored with other rows", found="; ".join(wrong))
