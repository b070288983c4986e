"""Accounts of an MLflow server that asks for a login: Plinth's own, and those of people.

Plinth's own password goes to the workspace's own server and nowhere else, and never into the environment, which jobs
inherit. People may read everything and change tags of the candidates of one release.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

from plinth.errors import RegistryError
from plinth.storage.workspace import Workspace
from plinth_registry.login import account_database, settings
from plinth_registry.model_database import rows
from plinth_registry.model_registry import Refused, Server
from plinth_registry.server import ensure_server, is_own, without_server

#: Names the provider of credentials to MLflow's client; it holds no secret.
PROVIDER: Final = "plinth"
GRANT: Final = "3.0/mlflow/users/permissions/grant"
#: What a person may do with a registered model.
MODELS, EDIT = "registered_model", "EDIT"
#: Password of Plinth's account, by the address of the server.
_PASSWORDS: dict[str, str] = {}


def log_in(workspace: Workspace, uri: str) -> None:
    """Let MLflow's client in this process send the password of Plinth's account to the workspace's own server.

    Raises:
        SignatureError: the server asks for a login, and the password is not here.
    """
    if settings.load(workspace) is None or not is_own(workspace, uri):
        return
    if not _PASSWORDS:
        _register()
    _PASSWORDS[uri.rstrip("/")] = settings.password(workspace)
    os.environ["MLFLOW_TRACKING_AUTH"] = PROVIDER


def authorization(workspace: Workspace, uri: str) -> dict[str, str]:
    """Headers of requests to the workspace's own server; none where it asks for no login.

    Raises:
        SignatureError: the server asks for a login, and the password is not here.
    """
    if settings.load(workspace) is None or not is_own(workspace, uri):
        return {}
    given = f"{settings.ACCOUNT}:{settings.password(workspace)}".encode()
    return {"Authorization": f"Basic {base64.b64encode(given).decode()}"}


def add(workspace: Workspace, person: str, model: str, *, renew: bool = False) -> str:
    """Let a person change tags of a model; makes an account where there is none.

    Args:
        renew: give a new password to an account that is there.

    Returns:
        The password that was given; empty where the old one stays.

    Raises:
        RegistryError: the name is Plinth's own, the server asks for no login, or it refuses.
    """
    _require_person(workspace, person)
    known = person in people(workspace)
    password = "" if known and not renew else secrets.token_urlsafe(15)
    with without_server(workspace) as alone:
        if alone and account_database.write(_database(workspace), person, password, (MODELS, model), EDIT):
            return password
    if password:
        method, path = ("PATCH", "2.0/mlflow/users/update-password") if known else ("POST", "2.0/mlflow/users/create")
        _ask(workspace, person, method, path, password=password)
    _ask(workspace, person, "POST", GRANT, resource_type=MODELS, resource_id=model, permission=EDIT)
    return password


def remove(workspace: Workspace, person: str) -> None:
    """End an account; what it decided stays decided.

    Raises:
        RegistryError: there is none of that name, it is Plinth's own, or the server refuses.
    """
    _require_person(workspace, person)
    _ask(workspace, person, "DELETE", "2.0/mlflow/users/delete")


def people(workspace: Workspace) -> tuple[str, ...]:
    """Everybody who may log in, in order of name; Plinth's own account is not among them."""
    names = rows(_database(workspace), "SELECT username FROM users ORDER BY username")
    return tuple(name for (name,) in names if name != settings.ACCOUNT)


def _database(workspace: Workspace) -> Path:
    return settings.folder(workspace) / settings.PEOPLE


def _require_person(workspace: Workspace, person: str) -> None:
    if settings.load(workspace) is None:
        raise RegistryError("this workspace's MLflow server asks for no login", remedy="`plinth ops people login`")
    if person == settings.ACCOUNT:
        raise RegistryError(f"{person} is the account of Plinth itself", expected="the name of a person")


def _ask(workspace: Workspace, person: str, method: str, path: str, **given: str) -> None:
    """Ask the server for something about an account, as Plinth."""
    uri = ensure_server(workspace)
    if not is_own(workspace, uri):
        remedy = "unset MLFLOW_TRACKING_URI, or make the account at that server"
        raise RegistryError("accounts are those of the workspace's own server", found=uri, remedy=remedy)
    server = Server(uri, authorization(workspace, uri), dict)
    try:
        server.request(method, f"/api/{path}", json.dumps({"username": person, **given}).encode())
    except Refused as error:
        if (path, error.error_code) != (GRANT, "RESOURCE_ALREADY_EXISTS"):
            raise RegistryError(f"MLflow refused {path} for {person}", found=error) from error


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
