"""Backup of everything in a workspace that cannot be rebuilt, with a test of the restore.

    snapshot    contents and order of a backup; the record of one backup; the archive of all backups
    taking      backup of a workspace in use; database dumps and their restore
    drill       restore to an empty workspace; restore test in a scratch folder

    TO/objects/ab/abcd…           content, by SHA-256, shared by all backups at TO
    TO/snapshots/TIME-SHA256.json record of one backup; the file name has the SHA-256 of the record

Private keys, the secret for worker seals and MLflow's accounts are outside the workspace and are never backed up.
Does not belong here: the meaning of signatures (registry).

Also here: the command `plinth ops backup`, which loads the other modules when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth_ops.backup.snapshot import BackupSnapshot

named = click.option("--name", default="", metavar="NAME", help="Backup name or prefix (default: newest).")


@group(
    short_help="Back up a workspace, restore a backup, and test the restore.",
    epilog=examples(
        "plinth ops backup to s3://plinth-backups/corpus",
        "plinth ops backup list s3://plinth-backups/corpus",
        "plinth ops backup drill s3://plinth-backups/corpus",
        "plinth -w restored ops backup restore s3://plinth-backups/corpus",
    ),
)
def backup() -> None:
    """Back up a workspace, restore a backup, and test the restore.

    A backup contains references, records, signed logs, runs with their checkpoints, the databases of Dagster, MLflow
    and the ledger, and blobs that cannot be rebuilt. It never contains private keys.
    """


@backup.command()
@click.argument("place")
@click.option(
    "--blobs",
    type=click.Choice(["needed", "all"]),
    default="needed",
    show_default=True,
    help="`needed`: copy only blobs that cannot be rebuilt (documents, checkpoints). `all`: copy every blob of a "
    "manifest.",
)
@shared
@json_option
def to(settings: Settings, place: str, blobs: str, as_json: bool) -> None:
    """Back up the workspace to PLACE, a folder or s3://bucket/prefix. The workspace can be used during the backup.

    Content of earlier backups at PLACE is not copied again. If interrupted, run the same command again to continue.
    """
    from plinth_ops.backup import drill as backup_drill
    from plinth_ops.backup.snapshot import BackupArchive
    from plinth_ops.backup.taking import take

    ctx = settings.context()
    sources = tuple(backup_drill.databases_of(ctx.workspace))
    kept = "all" if blobs == "all" else "needed"
    name, snapshot = take(ctx, BackupArchive(place), sources, kept, ctx.progress)  # type: ignore[arg-type]
    backup_drill.remember(ctx.workspace, name)
    if as_json:
        return output.emit_json({"name": name, **_facts(snapshot)})
    return output.facts({"backup": name, **_facts(snapshot)})


@backup.command("list")
@click.argument("place")
@json_option
def list_backups(place: str, as_json: bool) -> None:
    """List the backups at PLACE, oldest first."""
    from plinth_ops.backup.snapshot import BackupArchive

    archive = BackupArchive(place)
    rows = [{"name": name, **_facts(archive.read(name))} for name in archive.names()]
    if as_json:
        return output.emit_json(rows)
    return output.table(list(rows[0]), [list(row.values()) for row in rows])


@backup.command()
@click.argument("place")
@named
@click.option(
    "--database",
    "given",
    multiple=True,
    metavar="NAME=URL",
    help="Empty PostgreSQL database to which the backup's database NAME is restored.",
)
@shared
def restore(settings: Settings, place: str, name: str, given: tuple[str, ...]) -> None:
    """Restore a backup from PLACE into the workspace, which must be empty.

    Backups contain no private keys. After the restore, pin the root of trust (`plinth keys pin`) and verify the signed
    logs with `plinth release log --verify`.
    """
    from plinth.compute.progress import for_command
    from plinth.storage.workspace import Workspace
    from plinth_ops.backup import drill
    from plinth_ops.backup.snapshot import BackupArchive

    if wrong := [each for each in given if "=" not in each]:
        raise click.UsageError(f"{wrong[0]!r} is not a database; expected NAME=URL")
    urls = {database: url for database, _, url in (each.partition("=") for each in given)}
    archive, target = BackupArchive(place), Workspace(settings.workspace)
    snapshot = archive.read(name)
    drill.restore(archive, snapshot, target, urls, for_command())
    output.facts({"restored": target.uri or str(target.root), "taken": snapshot.at, **_facts(snapshot)})
    if snapshot.missing:
        output.say(f"{counted(len(snapshot.missing), 'blob')} not copied to the backup; `plinth run` rebuilds them.")


@backup.command("drill")
@click.argument("place")
@named
@shared
@json_option
def drill_command(settings: Settings, place: str, name: str, as_json: bool) -> int:
    """Test a backup at PLACE by restoring it to a scratch folder; exit with code 1 if a check fails.

    The test verifies every signed log from its first record under this machine's pinned root of trust, all references
    with their manifests, and row and file counts. The workspace is not changed.
    """
    from plinth_ops.backup import drill as backup_drill
    from plinth_ops.backup.snapshot import BackupArchive

    ctx, archive = settings.context(), BackupArchive(place)
    findings = backup_drill.drill(ctx.workspace, archive, name, ctx.progress)
    if as_json:
        output.emit_json([each._asdict() for each in findings])
    else:
        rows = [(each.what, "ok" if each.passed else output.coloured("failed", "red"), each.found) for each in findings]
        output.table(("check", "result", "found"), rows)
    return 0 if all(each.passed for each in findings) else 1


def _facts(snapshot: BackupSnapshot) -> dict[str, object]:
    size = sum(each.bytes for each in snapshot.entries)
    size += sum(each.bytes for each in snapshot.blobs) + sum(each.bytes for each in snapshot.databases)
    return {
        "at": snapshot.at,
        "files": len(snapshot.entries),
        "databases": len(snapshot.databases),
        "blobs": len(snapshot.blobs),
        "bytes": size,
        "to be made again": len(snapshot.missing),
    }
