"""Taints, downstream impact and consumers: `plinth release taint | impact | consumer`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.text import counted, visible
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Commands, examples, group, json_option, shared
from plinth_jobs.cli.release import person

if TYPE_CHECKING:
    from plinth_jobs.cli.options import Settings
    from plinth_registry.consumers import Impact


class MarkFirst(Commands):
    """Command group that calls `mark` if no subcommand is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = not args or args[0] in self.list_commands(ctx) or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if named else ["mark", *args])


@group(
    cls=MarkFirst,
    epilog=examples(
        "plinth release taint web/curated --by dpo@example.org --reason 'license withdrawn'",
        "plinth release taint 3fa9c1d2 --by ops@example.org --reason 'trained on a broken shard'",
        "plinth release taint lift 3fa9c1d2 --by dpo@example.org --reason 'license granted'",
        "plinth release taint list",
    ),
)
def taint() -> None:
    """Taint TARGET (an asset, bucket, digest, document ID or commit) and freeze everything derived from it.

    The gate `taint` then fails for everything derived from or measured with the target, and loaders reject it. Affected
    releases are listed and stay in use until `plinth release rollback`. Taints are signed by compliance and stay in the
    history.
    """


@taint.command()
@click.argument("target")
@shared
@person()
@json_option
def mark(settings: Settings, target: str, by: str, reason: str, as_json: bool) -> None:
    """Taint TARGET and freeze everything derived from it."""
    from plinth_registry import freeze

    done = freeze.mark_tainted(settings.context(), target, by, reason)
    if as_json:
        return output.emit_json(done)
    frozen = counted(len(done.manifests), "manifest", "be")
    output.say(f"{output.plain_markup(visible(target))} is tainted; {frozen} frozen")
    output.facts({"versions": ", ".join(done.versions) or "none", "aliases": ", ".join(done.aliases) or "none"})
    for row in done.consumers:
        output.say(output.plain_markup(visible(f"  {row.name}  {row.owner}  {row.uses}")))
    for gap in done.gaps:
        output.say(output.plain_markup(visible(f"Incomplete: {gap}")))
    if done.aliases:
        output.say("These versions are in use. Roll back with `plinth release rollback --by PERSON --reason TEXT`.")
    return None


@taint.command()
@click.argument("target")
@shared
@person()
@json_option
def lift(settings: Settings, target: str, by: str, reason: str, as_json: bool) -> None:
    """Lift the taint on TARGET, given by its digest or document ID, or a prefix of it."""
    from plinth_registry import freeze

    done = freeze.lift_taint(settings.context(), target, by, reason)
    if as_json:
        return output.emit_json(done)
    output.say(
        f"The taint on {done.mark.kind} {done.mark.target[:16]} is lifted. The history keeps both the taint and "
        "its removal."
    )
    return None


@taint.command("list")
@shared
@json_option
def list_(settings: Settings, as_json: bool) -> None:
    """List all taints with their author and state."""
    from plinth_registry import taint as marks

    found = marks.statements(settings.context())
    if as_json:
        return output.emit_json(found)
    states = {("mark", True): "stands", ("mark", False): "lifted"}
    output.table(
        ("number", "at", "", "target", "by", "signed by", "reason"),
        [
            (each.number, each.at, states.get((each.action, each.standing), f"lifts {each.lifts}"),
             f"{each.mark.kind} {each.mark.target[:16]}", visible(each.by), ", ".join(each.signed_by),
             visible(each.reason))
            for each in found
        ],
        right=("number",),
    )  # fmt: skip
    return None


SHOWN = 40


@click.command(
    epilog=examples(
        "plinth release impact web                  everything read from a bucket's sources",
        "plinth release impact 3fa9c1d2             a manifest, by a prefix of its digest",
        "plinth release impact 8c1f…                a document, by its 32-digit ID; or a code commit",
        "plinth release impact web/curated --page   write a page with the graph",
    )
)
@click.argument("target")
@shared
@click.option("--page", "as_page", is_flag=True, help="Write a page with the graph and the full list.")
@json_option
def impact(settings: Settings, target: str, as_page: bool, as_json: bool) -> None:
    """List everything derived from TARGET, nearest first: manifests, runs, model versions, consumers, exports.

    TARGET is an asset, a bucket, the domain of a source, a digest, a 32-digit document ID, or a code commit. Failed
    work that produced no output is not listed.
    """
    from plinth_registry import consumers as impacts

    found = impacts.impact(settings.context(), target)
    written = _write(settings.workspace, found) if as_page else None
    if as_json:
        output.emit_json(found.model_dump(mode="json") | ({"page": str(written)} if written else {}))
        return
    _show(found)
    if written:
        output.say(f"\nPage: {output.plain_markup(str(written))}")


def _write(workspace: Path, found: Impact) -> Path:
    from plinth.storage.atomic import write_bytes
    from plinth_registry.impact_page import impact_page

    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in found.origin.target[:40])
    path = Path(workspace) / "reports" / f"impact-{name}.html"
    write_bytes(path, impact_page(found).encode())
    return path


