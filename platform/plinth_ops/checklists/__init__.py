"""Automated checklists: preproduction, readiness, incident, security.

    review          all checks, their evaluation, signed waivers
    trust_checks    root of trust, secrets, code
    place_checks    file modes, disk space, clocks, encryption, connections
    run_checks      text, training, budgets, objectives, alerts, backups
    release_checks  signed logs, releases, the MLflow server, the orchestrator
    dagster_assets  checklists as Dagster assets with one asset check per check, evaluated by schedule

Another package adds a check by an entry point in the group `plinth.checks`. Does not belong here: host checks before
ranks start (`training.supervise`); checks of one manifest before it is published (`plinth_assets.framework`).

Also here: the command `plinth ops check`, which loads the other modules when it runs.
"""

from __future__ import annotations

import textwrap
from datetime import datetime
from typing import TYPE_CHECKING

import click

from plinth.errors import MissingError
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Commands, Settings, examples, group, json_option, recipe_option, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plinth_ops.checklists.review import CheckedLine, ChecklistName, CheckScope

COLOURS = {
    "pass": "green", "warn": "yellow", "fail": "red", "undetermined": "magenta", "not applicable": "dim",
    "waived": "cyan",
}  # fmt: skip
#: Width of the last column, so that the table fits 100 characters.
WORDS_WIDTH = 62
NAMES = ("preproduction", "readiness", "incident", "security")


class NamedFirst(Commands):
    """Command group in which a checklist name as the first argument means `run NAME`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["run", *args] if args and args[0] in NAMES else args)


@group(
    short_help="Evaluate a checklist for this workspace, with evidence.",
    cls=NamedFirst,
    epilog=examples(
        "plinth ops check readiness",
        "plinth ops check security --json | jq '.[] | select(.outcome != \"pass\")'",
        "plinth ops check list",
        "plinth ops check waive backup --until 2027-01-31 --reason 'the robot is being repaired'",
    ),
)
def check() -> None:
    """Evaluate a checklist: preproduction, readiness, incident or security.

    The exit code is 6 if a check fails, 3 if no check fails but the result of a check could not be determined, and
    otherwise 0. A failed check with a signed waiver is accepted until the waiver's end date; its result stays visible.
    """


@check.command("run", hidden=True)
@click.argument("name", type=click.Choice(NAMES))
@shared
@recipe_option
@json_option
def run(settings: Settings, name: ChecklistName, as_json: bool) -> None:
    """Evaluate the checklist NAME."""
    show(settings, name, as_json)


@check.command("list")
@click.argument("name", type=click.Choice(NAMES), required=False)
@shared
@json_option
def list_(settings: Settings, name: ChecklistName | None, as_json: bool) -> None:
    """List the checks of all checklists, or of NAME, without evaluating them."""
    from plinth_ops.checklists import review

    found = review.checks(name)
    if as_json:
        fields = ("name", "claim", "owner", "lists", "remedy", "waivable")
        return output.emit_json([{field: getattr(one, field) for field in fields} for one in found])
    rows = [(one.name, _wrapped(one.claim), one.owner, " ".join(part[:3] for part in one.lists)) for one in found]
    return output.table(("check", "requirement", "owner", "lists"), rows)


@check.command()
@click.argument("name")
@click.option(
    "--until", type=click.DateTime(), required=True, help="End of the waiver in UTC; a past time removes the waiver."
)
@click.option("--reason", required=True, help="Reason why the failure is accepted, as a sentence.")
@click.option("--by", "owner", help="Owner of the `policy` key to sign with, if there are several `policy` keys.")
@shared
@json_option
def waive(settings: Settings, name: str, until: datetime, reason: str, owner: str | None, as_json: bool) -> None:
    """Sign a waiver for the check NAME in this workspace until a date."""
    import time
    from datetime import UTC

    from plinth_ops.checklists import review

    ends = until.replace(tzinfo=UTC).isoformat()
    made = review.sign(settings.context(), review.find(name), ends, reason, owner)
    if as_json:
        return output.emit_json(made)
    past = until.replace(tzinfo=UTC).timestamp() <= time.time()
    return output.line(f"{name} is {'no longer waived' if past else made.said}")


def show(settings: Settings, name: ChecklistName, as_json: bool) -> None:
    """Evaluate a checklist of the workspace and print the results.

    Raises the same errors as `review.require`.
    """
    from plinth_ops.checklists import review
    from plinth_ops.checklists.review import PURPOSES

    lines = review.evaluate(scope_of(settings), review.checks(name))
    if as_json:
        output.emit_json(lines)
    else:
        output.line(PURPOSES[name])
        _table(lines)
    review.require(lines)


def scope_of(settings: Settings) -> CheckScope:
    """Return the check scope of the workspace, with the selected recipe or else the recipe that it ran last."""
    from plinth_ops.checklists.review import CheckScope, settings_of

    ctx = settings.context()
    try:
        path = settings.recipe_path()
    except MissingError:
        return CheckScope(ctx, settings=settings_of(ctx.workspace))
    from plinth_jobs.recipes import load

    return CheckScope(ctx, load(path), path, settings_of(ctx.workspace))


def _table(lines: Sequence[CheckedLine]) -> None:
    rows = [(one.name, output.coloured(one.outcome, COLOURS[one.outcome]), one.owner, _words(one)) for one in lines]
    output.table(("check", "outcome", "owner", "seen"), rows)
    counts = {outcome: sum(one.outcome == outcome for one in lines) for outcome in COLOURS}
    output.line(", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))


def _words(line: CheckedLine) -> str:
    mend = line.outcome in ("warn", "fail", "undetermined")
    said = [line.evidence, line.waiver, f"do: {line.remedy}" if mend else ""]
    return "\n".join(_wrapped(text) for text in said if text)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WORDS_WIDTH)
