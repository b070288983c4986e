"""Retention: what a workspace must keep, and the deletion of unreferenced objects.

    roots      retention roots (records, models, runs, pins, references), and everything reachable from them
    deletion   survey of kept and unreferenced objects with their cost; deletion of objects that two surveys found
               unreferenced

Every digest in any record is a reference, so a new kind of record protects its objects without a change here. A record
can only add to the kept objects. Does not belong here: checkpoints of a run (`training.checkpoint.retention`);
verification of signatures (registry).

Also here: the command `plinth ops gc`, which loads the other modules when it runs.
"""

from __future__ import annotations

import getpass
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import StorageError
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plinth.compute.context import Context
    from plinth_ops.retention.deletion import StorageRow, StoredObject


@group(
    short_help="Show storage cost by age; delete unreferenced objects.",
    invoke_without_command=True,
    epilog=examples(
        "plinth ops gc",
        "plinth ops gc --json",
        "plinth ops gc --delete --keep-days 90",
        "plinth ops gc pin web/curated --reason 'audit of 2027'",
    ),
)
@click.option("--delete", "really", is_flag=True, help="Delete objects that have been unreferenced for a day.")
@click.option(
    "--keep-days",
    type=click.FloatRange(min=6),
    default=30.0,
    show_default=True,
    help="Keep objects that were written or used within this many days, even if they are unreferenced.",
)
@click.option(
    "--pause-hours",
    type=click.FloatRange(min=1),
    default=24.0,
    show_default=True,
    help="Minimum hours between the survey that finds an object unreferenced and the object's deletion.",
)
@shared
@json_option
@click.pass_context
def gc(
    call: click.Context, settings: Settings, really: bool, keep_days: float, pause_hours: float, as_json: bool
) -> None:
    """Show stored objects by age, with their cost; with --delete, delete unreferenced objects.

    An object is kept if a signed record, candidate, run, pin, published asset or experiment references the object or
    something derived from it. Ledgers and indexes over kept text, and recent objects, are kept as well. Without
    --delete, the command only records which objects are unreferenced.
    """
    if call.invoked_subcommand:
        return None
    from plinth.operation import spending
    from plinth_ops.retention import deletion, roots
    from plinth_ops.retention.deletion import by_age, by_reason, delete, due, survey

    ctx = settings.context()
    price = spending.load(ctx.workspace).prices.gigabyte_month
    if really:
        _prove(ctx)
    looked = survey(ctx, time.time(), keep_days, ctx.progress)
    try:
        roots.hold(ctx)
        since = deletion.note(ctx, looked)
    except StorageError as error:
        if really:
            raise
        output.line(f"the survey could not be recorded, so no object can be deleted later: {error}", err=True)
        since = deletion.read(ctx)
    ready = due(looked, since, pause_hours * 3600)
    made: dict[str, Any] = {
        "place": ctx.workspace.uri or str(ctx.workspace.root),
        "at": _moment(looked.at),
        "ages": by_age(looked, price),
        "reasons": by_reason(looked, price),
        "unneeded": _counted(looked.unneeded),
        "due": _counted(one for one in looked.unneeded if one.place in ready),
    }
    if really:
        deleted = delete(ctx, looked, ready, progress=ctx.progress)
        deletion.write(ctx, {place: at for place, at in since.items() if place not in {d.place for d in deleted.gone}})
        made |= {"deleted": _counted(deleted.gone), "needed again": _counted(deleted.needed)}
    if as_json:
        return output.emit_json(made)
    _show("age", made["ages"])
    _show("kept for", made["reasons"])
    output.say(output.CURRENCY)
    output.facts({name: _words(made[name]) for name in ("unneeded", "due", "deleted", "needed again") if name in made})
    if not really and looked.unneeded:
        first = min(since.values(), default=looked.at) + pause_hours * 3600
        output.say(
            f"From {_moment(first)} on, `plinth ops gc --delete` deletes objects that have been unreferenced for "
            f"{pause_hours:g} h."
        )
    return None


@gc.command(
    epilog=examples("plinth ops gc pin web/curated --reason 'audit of 2027'", "plinth ops gc pin 3fa9c1d2 --reason …")
)
@click.argument("target")
@click.option("--reason", required=True, help="Purpose of the pin and the date on which it may be removed.")
@shared
def pin(settings: Settings, target: str, reason: str) -> None:
    """Keep the manifest TARGET (an asset or a digest) with its whole lineage."""
    from plinth.storage.state import SHORTEST_PREFIX, resolve
    from plinth_ops.retention import roots

    ctx = settings.context()
    digest = len(target) >= SHORTEST_PREFIX and not set(target) - set("0123456789abcdef")
    manifest = resolve(ctx.refs, target) if digest else ctx.refs.current(target)
    made = roots.put(ctx, manifest, getpass.getuser(), reason, _moment(time.time()))
    output.facts(made.model_dump())


@gc.command(epilog=examples("plinth ops gc unpin 3fa9c1d2"))
@click.argument("digest")
@shared
def unpin(settings: Settings, digest: str) -> None:
    """Remove the pin of the manifest DIGEST (a prefix is enough)."""
    from plinth_ops.retention import roots

    output.facts(roots.lift(settings.context(), digest).model_dump())


@gc.command("pins", epilog=examples("plinth ops gc pins", "plinth ops gc pins --json"))
@shared
@json_option
def list_pins(settings: Settings, as_json: bool) -> None:
    """List all pins, each with the person who set the pin and the reason."""
    from plinth_ops.retention import roots

    found = roots.every(settings.context())
    if as_json:
        return output.emit_json(found)
    rows = [(one.digest[:12], one.asset, one.by, one.at, one.reason) for one in found]
    return output.table(("digest", "asset", "by", "at", "reason"), rows)


def _prove(ctx: Context) -> None:
    """Check that no signed record is missing or changed, and store the lineage for `plinth release impact`.

    Raises:
        SignatureError: a signed log fails verification; the references of lost records are then unknown.
    """
    from plinth.provenance import lineage
    from plinth_registry import releases
    from plinth_registry.audit_log import logs_in_head

    releases.history(ctx, expired=True)
    for log in logs_in_head(ctx):
        releases.log_records(ctx, log)
    lineage.current(ctx)


def _show(name: str, rows: Sequence[StorageRow]) -> None:
    header = [name, "objects", "size", "cost per month", "unreferenced", "its cost per month"]
    table = [
        [
            row.name, f"{row.objects:,}", output.size(row.bytes), output.money(row.month),
            output.size(row.unneeded_bytes), output.money(row.unneeded_month),
        ]
        for row in rows
    ]  # fmt: skip
    output.table(header, table, right=header[1:])


def _counted(found: Iterable[StoredObject]) -> dict[str, int]:
    listed = list(found)
    kinds = Counter[str](one.kind for one in listed)
    return {kind: kinds[kind] for kind in ("record", "manifest", "blob")} | {"bytes": sum(one.bytes for one in listed)}


def _words(counted: dict[str, int]) -> str:
    kinds = ", ".join(f"{counted[kind]:,} {kind}s" for kind in ("record", "manifest", "blob"))
    return f"{kinds}, {output.size(counted['bytes'])}"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
