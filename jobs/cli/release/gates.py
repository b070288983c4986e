"""`plinth gates`: the policy that a release must pass: check it, sign it, show it; waive a gate for one candidate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.cli.options import Settings, examples, group, json_option, recipe_option, shared
from plinth.text.plural import counted

if TYPE_CHECKING:
    from registry.gates import GatePolicy

file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
owner_option = click.option("--owner", help="Whose key signs, where this machine has several.")


@group(
    epilog=examples(
        "plinth gates check jobs/policies/default.yaml",
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
    from jobs.cli import output
    from registry import policy

    found = policy.load(file)
    lacking = policy.unmeasured(found, settings.load_recipe()) if settings.recipe else ()
    if as_json:
        return output.emit_json({"digest": policy.digest(found), "asked": found.asked, "unmeasured": lacking})
    gates = counted(len(found.asked) + len(found.extensions), "gate")
    output.say(f"{file}: {gates}, digest {policy.digest(found)[:12]}")
    for one in lacking:
        output.say(f"  no evidence in this recipe: {one}")
    return None


@gates.command(epilog=examples("plinth gates sign my-policy.yaml --owner anna@example.org"))
@file_argument
@shared
@owner_option
@json_option
def sign(settings: Settings, file: Path, owner: str | None, as_json: bool) -> None:
    """Sign the policy in FILE as the owner of its release. From then on it governs."""
    from jobs.cli import output
    from registry import policy

    signed = policy.sign(settings.context(), policy.load(file), owner)
    if as_json:
        output.emit_json(signed)
    else:
        output.say(f"policy {signed.title} governs, signed by {', '.join(signed.signers)}")


@gates.command(epilog=examples("plinth gates show", "plinth gates show demo --json | jq .policy.without"))
@click.argument("release", required=False)
@shared
@recipe_option
@json_option
def show(settings: Settings, release: str | None, as_json: bool) -> None:
    """Show the policy that governs RELEASE (default: the recipe's): its gates, who signed it, what it leaves out."""
    from jobs.cli import output
    from registry import policy

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
    from jobs.cli import output
    from registry import api

    wanted = None if version == "latest" else version
    until = expires if "T" in expires else f"{expires}T23:59:59+00:00"
    made = api.waive(settings.context(), settings.load_recipe(), wanted, gate, reason, until, owner)
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
