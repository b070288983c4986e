"""`plinth release taint`: marks of unfit data and models, their lifting, their history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Commands, examples, group, json_option, shared
from plinth_jobs.cli.release.release import person

if TYPE_CHECKING:
    from plinth_jobs.cli.options import Settings


class MarkFirst(Commands):
    """A group whose first argument may be a target: then it is the target of `mark`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = not args or args[0] in self.list_commands(ctx) or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if named else ["mark", *args])


@group(
    cls=MarkFirst,
    epilog=examples(
        "plinth release taint web/curated --by dpo@example.org --reason 'licence withdrawn'",
        "plinth release taint 3fa9c1d2 --by ops@example.org --reason 'trained on a broken shard'",
        "plinth release taint lift 3fa9c1d2 --by dpo@example.org --reason 'the licence was granted'",
        "plinth release taint list",
    ),
)
def taint() -> None:
    """Mark TARGET as unfit: an asset, a bucket, a digest, a document id or a commit. What was made of it is frozen.

    The gate `taint` fails for everything downstream, and for everything measured with it; loaders refuse it. Released
    versions are listed, and stay until `plinth release rollback`. Marks are signed by compliance and stay in the
    history.
    """


@taint.command()
@click.argument("target")
@shared
@person()
@json_option
def mark(settings: Settings, target: str, by: str, reason: str, as_json: bool) -> None:
    """Mark TARGET as unfit, and freeze what was made of it."""
    from plinth_jobs.cli import output
    from plinth_registry import freeze

    done = freeze.mark_tainted(settings.context(), target, by, reason)
    if as_json:
        return output.emit_json(done)
    frozen = counted(len(done.manifests), "manifest", "be")
    output.say(f"{output.plain_markup(output.visible(target))} is marked; {frozen} frozen")
    output.facts({"versions": ", ".join(done.versions) or "none", "aliases": ", ".join(done.aliases) or "none"})
    for row in done.consumers:
        output.say(output.plain_markup(output.visible(f"  {row.name}  {row.owner}  {row.uses}")))
    for gap in done.gaps:
        output.say(output.plain_markup(output.visible(f"Not done: {gap}")))
    if done.aliases:
        output.say("These are in use now: `plinth release rollback --by PERSON --reason TEXT` moves them back.")
    return None


@taint.command()
@click.argument("target")
@shared
@person()
@json_option
def lift(settings: Settings, target: str, by: str, reason: str, as_json: bool) -> None:
    """State that the mark on TARGET (its digest or document id, or the beginning) no longer holds."""
    from plinth_jobs.cli import output
    from plinth_registry import freeze

    done = freeze.lift_taint(settings.context(), target, by, reason)
    if as_json:
        return output.emit_json(done)
    output.say(f"The mark on {done.mark.kind} {done.mark.target[:16]} is lifted; both statements stay in the history.")
    return None


@taint.command("list")
@shared
@json_option
def list_(settings: Settings, as_json: bool) -> None:
    """List every mark, who stated it, and whether it stands."""
    from plinth_jobs.cli import output
    from plinth_registry import taint as marks

    found = marks.statements(settings.context())
    if as_json:
        return output.emit_json(found)
    states = {("mark", True): "stands", ("mark", False): "lifted"}
    output.table(
        ("number", "at", "", "target", "by", "signed by", "reason"),
        [
            (each.number, each.at, states.get((each.action, each.standing), f"lifts {each.lifts}"),
             f"{each.mark.kind} {each.mark.target[:16]}", output.visible(each.by), ", ".join(each.signed_by),
             output.visible(each.reason))
            for each in found
        ],
        right=("number",),
    )  # fmt: skip
    return None
