"""`plinth ops people`: the login of the workspace's MLflow server, and who may log in."""

from __future__ import annotations

import click

from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, recipe_option, shared


@group(
    epilog=examples(
        "plinth ops people login",
        "plinth ops people login --behind-proxy --origin https://mlflow.example.org",
        "plinth ops people add ada@example.org",
        "plinth ops people list",
    )
)
def people() -> None:
    """Let MLflow ask for a login, so that tags can count as decisions; make accounts.

    The gate policy says whether they do: `tag` among approvals.accepted, the server's key among approvals.proxies, and
    the people among approvals.approvers.
    """


@people.command()
@click.option("--behind-proxy", is_flag=True, help="People log in at a reverse proxy, which names them in a header.")
@click.option("--header", default="X-Forwarded-Email", show_default=True, metavar="NAME", help="The proxy's header.")
@click.option("--origin", default="", metavar="URL", help="The proxy's public address, as browsers see it.")
@click.option("--signer", default="mlflow-login", show_default=True, metavar="OWNER", help="Key of the server.")
@click.option("--off", is_flag=True, help="Ask for no login any more; accounts are kept.")
@shared
def login(settings: Settings, behind_proxy: bool, header: str, origin: str, signer: str, off: bool) -> None:
    """Ask for a login from now on; a running server is started again when it is next needed.

    The server signs who set which tag with its own key: first make and enrol one, `plinth keys new approver
    mlflow-login` and `plinth keys enrol`.
    """
    from pydantic import ValidationError

    from plinth.storage.workspace import Workspace
    from plinth_registry.mlflow import settings as logins
    from plinth_registry.mlflow.server import stop_server

    workspace = Workspace(settings.workspace)
    if off:
        asked = logins.stop_asking(workspace)
        stop_server(workspace)
        return output.say("MLflow asks for no login any more" if asked else "MLflow asks for no login")
    kind = "proxy" if behind_proxy else "password"
    try:
        given = logins.LoginSettings(kind=kind, signer=signer, header=header, origin=origin)
    except ValidationError as error:
        wrong = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())
        raise click.UsageError(f"no login can be asked for so: {wrong}") from error
    place = logins.ask(workspace, given)
    stop_server(workspace)
    output.say(f"MLflow asks for a login: {place}")
    if behind_proxy:
        output.say(f"The proxy sends {header}, and in {logins.SECRET_HEADER} what is in {place / logins.SECRET}")
    return output.say("Give people accounts: `plinth ops people add NAME`")


@people.command()
@click.argument("person")
@click.option("--renew", is_flag=True, help="Give a new password to an account that is there.")
@shared
@recipe_option
def add(settings: Settings, person: str, renew: bool) -> None:
    """Make an account for PERSON, by the name that the gate policy lists.

    PERSON may read everything, and set tags of the candidates of the recipe's release.
    """
    from plinth.storage.workspace import Workspace
    from plinth_registry.candidate import model_name
    from plinth_registry.mlflow import connection
    from plinth_registry.mlflow import settings as logins

    workspace = Workspace(settings.workspace)
    model = model_name(settings.load_recipe())
    password = connection.add_person(workspace, person, model, renew=renew)
    output.say(f"{output.plain_markup(person)} may set tags of {model}")
    known = logins.load(workspace)
    if password and known is not None and known.kind == "password":
        output.say(f"The password, shown once: {password}")


@people.command()
@click.argument("person")
@shared
def remove(settings: Settings, person: str) -> None:
    """End the account of PERSON; what they decided stays decided."""
    from plinth.storage.workspace import Workspace
    from plinth_registry.mlflow import connection

    connection.remove_person(Workspace(settings.workspace), person)
    output.say(f"{output.plain_markup(person)} may no longer log in")


@people.command("list")
@shared
def list_people(settings: Settings) -> None:
    """List everybody who may log in."""
    from plinth.storage.workspace import Workspace
    from plinth_registry.mlflow import connection

    for person in connection.people(Workspace(settings.workspace)):
        output.say(output.plain_markup(person))