def _show(found: Impact) -> None:
    target = output.plain_markup(visible(found.origin.target))
    output.heading(f"{found.origin.kind} {target}: {counted(len(found.manifests), 'manifest')}")
    rows = [(each.steps, visible(each.asset), each.digest[:16], each.state) for each in found.manifests]
    output.table(("steps", "asset", "digest", ""), rows[:SHOWN], right=("steps",))
    if len(rows) > SHOWN:
        output.say(f"{len(rows) - SHOWN} more rows; show them with --json or --page.")
    if found.runs:
        rows_of_runs = [(run.run_id, ", ".join(map(str, run.checkpoints))) for run in found.runs]
        output.table(("run", "committed checkpoints"), rows_of_runs)
    versions = [(row.model, row.version, ", ".join(row.aliases)) for row in found.versions]
    if versions:
        output.table(("model", "version", "aliases"), [tuple(map(visible, row)) for row in versions])
    if found.consumers:
        users = [(row.name, row.owner, row.uses) for row in found.consumers]
        output.table(("consumer", "owner", "uses"), [tuple(map(visible, row)) for row in users])
    if found.exports:
        copies = [(row.name, row.status, row.to, row.at) for row in found.exports]
        output.table(("export", "status", "to", "time"), [tuple(map(visible, row)) for row in copies])
    for sentence in (*found.marks, *(f"Not checked: {gap}" for gap in found.gaps)):
        output.say(output.plain_markup(visible(sentence)))


@group(
    epilog=examples(
        "plinth release consumer add search --owner search@example.org --model demo@champion --canary",
        "plinth release consumer add web --owner web@example.org --model demo --webhook https://a.example",
        "plinth release consumer add chat --owner chat@example.org --child chat/3",
        "plinth release consumer list",
        "plinth release consumer feed --after 12",
    )
)
def consumer() -> None:
    """Register services that use a release, and models derived from a release, and show their feed.

    `plinth release impact` and `plinth release taint` list affected consumers with owners. A canary serves only
    consumers added with --canary.
    """


@consumer.command()
@click.argument("name")
@shared
@click.option("--owner", required=True, metavar="MAIL", help="Contact address of the owner.")
@click.option("--model", metavar="NAME@PLACE", help="Release that the service uses; default: the champion.")
@click.option("--child", metavar="MODEL/VERSION", help="MLflow model whose tag `parent` names a released checkpoint.")
@click.option("--webhook", metavar="URL", help="Address that receives the feed; the HMAC secret is printed once.")
@click.option("--canary", is_flag=True, help="Allow canaries to serve this consumer.")
@json_option
def add(
    settings: Settings,
    name: str,
    owner: str,
    model: str | None,
    child: str | None,
    webhook: str | None,
    canary: bool,
    as_json: bool,
) -> None:
    """Register consumer NAME, or change its registration."""
    from pydantic import ValidationError

    from plinth_registry import consumers
    from plinth_registry import freeze as webhooks

    ctx = settings.context()
    try:
        made = consumers.enrol(ctx, name, owner, model=model, child=child, webhook=webhook, canary=canary)
    except ValidationError as error:
        wrong = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())
        raise click.UsageError(f"invalid consumer: {wrong}") from error
    secret = webhooks.make_secret(ctx, made.name) if webhook else None
    if as_json:
        return output.emit_json(made.model_dump(mode="json") | ({"secret": secret} if secret else {}))
    output.say(f"{made.name} is registered: {output.plain_markup(made.uses)}, {output.plain_markup(made.owner)}")
    if secret:
        output.say(f"Webhook secret (shown only once): {secret}")
    return None


@consumer.command()
@click.argument("name")
@shared
def remove(settings: Settings, name: str) -> None:
    """Remove consumer NAME; its registration stays in the history."""
    from plinth_registry import consumers

    output.say(f"{consumers.leave(settings.context(), name).name} is no longer registered")


@consumer.command("list")
@shared
@json_option
def list_consumers(settings: Settings, as_json: bool) -> None:
    """List consumers. For derived models, also show the time from the parent's release to their registration."""
    from plinth_registry import consumers

    ctx = settings.context()
    known = consumers.enrolled(ctx)
    rows = [
        (one, next(iter(consumers.versions_now(ctx, one)), None), consumers.seconds_after_release(ctx, one))
        for one in known
    ]
    if as_json:
        return output.emit_json(
            [one.model_dump(mode="json") | {"version": held, "after_release_s": after} for one, held, after in rows]
        )
    output.table(
        ("name", "owner", "uses", "version", "canaries", "after release", "since"),
        [
            (one.name, visible(one.owner), visible(one.uses), held, one.canary,
             None if after is None else output.duration(after), one.since)
            for one, held, after in rows
        ],
    )  # fmt: skip
    return None


@consumer.command()
@shared
@click.option("--after", default=0, type=click.IntRange(min=0), help="Show only feed entries with a number above this.")
@json_option
def feed(settings: Settings, after: int, as_json: bool) -> None:
    """Show verified feed entries: taints, lifted taints and release changes."""
    from plinth_registry import freeze as feeds

    found = feeds.feed_entries(settings.context(), after)
    if as_json:
        return output.emit_json(found)
    output.table(
        ("number", "at", "what", "signed by"),
        [(each.number, each.at, visible(each.sentence), ", ".join(each.signed_by)) for each in found],
        right=("number",),
    )
    return None
