"""Backup of a workspace: everything that cannot be rebuilt, with a test of the restore.

snapshot    what belongs to a backup, in which order; the record of one backup and the archive of all
taking      copies of databases at one moment and their way back; take a backup of a workspace while others write
drill       put a backup back into an empty place; the drill that proves it, in a scratch place

    TO/objects/ab/abcd…           content, by SHA-256, shared by all backups at TO
    TO/snapshots/TIME-SHA256.json one backup; its name has the digest of its bytes

Private keys, the secret of the workers' seal and MLflow's accounts are outside the workspace and in no backup. Does not
belong here: what a signature means (registry).

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

named = click.option("--name", default="", metavar="NAME", help="A backup, or the beginning of its name (the newest).")


@group(
    short_help="Back up a workspace, restore one, test the restore.",
    epilog=examples(
        "plinth ops backup to s3://plinth-backups/corpus",
        "plinth ops backup list s3://plinth-backups/corpus",
        "plinth ops backup drill s3://plinth-backups/corpus",
        "plinth -w restored ops backup restore s3://plinth-backups/corpus",
    ),
)
def backup() -> None:
    """Back up a workspace, put a backup back, and prove that it can be.

    A backup has references, records, signed logs, runs with their checkpoints, the databases of Dagster, MLflow and the
    ledger, and blobs that cannot be made again. Private keys are in none.
    """


@backup.command()
@click.argument("place")
@click.option(
    "--blobs",
    type=click.Choice(["needed", "all"]),
    default="needed",
    show_default=True,
    help="needed: documents and checkpoints, which nothing makes again; all: whatever a manifest names.",
)
@shared
@json_option
def to(settings: Settings, place: str, blobs: str, as_json: bool) -> None:
    """Back up the workspace to PLACE, a folder or s3://bucket/prefix, while others go on writing.

    Content that an earlier backup there has is not copied again. Killed anywhere, the same command goes on.
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
@click.option("--database", "given", multiple=True, metavar="NAME=URL", help="An empty PostgreSQL database for NAME.")
@shared
def restore(settings: Settings, place: str, name: str, given: tuple[str, ...]) -> None:
    """Put a backup from PLACE back as the workspace, which must be empty.

    Keys come from where they are kept: pin the root (`plinth keys pin`), then `plinth release log --verify` proves the
    logs.
    """
    from plinth.compute.progress import for_command
    from plinth.storage.workspace import Workspace
    from plinth_ops.backup import drill
    from plinth_ops.backup.snapshot import BackupArchive

    if wrong := [each for each in given if "=" not in each]:
        raise click.UsageError(f"{wrong[0]!r} is no database: say NAME=URL")
    urls = {database: url for database, _, url in (each.partition("=") for each in given)}
    archive, target = BackupArchive(place), Workspace(settings.workspace)
    snapshot = archive.read(name)
    drill.restore(archive, snapshot, target, urls, for_command())
    output.facts({"restored": target.uri or str(target.root), "taken": snapshot.at, **_facts(snapshot)})
    if snapshot.missing:
        output.say(f"{counted(len(snapshot.missing), 'blob', 'be')} made again by `plinth run`.")


@backup.command("drill")
@click.argument("place")
@named
@shared
@json_option
def drill_command(settings: Settings, place: str, name: str, as_json: bool) -> int:
    """Restore a backup from PLACE into a scratch place and prove it; exit code 1 where something does not hold.

    Signed logs are proved from their first record under this machine's pinned root, references with their manifests;
    rows and counts are compared. Nothing of the workspace is touched.
    """
    from plinth_ops.backup import drill as backup_drill
    from plinth_ops.backup.snapshot import BackupArchive

    ctx, archive = settings.context(), BackupArchive(place)
    findings = backup_drill.drill(ctx.workspace, archive, name, ctx.progress)
    if as_json:
        output.emit_json([each._asdict() for each in findings])
    else:
        rows = [(each.what, "ok" if each.passed else output.coloured("failed", "red"), each.found) for each in findings]
        output.table(("proved", "", "found"), rows)
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
