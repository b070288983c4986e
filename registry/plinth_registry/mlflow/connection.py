"""Connection to MLflow: one quiet client with named errors. MLflow's library is imported only for runs and artifacts.

Weights never pass through MLflow. If its server requires a login, Plinth has its own account. The account's password is
sent only to the workspace's own server, and is never stored in the environment, which jobs inherit. People may read
everything and change tags on the candidates of one release.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import secrets
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from plinth.errors import MissingError, RegistryError
from plinth.storage.workspace import Workspace
from plinth_registry.mlflow import Refused, Server, database, guard, settings, workspaces
from plinth_registry.mlflow.database import ModelDatabase, rows
from plinth_registry.mlflow.server import (
    ARTIFACTS,
    ARTIFACTS_VARIABLE,
    DATABASE,
    DATABASE_VARIABLE,
    ensure_server,
    find_server,
    is_own,
    is_running,
    without_server,
)

ABSENT = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")

P = ParamSpec("P")
R = TypeVar("R")


def connect(workspace: Workspace) -> Any:
    """Return a client for the workspace's MLflow.

    If no server runs, models are read and written in the workspace's own database. A server is started for everything
    else: runs, metrics, MLflow workspaces, and a database that does not exist yet.

    Raises:
        RegistryError: no server can be reached.
    """
    own = not (os.environ.get("MLFLOW_TRACKING_URI") or os.environ.get(DATABASE_VARIABLE))
    if not own or find_server(workspace) or workspaces.enabled(workspace):
        return _client(workspace, ensure_server(workspace))
    artifacts = None if os.environ.get(ARTIFACTS_VARIABLE) else workspace.mlflow / ARTIFACTS
    server = lru_cache(maxsize=1)(lambda: _client(workspace, ensure_server(workspace)))
    return ModelDatabase(workspace.mlflow / DATABASE, artifacts, server, partial(is_running, workspace))


def _client(workspace: Workspace, uri: str) -> Any:
    """Return a client for an MLflow server: Plinth's own client for the workspace's server, and MLflow's library for
    any other server."""
    if not is_own(workspace, uri):
        return _library(workspace, uri)
    sent = authorization(workspace, uri) | workspaces.headers(workspace)
    return Server(uri, sent, partial(_library, workspace, uri))


def _library(workspace: Workspace, uri: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Standard output belongs to the running command, which may print JSON.
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    # MLflow's own retries back off for minutes; our callers retry by running again.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    log_in(workspace, uri)
    return guard(MlflowClient(tracking_uri=uri, registry_uri=uri), uri)


def _code(error: Exception) -> str:
    """Return the error code of an MLflow error, even if MLflow's library is not imported. For any other error, return
    an empty string."""
    library = sys.modules.get("mlflow.exceptions")  # without the import, its errors cannot be raised
    known = (Refused, library.MlflowException) if library else (Refused,)
    return str(error.error_code) if isinstance(error, known) else ""


@contextmanager
def speaking(purpose: str) -> Iterator[None]:
    """Convert errors of MLflow and of the network in the `with` block to one error that names the call's purpose."""
    try:
        yield
    except Exception as error:
        if code := _code(error):
            kind = MissingError if code in ABSENT else RegistryError
            raise kind(
                f"MLflow refused: {purpose}", found=error, remedy="`plinth status` shows the registry"
            ) from error
        requests = sys.modules.get("requests")
        if isinstance(error, (sqlite3.Error, *((requests.RequestException,) if requests else ()))):
            raise RegistryError(
                f"the connection to MLflow failed: {purpose}", found=error, remedy="run the same command again"
            ) from error
        raise


