"""Restore of a backup to an empty workspace and to empty databases, and the test of the restore."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from plinth.compute.context import Context
from plinth.compute.progress import Progress, metered
from plinth.errors import IntegrityError, MissingError, PlinthError, WorkspaceError
from plinth.operation import spending
from plinth.records import Blob
from plinth.storage.atomic import locked, relative, write_bytes
from plinth.storage.seal import SECRET_FILE
from plinth.storage.uris import DigestWriter, sizes, write_file
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.text import counted
from plinth.trust.root import ROOT_FILE
from plinth.trust.signed_log import SignedLog
from plinth_ops.backup import snapshot, taking
from plinth_ops.backup.snapshot import GROUPS, BackupArchive, BackupSnapshot, DatabaseCopy, files
from plinth_ops.backup.taking import DatabaseSource
from plinth_registry.audit_log import RELEASES, logs_in_head
from plinth_registry.mlflow import server

# Restore order: content first, pointers last. Every byte is compared with its digest.
#
# The target folder appears only when it is complete; after an interruption the same command starts again. For an
# `s3://` prefix, references are written last, so an interrupted restore publishes nothing and the same command
# continues.

#: Suffix of a folder that is being restored.
UNFINISHED: Final = ".restoring"


def restore(
    archive: BackupArchive,
    snapshot: BackupSnapshot,
    target: Workspace,
    urls: Mapping[str, str],
    progress: Progress,
) -> None:
    """Restore a backup to an empty workspace.

    Args:
        target: empty workspace. A shared workspace must have no references and no manifests.
        urls: URLs of empty PostgreSQL databases, by the database's name in the backup.

    Raises:
        WorkspaceError: the target workspace is not empty.
        MissingError: a database of the backup has no URL in `urls`.
        IntegrityError: the backup is incomplete or was changed; the error names the content.
    """
    _require_empty(target)
    if lacking := [each.name for each in snapshot.databases if each.kind == taking.POSTGRES and each.name not in urls]:
        raise MissingError(
            f"no target databases for {', '.join(lacking)}",
            remedy="add empty ones: " + " ".join(f"--database {name}=postgresql://{name}@/NEW" for name in lacking),
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
            expected="an empty target",
            remedy="restore to another workspace, then copy what you need",
        )


def _unfinished(target: Workspace) -> Workspace:
    """Return the workspace to restore to: a temporary folder next to the target, or the target if it is shared."""
    if target.uri:
        target.ensure()
        (target.root / UNFINISHED).touch()
        return target
    target.root.parent.mkdir(parents=True, exist_ok=True)
    if target.root.exists():
        target.root.rmdir()
    place = Workspace(target.root.with_name(target.root.name + UNFINISHED))
    shutil.rmtree(place.root, ignore_errors=True)  # an interrupted restore left the folder
    return place


def _put(archive: BackupArchive, place: Workspace, path: str, sha256: str, size: int, what: str) -> None:
    def write(stream: DigestWriter) -> None:
        for piece in archive.content(sha256, size, what):
            stream.write(piece)

    where = snapshot.location(place, path)
    written = write_file(where, write)
    if written.sha256 != sha256:
        raise IntegrityError(f"the restored {where} differs from the backup", found=written.sha256, expected=sha256)
    if "://" not in where:
        Path(where).chmod(0o444 if path.startswith("store/") else 0o600)


def _blob_path(blob: Blob) -> str:
    return f"store/files/md5/{blob.md5[:2]}/{blob.md5[2:]}"


def _database(archive: BackupArchive, place: Workspace, copy: DatabaseCopy, urls: Mapping[str, str]) -> None:
    path = copy.path if copy.kind == taking.SQLITE else f"tmp/{copy.name}.dump"
    _put(archive, place, relative(path, "a backup").as_posix(), copy.sha256, copy.bytes, f"database {copy.name}")
    where = place.root / path
    if copy.kind == taking.SQLITE:
        found = taking.rows_of_sqlite(where)
    else:
        try:
            found = taking.restore_postgres(urls[copy.name], where)
        finally:
            where.unlink()
    if wrong := taking.differences(found, copy.rows):
        raise IntegrityError(f"the restored database {copy.name} has wrong row counts", found="; ".join(wrong))


# Databases of an installation, and the test of the restore in a scratch folder.
#
# The test restores a backup to a scratch folder with this machine's pinned root and public keys only. It verifies every
# signed log from its first record and every reference with its manifest, and compares row and file counts with the
# backup and with the current workspace.

#: File in the trust folder with the names of backups taken on this machine, one per line.
KNOWN: Final = "backups"


class DrillFinding(NamedTuple):
    """Result of one check of the restore test."""

    what: str
    passed: bool
    found: str


def databases_of(workspace: Workspace) -> Iterator[DatabaseSource]:
    """Yield the databases of an installation: the SQLite or PostgreSQL databases of MLflow, the ledger and Dagster."""
    mlflow, _ = server.stores(workspace.mlflow)
    ledger = spending.ledger_place(workspace, spending.load(workspace))
    for name, place in (("mlflow", mlflow), ("ledger", ledger)):
        if place.startswith("postgresql"):
            yield DatabaseSource(name, "postgresql" + place[place.index("://") :])
        elif (path := Path(place.removeprefix("sqlite:///"))).is_relative_to(workspace.root) and path.exists():
            yield DatabaseSource(name, path.relative_to(workspace.root).as_posix())
    if url := _dagster():
        yield DatabaseSource("dagster", url)
    for path in sorted(workspace.dagster.rglob("*.db")):
        relative = path.relative_to(workspace.root).as_posix()
        yield DatabaseSource(relative, relative)


def remember(workspace: Workspace, name: str) -> None:
    """Record, on this machine, the name of a backup that was taken on this machine. The name contains the record's
    digest."""
    path = workspace.trust_folder / KNOWN
    with locked(path.with_suffix(".lock")):
        write_bytes(path, "".join(f"{one}\n" for one in (*_known(workspace), name)).encode(), mode=0o600)


def drill(workspace: Workspace, archive: BackupArchive, name: str, progress: Progress) -> list[DrillFinding]:
    """Restore a backup to a scratch folder and verify the result.

    Args:
        name: backup name or prefix; if empty, the newest backup.

    Raises:
        IntegrityError: the backup is incomplete or was changed; the error names the content.
    """
    full, snapshot = archive.named(name), archive.read(name)
    findings = [_record(workspace, full)]  # before the trust folder is replaced
    now = {group.name: sum(1 for _ in files(workspace, group)) for group in GROUPS}
    with (
        tempfile.TemporaryDirectory(prefix="plinth-drill-") as scratch,
        _scratch_databases(snapshot, Path(scratch)) as urls,
    ):
        folder = Path(scratch)
        _pin(workspace, folder / "trust")
        with _trusting(folder / "trust"):
            restored = Workspace(folder / "workspace")
            restore(archive, snapshot, restored, urls, progress)
            ctx = Context(restored, progress=progress)
            content = f"{counted(len(snapshot.entries), 'file')}, {counted(len(snapshot.blobs), 'blob')}"
            findings += [DrillFinding("content", True, content)]
            findings += [_log(ctx, log) for log in (RELEASES, *logs_in_head(ctx))]
            findings += [_head(ctx), _references(ctx, snapshot)]
    for copy in snapshot.databases:
        findings.append(DrillFinding(f"database {copy.name}", True, counted(sum(copy.rows.values()), "row")))
    findings.append(_counts(snapshot, now))
    return findings


def _known(workspace: Workspace) -> list[str]:
    try:
        return (workspace.trust_folder / KNOWN).read_text().split()
    except FileNotFoundError:
        return []


def _record(workspace: Workspace, name: str) -> DrillFinding:
    """Check that the backup was taken on this machine.

    Anyone who can write to the archive could add a forged backup.
    """
    known = name in _known(workspace)
    return DrillFinding("record", known, name if known else f"the backup {name} was not taken on this machine")


def _log(ctx: Context, log: SignedLog) -> DrillFinding:
    try:
        return DrillFinding(f"log {log.name}", True, counted(len(log.records(ctx, whole=True)), "record"))
    except PlinthError as error:
        return DrillFinding(f"log {log.name}", False, str(error))


def _head(ctx: Context) -> DrillFinding:
    from plinth_registry import releases

    try:
        records = len(releases.history(ctx, expired=True))
        return DrillFinding("head of the release history", True, counted(records, "record"))
    except PlinthError as error:
        return DrillFinding("head of the release history", False, str(error))


def _references(ctx: Context, snapshot: BackupSnapshot) -> DrillFinding:
    try:
        loaded = [ctx.refs.load(ctx.refs.current(ref.asset).digest) for ref in list(ctx.refs.all())]
    except PlinthError as error:
        return DrillFinding("references", False, str(error))
    wanted = sum(each.path.startswith("refs/") for each in snapshot.entries)
    return DrillFinding(
        "references", len(loaded) == wanted, f"{len(loaded)} of {wanted} references and their manifests are verified"
    )


def _counts(snapshot: BackupSnapshot, now: Mapping[str, int]) -> DrillFinding:
    """Check that no log or record was removed after the backup. The number of logs and records can only grow."""
    growing = ("logs", "records")
    behind = {name: now[name] - snapshot.counts.get(name, 0) for name in now}
    less = [f"{name}: {-behind[name]} fewer now" for name in growing if behind[name] < 0]
    more = ", ".join(f"{count} more in {name}" for name, count in behind.items() if count > 0)
    return DrillFinding("counts", not less, "; ".join(less) or more or "equal to the current workspace")


def _pin(workspace: Workspace, target: Path) -> None:
    """Copy the pinned root and the secret for worker seals, which verification needs, but no signing keys."""
    target.mkdir(mode=0o700)
    for name in (ROOT_FILE, SECRET_FILE):
        with suppress(FileNotFoundError):
            shutil.copy(workspace.trust_folder / name, target / name)
            (target / name).chmod(0o600)


@contextmanager
def _trusting(folder: Path) -> Iterator[None]:
    before = os.environ.get(TRUST_VARIABLE)
    os.environ[TRUST_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[TRUST_VARIABLE]
        else:
            os.environ[TRUST_VARIABLE] = before


@contextmanager
def _scratch_databases(snapshot: BackupSnapshot, folder: Path) -> Iterator[dict[str, str]]:
    """Start a PostgreSQL server for the restore test if the backup has PostgreSQL databases; yield the URL of each
    database."""
    wanted = [copy.name for copy in snapshot.databases if copy.kind == taking.POSTGRES]
    if not wanted:
        yield {}
        return
    from plinth_jobs import installation

    folder.chmod(0o711)
    certificate = installation.make_certificate(folder)
    with installation.postgres(folder, certificate) as settings:
        query = f"sslmode=verify-full&sslrootcert={settings['PGSSLROOTCERT']}&passfile={settings['PGPASSFILE']}"
        host = f"localhost:{settings['PGPORT']}"
        yield {name: f"postgresql://{name}@{host}/{name}?{query}" for name in wanted}


def _dagster() -> str:
    """Return the URL of Dagster's PostgreSQL database, or an empty string if Dagster uses SQLite.

    Raises:
        MissingError: the Dagster settings do not have `postgres_url`.
    """
    import yaml

    from plinth_jobs.instance import settings_file

    storage = (yaml.safe_load(settings_file().read_text()) or {}).get("storage") or {}
    if "postgres" not in storage:
        return ""
    url = storage["postgres"].get("postgres_url")
    if not isinstance(url, str):
        raise MissingError(
            "the Dagster settings have no database URL",
            found=storage["postgres"],
            expected="postgres_url: postgresql+psycopg2://…",
        )
    return "postgresql" + url[url.index("://") :]
