"""`plinth gates`: the policy that a release must pass: check it, sign it, show it; waive a gate for one candidate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.errors import RequestError
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import PackagedFile, Settings, examples, group, json_option, recipe_option, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plinth_registry.gates.settings import GatePolicy
    from plinth_registry.policy import PolicyChange

file_argument = click.argument("file", type=PackagedFile("policies", exists=True))
owner_option = click.option("--owner", help="Whose key signs, where this machine has several.")


@group(
    epilog=examples(
        "plinth gates check default",
        "plinth gates sign my-policy.yaml",
        "plinth gates show",
        "plinth gates waive 3 stability --until 2027-01-31 --reason 'the restarts were a planned move'",
    )
)
def gates() -> None:
    """Sign, show and check the gate policy of a release.

    The newest signed policy governs: no recipe, option or environment gives another.
    """


@gates.command(epilog=examples("plinth gates check my-policy.yaml -r my-recipe.yaml"))
@file_argument
@shared
@recipe_option
@json_option
def check(settings: Settings, file: Path, as_json: bool) -> None:
    """Check a policy FILE; with a recipe (-r), name the gates that it measures nothing for."""
    from plinth_registry import policy

    found = policy.load(file)
    lacking = policy.unmeasured(found, settings.load_recipe()) if settings.recipe else ()
    if as_json:
        return output.emit_json({"digest": policy.digest(found), "asked": found.asked, "unmeasured": lacking})
    gates = counted(len(found.asked) + len(found.extensions), "gate")
    output.say(f"{file}: {gates}, digest {policy.digest(found)[:12]}")
    for one in lacking:
        output.say(f"  no evidence in this recipe: {one}")
    return None


@gates.command(
    epilog=examples(
        "plinth gates sign my-policy.yaml --owner anna@example.org",
        "plinth gates sign my-policy.yaml --yes      in a script",
    )
)
@file_argument
@shared
@owner_option
@click.option("--yes", is_flag=True, help="Sign without asking, whatever is weaker than before.")
@json_option
def sign(settings: Settings, file: Path, owner: str | None, yes: bool, as_json: bool) -> None:
    """Sign the policy in FILE as the owner of its release. From then on it governs.

    Shows what is weaker, stronger or different in comparison with the policy in force, and asks before it signs.
    """
    from plinth_registry import policy
    from plinth_registry.policy import changes

    ctx, found = settings.context(waits=True), policy.load(file)
    earlier = policy.history(ctx, found.release)
    made = changes(earlier[-1].policy, found) if earlier else ()
    if not as_json and made:
        _show_changes(earlier[-1].title, made)
    if made and not yes:
        _require_confirmation(made, as_json)
    signed = policy.sign(ctx, found, owner)
    if as_json:
        output.emit_json({**signed.model_dump(mode="json"), "changes": [one._asdict() for one in made]})
    else:
        output.say(f"policy {signed.title} governs, signed by {', '.join(signed.signers)}")


def _show_changes(title: str, made: Sequence[PolicyChange]) -> None:
    output.heading(f"Changes to {title}, the policy in force")
    colors = {"weaker": "red", "stronger": "green", "changed": "yellow"}
    rows = [(output.coloured(one.direction, colors[one.direction]), one.key, one.before, one.after) for one in made]
    output.table(("direction", "key", "before", "after"), rows)


def _require_confirmation(made: Sequence[PolicyChange], as_json: bool) -> None:
    """Ask on a terminal.

    Raises:
        RequestError: the answer is no, or no one can be asked.
    """
    import sys

    weaker = [one.key for one in made if one.direction == "weaker"]
    words = f"{counted(len(weaker), 'setting')} weaker, {len(made) - len(weaker)} others changed"
    if not as_json and sys.stdin.isatty() and click.confirm(f"{words}. Sign it?"):
        return
    raise RequestError(
        "the policy was not signed", found=words, expected="a confirmation", remedy="read the changes; then give --yes"
    )


@gates.command(epilog=examples("plinth gates show", "plinth gates show demo --json | jq .policy.without"))
@click.argument("release", required=False)
@shared
@recipe_option
@json_option
def show(settings: Settings, release: str | None, as_json: bool) -> None:
    """Show the policy that governs RELEASE (default: the recipe's): its gates, who signed it, what it leaves out."""
    from plinth_registry import policy

    name = release or settings.load_recipe().required_release().name
    signed = policy.current(settings.context(), name)
    if as_json:
        return output.emit_json(signed)
    output.heading(f"policy {signed.title}")
    output.facts({"signed": f"{signed.at} by {', '.join(signed.signers)}", **_lines(signed.policy)})
    return None


@gates.command(
    epilog=examples("plinth gates waive latest stability --until 2027-01-31 --reason 'a planned move of the machine'")
)
@click.argument("version")
@click.argument("gate")
@shared
@recipe_option
@click.option("--until", "expires", required=True, metavar="DATE", help="Last moment, such as 2027-01-31 (UTC).")
@click.option("--reason", required=True, metavar="TEXT", help="The reason, in a sentence.")
@owner_option
@json_option
def waive(
    settings: Settings, version: str, gate: str, expires: str, reason: str, owner: str | None, as_json: bool
) -> None:
    """Let candidate VERSION pass one GATE all the same, until a date. The gate still shows as failed."""
    from plinth_registry import decisions

    wanted = None if version == "latest" else version
    until = expires if "T" in expires else f"{expires}T23:59:59+00:00"
    made = decisions.waive(settings.context(), settings.load_recipe(), wanted, gate, reason, until, owner)
    if as_json:
        output.emit_json(made)
    else:
        output.say(f"{made.gate} of candidate {made.candidate[:12]}: {made.said}")


def _lines(policy: GatePolicy) -> dict[str, str]:
    """What each gate asks, and what is left out with its reason."""
    settings = policy.model_dump(mode="json", exclude={"release", "version", "description", "extensions", "without"})
    shown = {name: _yaml(value) for name, value in settings.items()}
    shown |= {f"extension {name}": _yaml(dict(raw)) for name, raw in policy.extensions.items()}
    return shown | {f"without {name}": reason for name, reason in policy.without.items()}


def _yaml(value: object) -> str:
    """A setting as it was signed, in one line."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("...\n").strip()
