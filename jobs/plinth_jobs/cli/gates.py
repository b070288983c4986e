"""`plinth gates`: the gate policy of a release. `plinth ops people`: MLflow accounts of people who may approve."""

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


# `plinth gates`: check, sign and show the gate policy; evaluate the gates of a candidate; waive one of them.

file_argument = click.argument("file", type=PackagedFile("policies", exists=True))
owner_option = click.option("--owner", help="Owner of the signing key, if this machine has several signing keys.")


@group(
    epilog=examples(
        "plinth gates check default",
        "plinth gates sign my-policy.yaml",
        "plinth gates show",
        "plinth gates verdict",
        "plinth gates waive 3 stability --until 2027-01-31 --reason 'the restarts were a planned move'",
    )
)
def gates() -> None:
    """Sign, show and check the gate policy of a release.

    The newest signed policy applies; no recipe, option or environment variable overrides it.
    """


@gates.command(epilog=examples("plinth gates check my-policy.yaml -r my-recipe.yaml"))
@file_argument
@shared
@recipe_option
@json_option
def check(settings: Settings, file: Path, as_json: bool) -> None:
    """Check a policy FILE. With a recipe (-r), also list the gates for which the recipe produces no evidence."""
    from plinth_registry import policy

    found = policy.load(file)
    lacking = policy.unmeasured(found, settings.load_recipe()) if settings.recipe else ()
    if as_json:
        return output.emit_json({"digest": policy.digest(found), "asked": found.asked, "unmeasured": lacking})
    gates = counted(len(found.asked) + len(found.extensions), "gate")
    output.say(f"{file}: {gates}, digest {policy.digest(found)[:12]}")
    for one in lacking:
        output.say(f"  this recipe produces no evidence for the gate {one}")
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
@click.option("--yes", is_flag=True, help="Sign without confirmation, even if the new policy weakens gates.")
@json_option
def sign(settings: Settings, file: Path, owner: str | None, yes: bool, as_json: bool) -> None:
    """Sign the policy in FILE as release owner, so that it replaces the current policy.

    If settings differ from the current policy, each change is shown as weaker, stronger or changed, and must be
    confirmed.
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
        output.say(f"the current policy is {signed.title}, signed by {', '.join(signed.signers)}")


def _show_changes(title: str, made: Sequence[PolicyChange]) -> None:
    output.heading(f"Changes to {title}, the current policy")
    colors = {"weaker": "red", "stronger": "green", "changed": "yellow"}
    rows = [(output.coloured(one.direction, colors[one.direction]), one.key, one.before, one.after) for one in made]
    output.table(("direction", "key", "before", "after"), rows)


def _require_confirmation(made: Sequence[PolicyChange], as_json: bool) -> None:
    """Ask the user on the terminal to confirm the changes of the policy.

    Raises:
        RequestError: the user declined, or there is no terminal.
    """
    import sys

    weaker = [one.key for one in made if one.direction == "weaker"]
    words = f"{counted(len(weaker), 'setting')} weaker, {len(made) - len(weaker)} other changes"
    if not as_json and sys.stdin.isatty() and click.confirm(f"{words}. Sign it?"):
        return
    raise RequestError(
        "the policy was not signed",
        found=words,
        expected="a confirmation",
        remedy="review the changes, then pass --yes",
    )


@gates.command(epilog=examples("plinth gates show", "plinth gates show demo --json | jq .policy.without"))
@click.argument("release", required=False)
@shared
@recipe_option
@json_option
def show(settings: Settings, release: str | None, as_json: bool) -> None:
    """Show the policy that governs RELEASE (default: the recipe's): gates, signers and omitted gates."""
    from plinth_registry import policy

    name = release or settings.load_recipe().required_release().name
    signed = policy.current(settings.context(), name)
    if as_json:
        return output.emit_json(signed)
    output.heading(f"policy {signed.title}")
    output.facts({"signed": f"{signed.at} by {', '.join(signed.signers)}", **_lines(signed.policy)})
    return None


@gates.command(epilog=examples("plinth gates verdict", "plinth gates verdict 3 --json | jq '.gates[] | {name, state}'"))
@click.argument("version", default="latest")
@shared
@recipe_option
@json_option
def verdict(settings: Settings, version: str, as_json: bool) -> None:
    """Evaluate every gate for candidate VERSION (default: the newest), also after its release; nothing is signed."""
    from plinth_jobs.cli.release import show_candidates
    from plinth_registry import decisions

    status = decisions.status(settings.context(), settings.load_recipe(), None if version == "latest" else version)
    if as_json:
        output.emit_json(status)
    else:
        show_candidates((status,))


@gates.command(
    epilog=examples("plinth gates waive latest stability --until 2027-01-31 --reason 'a planned move of the machine'")
)
@click.argument("version")
@click.argument("gate")
@shared
@recipe_option
@click.option("--until", "expires", required=True, metavar="DATE", help="Expiry date (UTC), such as 2027-01-31.")
@click.option("--reason", required=True, metavar="TEXT", help="Reason for the waiver.")
@owner_option
@json_option
def waive(
    settings: Settings, version: str, gate: str, expires: str, reason: str, owner: str | None, as_json: bool
) -> None:
    """Waive one GATE for candidate VERSION until a date. The gate is still shown as failed."""
    from plinth_registry import decisions

    wanted = None if version == "latest" else version
    until = expires if "T" in expires else f"{expires}T23:59:59+00:00"
    made = decisions.waive(settings.context(), settings.load_recipe(), wanted, gate, reason, until, owner)
    if as_json:
        output.emit_json(made)
    else:
        output.say(f"{made.gate} of candidate {made.candidate[:12]}: {made.said}")


def _lines(policy: GatePolicy) -> dict[str, str]:
    """Return the settings of each gate in a policy, and the reason for each omitted gate."""
    settings = policy.model_dump(mode="json", exclude={"release", "version", "description", "extensions", "without"})
    shown = {name: _yaml(value) for name, value in settings.items()}
    shown |= {f"extension {name}": _yaml(dict(raw)) for name, raw in policy.extensions.items()}
    return shown | {f"without {name}": reason for name, reason in policy.without.items()}


def _yaml(value: object) -> str:
    """Return the value of a signed setting as one line of YAML."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("...\n").strip()


# `plinth ops people`: authentication of the workspace's MLflow server.


@group(
    epilog=examples(
        "plinth ops people login",
        "plinth ops people login --behind-proxy --origin https://mlflow.example.org",
        "plinth ops people add ada@example.org",
        "plinth ops people list",
    )
)
def people() -> None:
    """Enable MLflow authentication, so that tags can count as decisions, and manage accounts.

    The gate policy must accept such tags: `tag` in approvals.accepted, the server's key in approvals.proxies, and the
    people in approvals.approvers.
    """


@people.command()
@click.option(
    "--behind-proxy", is_flag=True, help="A reverse proxy authenticates users and passes their name in a header."
)
@click.option(
    "--header", default="X-Forwarded-Email", show_default=True, metavar="NAME", help="Header with the user name."
)
@click.option("--origin", default="", metavar="URL", help="Public address of the proxy.")
@click.option(
    "--signer",
    default="mlflow-login",
    show_default=True,
    metavar="OWNER",
    help="Owner of the key that signs tag changes.",
)
@click.option("--off", is_flag=True, help="Disable authentication; accounts are kept.")
@shared
def login(settings: Settings, behind_proxy: bool, header: str, origin: str, signer: str, off: bool) -> None:
    """Require a login for MLflow. A running server restarts when it is next needed.

    The server signs each tag change with its own key. Create and enroll this key first: `plinth keys new approver
    mlflow-login`, then `plinth keys enrol`.
    """
    from pydantic import ValidationError

    from plinth.storage.workspace import Workspace
    from plinth_registry.mlflow import settings as logins
    from plinth_registry.mlflow.server import stop_server

    workspace = Workspace(settings.workspace)
    if off:
        asked = logins.stop_asking(workspace)
        stop_server(workspace)
        return output.say("MLflow authentication is now disabled" if asked else "MLflow authentication is disabled")
    kind = "proxy" if behind_proxy else "password"
    try:
        given = logins.LoginSettings(kind=kind, signer=signer, header=header, origin=origin)
    except ValidationError as error:
        wrong = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())
        raise click.UsageError(f"authentication cannot be enabled: {wrong}") from error
    place = logins.ask(workspace, given)
    stop_server(workspace)
    output.say(f"MLflow authentication is enabled: {place}")
    if behind_proxy:
        output.say(
            f"The proxy must send the user name in the header {header}, and the content of {place / logins.SECRET} in "
            f"the header {logins.SECRET_HEADER}"
        )
    return output.say("Add accounts with `plinth ops people add NAME`")


@people.command()
@click.argument("person")
@click.option("--renew", is_flag=True, help="Reset the password of an existing account.")
@shared
@recipe_option
def add(settings: Settings, person: str, renew: bool) -> None:
    """Create an account for PERSON, with the name that the gate policy lists.

    PERSON may read everything and set tags on candidates of the recipe's release.
    """
    from plinth.storage.workspace import Workspace
    from plinth_registry.candidate import model_name
    from plinth_registry.mlflow import connection
    from plinth_registry.mlflow import settings as logins

    workspace = Workspace(settings.workspace)
    model = model_name(settings.load_recipe())
    password = connection.add_person(workspace, person, model, renew=renew)
    output.say(f"{output.plain_markup(person)} may set tags on {model}")
    known = logins.load(workspace)
    if password and known is not None and known.kind == "password":
        output.say(f"Password (shown only once): {password}")


@people.command()
@click.argument("person")
@shared
def remove(settings: Settings, person: str) -> None:
    """Delete the account of PERSON; earlier decisions stay valid."""
    from plinth.storage.workspace import Workspace
    from plinth_registry.mlflow import connection

    connection.remove_person(Workspace(settings.workspace), person)
    output.say(f"{output.plain_markup(person)} can no longer log in")


@people.command("list")
@shared
@json_option
def list_people(settings: Settings, as_json: bool) -> None:
    """List all accounts."""
    from plinth.storage.workspace import Workspace
    from plinth_registry.mlflow import connection

    found = list(connection.people(Workspace(settings.workspace)))
    if as_json:
        output.emit_json(found)
    for person in () if as_json else found:
        output.say(output.plain_markup(person))
