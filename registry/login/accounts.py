"""Accounts of an MLflow server that asks for a login: Plinth's own, and those of people.

Plinth's own password goes to the workspace's own server and nowhere else, and never into the environment, which jobs
inherit. People may read everything and change tags of the candidates of one release.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import closing
from typing import Any, Final

from plinth.errors import RegistryError
from plinth.storage.workspace import Workspace
from registry.login import settings

#: Names the provider of credentials to MLflow's client; it holds no secret.
PROVIDER: Final = "plinth"
#: Password of Plinth's account, by the address of the server.
_PASSWORDS: dict[str, str] = {}


def log_in(workspace: Workspace, uri: str) -> None:
    """Let MLflow's client in this process send the password of Plinth's account to the workspace's own server.

    Raises:
        SignatureError: the server asks for a login, and the password is not here.
    """
    from registry.server import is_own

    if settings.load(workspace) is None or not is_own(workspace, uri):
        return
    if not _PASSWORDS:
        _register()
    _PASSWORDS[uri.rstrip("/")] = settings.password(workspace)
    os.environ["MLFLOW_TRACKING_AUTH"] = PROVIDER


def add(workspace: Workspace, person: str, model: str, *, renew: bool = False) -> str:
    """Let a person change tags of a model; makes an account where there is none.

    Args:
        renew: give a new password to an account that is there.

    Returns:
        The password that was given; empty where the old one stays.

    Raises:
        RegistryError: the name is Plinth's own, the server asks for no login, or it refuses.
    """
    from mlflow.exceptions import MlflowException

    client, known = _client(workspace, person), person in people(workspace)
    password = "" if known and not renew else secrets.token_urlsafe(15)
    try:
        if password:
            (client.update_user_password if known else client.create_user)(person, password)
        client.grant_user_permission(person, "registered_model", model, "EDIT")
    except MlflowException as error:
        raise RegistryError(f"MLflow refused an account for {person}", found=error) from error
    return password


def remove(workspace: Workspace, person: str) -> None:
    """End an account; what it decided stays decided.

    Raises:
        RegistryError: there is none of that name, it is Plinth's own, or the server refuses.
    """
    from mlflow.exceptions import MlflowException

    try:
        _client(workspace, person).delete_user(person)
    except MlflowException as error:
        raise RegistryError(f"MLflow refused to end the account of {person}", found=error) from error


def people(workspace: Workspace) -> tuple[str, ...]:
    """Everybody who may log in, in order of name; Plinth's own account is not among them."""
    path = settings.folder(workspace) / settings.PEOPLE
    if not path.exists():
        return ()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        names = database.execute("SELECT username FROM users ORDER BY username").fetchall()
    return tuple(name for (name,) in names if name != settings.ACCOUNT)


def _client(workspace: Workspace, person: str) -> Any:
    from registry.server import ensure_server

    if settings.load(workspace) is None:
        raise RegistryError("this workspace's MLflow server asks for no login", remedy="`plinth people login`")
    if person == settings.ACCOUNT:
        raise RegistryError(f"{person} is the account of Plinth itself", expected="the name of a person")
    uri = ensure_server(workspace)
    log_in(workspace, uri)
    from mlflow.server.auth.client import AuthServiceClient

    return AuthServiceClient(uri)


def _register() -> None:
    from mlflow.tracking.request_auth import registry
    from mlflow.tracking.request_auth.abstract_request_auth_provider import RequestAuthProvider

    class OwnServerLogin(RequestAuthProvider):
        """Tells MLflow's client how requests to known servers are authenticated."""

        def get_name(self) -> str:
            return PROVIDER

        def get_auth(self) -> Any:
            return _authenticated

    known: Any = registry._request_auth_provider_registry
    known.register(OwnServerLogin)


def _authenticated(request: Any) -> Any:
    """A request with the password, when it goes to a server whose password this process knows."""
    from requests.auth import HTTPBasicAuth

    for uri, password in _PASSWORDS.items():
        if request.url.startswith(f"{uri}/"):
            return HTTPBasicAuth(settings.ACCOUNT, password)(request)
    return request
