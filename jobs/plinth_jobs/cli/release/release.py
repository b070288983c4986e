"""`plinth approve`, `promote`, `mirror`, `rollback`: decisions about models, each signed or recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth_registry.review import CandidateStatus

F = TypeVar("F", bound=Callable[..., Any])

_COLORS = {
    "passed": "green",
    "waived": "yellow",
    "skipped": "yellow",
    "not applicable": "yellow",
    "pending": "red",
    "failed": "red",
}

version_argument = click.argument("version", default="latest")


def person(required: bool = True) -> Callable[[F], F]:
    """`--by` and `--reason`: the person who decides, and the reason."""

    def decorate(function: F) -> F:
        function = click.option("--reason", required=required, metavar="TEXT", help="The reason, in a sentence.")(
            function
        )
        return click.option("--by", required=required, metavar="PERSON", help="Name or e-mail address.")(function)

    return decorate


@click.command(
    epilog=examples(
        "plinth approve                      lists pending candidates with their gates",
        "plinth approve --by ada@example.org --reason 'beats the baseline on every slice'",
        "plinth approve 3 --reject --by ada@example.org --reason 'worse on code'",
    )
)
@version_argument
@shared
@recipe_option
@person(required=False)
@click.option("--reject", is_flag=True, help="Sign a rejection; it outweighs any approval.")
@json_option
def approve(settings: Settings, version: str, by: str | None, reason: str | None, reject: bool, as_json: bool) -> None:
    """Sign an approval of candidate VERSION (default: the newest) with your own key.

    Without --by: list the pending candidates, with every gate and its reason. If MLflow requires a login
    (`plinth ops people`) and the policy accepts it, setting the version's `approval` tags there has the same effect.
    """
    from plinth_jobs.cli import output
    from plinth_registry import review
    from plinth_registry.gates import blocking, summary
    from plinth_registry.review import next_step

    ctx, recipe = settings.context(), settings.load_recipe()
    if by is None:
        waiting = review.pending(ctx, recipe)
        return output.emit_json(waiting) if as_json else _show(waiting)
    decision: Literal["approved", "rejected"] = "rejected" if reject else "approved"
    path = review.approve(ctx, recipe, _version(version), by, reason or "", decision)
    status = review.status(ctx, recipe, _version(version))
    if as_json:
        held = {gate.name: gate.state for gate in blocking(status.gates)}
        made = {"decision": decision, "by": by, "statement": str(path), "version": status.version, "blocked_by": held}
        return output.emit_json(made)
    output.say(f"{decision} by {by}: {path}")
    gates = f"gates {summary(status.gates)}" if status.gates else status.refusal
    output.say(f"{status.model} version {status.version}: {gates}")
    output.say(f"Next: {next_step(ctx, recipe, status)}")
    return None


@click.command(
    epilog=examples(
        "plinth release promote --by ops@example.org --reason 'weekly release'",
        "plinth release promote 3 --stage canary --by ops@example.org --reason 'trial, 10% of traffic'",
    )
)
@version_argument
@shared
@recipe_option
@person()
@click.option("--stage", type=click.Choice(["canary", "champion"]), default="champion", show_default=True)
@json_option
def promote(
    settings: Settings, version: str, by: str, reason: str, stage: Literal["canary", "champion"], as_json: bool
) -> None:
    """Release candidate VERSION (default: the newest): verify everything, evaluate every gate, move the alias."""
    from plinth_jobs.cli import output
    from plinth_registry import decisions

    made = decisions.promote(settings.context(), settings.load_recipe(), _version(version), by, reason, stage)
    if as_json:
        output.emit_json(made)
    else:
        output.say(f"{made.model} version {made.version} is {made.action} (record {made.number}, signed)")


@click.command(epilog=examples("plinth release mirror"))
@shared
@recipe_option
def mirror(settings: Settings) -> None:
    """Repair MLflow's aliases from the signed history, and sign the history's head again when it is a day old.

    `plinth up` does it every few seconds, except for a head that has expired: compare `releases/` with a backup before
    you sign that one, since an older history put back looks the same. Exit status 8 where the history itself does not
    hold, 9 where MLflow has lost a released version.
    """
    from plinth.errors import RegistryError
    from plinth_jobs.cli import output
    from plinth_registry import decisions

    ctx, recipe = settings.context(), settings.load_recipe()
    differed, missing = decisions.repair(ctx, recipe, expired=True), decisions.missing_in_mlflow(ctx, recipe)
    for sentence in differed or (() if missing else ("MLflow shows what the signed history says",)):
        output.say(sentence)
    if missing:
        raise RegistryError(
            "MLflow lacks what the signed history says, and a deleted version cannot be made again",
            found=f"not in MLflow: {', '.join(missing)}",
            expected="every released version under its alias",
            remedy="restore MLflow's database from a backup, or release again: `plinth release promote VERSION --by "
            "PERSON --reason TEXT`; consumers that read the signed history are not affected",
        )


@click.command(
    epilog=examples("plinth release rollback --by ops@example.org --reason 'answers got worse in production'")
)
@shared
@recipe_option
@person()
@click.option("--withdraw", is_flag=True, help="Remove the alias when there is no good earlier version.")
@json_option
def rollback(settings: Settings, by: str, reason: str, withdraw: bool, as_json: bool) -> None:
    """Return the champion's alias to the last good version: released before, verified now, not tainted."""
    from plinth_jobs.cli import output
    from plinth_registry import decisions

    made = decisions.rollback(settings.context(), settings.load_recipe(), by, reason, withdraw)
    if as_json:
        output.emit_json(made)
    elif made.version is None:
        output.say(f"{made.model} is withdrawn: no version has the alias (was {made.previous})")
    else:
        output.say(f"{made.model} is back at version {made.version} (was {made.previous})")


def _show(candidates: tuple[CandidateStatus, ...]) -> None:
    from plinth_jobs.cli import output
    from plinth_registry.gates import summary

    if not candidates:
        output.say("No pending candidates.")
    for status in candidates:
        output.heading(f"{status.model} version {status.version}: {summary(status.gates)}")
        rows = [(gate.name, output.coloured(gate.state, _COLORS[gate.state]), gate.detail) for gate in status.gates]
        output.table(("gate", "state", "reason"), rows)
        if status.error:
            output.say(status.error)


def _version(given: str) -> str | None:
    return None if given == "latest" else given