def named(purpose: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that MLflow errors in it name the purpose of the call."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with speaking(purpose):
                return function(*args, **kwargs)

        return call

    return decorate


def optional(call: Callable[[], Any]) -> Any | None:
    """Return the result of a call, or None if the requested object does not exist in MLflow."""
    try:
        return call()
    except Exception as error:
        if (code := _code(error)) and (code in ABSENT or "not found" in str(error).lower()):
            return None
        raise


def ensure_model(client: Any, name: str, description: str) -> None:
    """Create a registered model unless it already exists."""
    try:
        client.create_registered_model(name, description=description)
    except Exception as error:
        if _code(error) != "RESOURCE_ALREADY_EXISTS":
            raise


def versions(client: Any, name: str) -> list[Any]:
    """Return every version of a registered model, oldest first."""
    found = _pages(lambda token: client.search_model_versions(f"name = '{name}'", max_results=200, page_token=token))
    return sorted(found, key=lambda version: int(version.version))


def models(client: Any) -> list[Any]:
    """Return every registered model."""
    return _pages(lambda token: client.search_registered_models(max_results=100, page_token=token))


def _pages(ask: Callable[[str | None], Any]) -> list[Any]:
    found: list[Any] = []
    token: str | None = None
    while True:
        page = ask(token)
        found += page
        token = page.token
        if not token:
            return found


#: Variable with the credential provider of MLflow's client; it has no secret.
PROVIDER: Final = "plinth"
GRANT: Final = "3.0/mlflow/users/permissions/grant"
#: Permission of a person on a registered model.
MODELS, EDIT = "registered_model", "EDIT"
#: Password of Plinth's account, by the address of the server.
_PASSWORDS: dict[str, str] = {}


def log_in(workspace: Workspace, uri: str) -> None:
    """Let MLflow's client in this process send the password of Plinth's account to the workspace's own server.

    Raises:
        SignatureError: the server requires a login, and the password is not on this machine.
    """
    if settings.load(workspace) is None or not is_own(workspace, uri):
        return
    if not _PASSWORDS:
        _register()
    _PASSWORDS[uri.rstrip("/")] = settings.password(workspace)
    os.environ["MLFLOW_TRACKING_AUTH"] = PROVIDER


def authorization(workspace: Workspace, uri: str) -> dict[str, str]:
    """Return the authorization headers for requests to the workspace's own server. The result is empty if the server
    requires no login.

    Raises:
        SignatureError: the server requires a login, and the password is not on this machine.
    """
    if settings.load(workspace) is None or not is_own(workspace, uri):
        return {}
    given = f"{settings.ACCOUNT}:{settings.password(workspace)}".encode()
    return {"Authorization": f"Basic {base64.b64encode(given).decode()}"}


def add_person(workspace: Workspace, person: str, model: str, *, renew: bool = False) -> str:
    """Let a person change tags on the candidates of a model. If the person has no account, create an account.

    Args:
        renew: True to set a new password for an existing account.

    Returns:
        The new password, or an empty string if the old password is kept.

    Raises:
        RegistryError: the name is Plinth's own, the server requires no login, or the server returns an error.
    """
    _require_person(workspace, person)
    known = person in people(workspace)
    password = "" if known and not renew else secrets.token_urlsafe(15)
    with without_server(workspace) as alone:
        if alone and database.write_account(_database(workspace), person, password, (MODELS, model), EDIT):
            return password
    if password:
        method, path = ("PATCH", "2.0/mlflow/users/update-password") if known else ("POST", "2.0/mlflow/users/create")
        _ask(workspace, person, method, path, password=password)
    _ask(workspace, person, "POST", GRANT, resource_type=MODELS, resource_id=model, permission=EDIT)
    return password


def remove_person(workspace: Workspace, person: str) -> None:
    """Delete the account of a person. The person's earlier decisions stay valid.

    Raises:
        RegistryError: no account has that name, it is Plinth's own account, or the server returns an error.
    """
    _require_person(workspace, person)
    _ask(workspace, person, "DELETE", "2.0/mlflow/users/delete")


def people(workspace: Workspace) -> tuple[str, ...]:
    """Return the names of all accounts in order, except Plinth's own account."""
    names = rows(_database(workspace), "SELECT username FROM users ORDER BY username")
    return tuple(name for (name,) in names if name != settings.ACCOUNT)


def _database(workspace: Workspace) -> Path:
    return settings.folder(workspace) / settings.PEOPLE


def _require_person(workspace: Workspace, person: str) -> None:
    if settings.load(workspace) is None:
        raise RegistryError(
            "authentication is disabled on this MLflow server", remedy="enable the login with `plinth ops people login`"
        )
    if person == settings.ACCOUNT:
        raise RegistryError(f"{person} is the account of Plinth itself", expected="the name of a person")


def _ask(workspace: Workspace, person: str, method: str, path: str, **given: str) -> None:
    """Send a request about an account to the MLflow server, logged in with Plinth's own account."""
    uri = ensure_server(workspace)
    if not is_own(workspace, uri):
        remedy = "unset MLFLOW_TRACKING_URI, or create the account on that server"
        raise RegistryError("accounts exist only on the workspace's own MLflow server", found=uri, remedy=remedy)
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
        """Provider of credentials for requests from MLflow's client to the workspace's own server."""

        def get_name(self) -> str:
            return PROVIDER

        def get_auth(self) -> Any:
            return _authenticated

    known: Any = registry._request_auth_provider_registry
    known.register(OwnServerLogin)


def _authenticated(request: Any) -> Any:
    """Add the password to a request of MLflow's client if this process knows the password of the server."""
    from requests.auth import HTTPBasicAuth

    for uri, password in _PASSWORDS.items():
        if request.url.startswith(f"{uri}/"):
            return HTTPBasicAuth(settings.ACCOUNT, password)(request)
    return request
