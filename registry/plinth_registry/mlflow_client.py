"""The connection to MLflow: one client, quiet, with named failures; its library is imported for runs and artifacts.

Weights never pass through MLflow.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial, wraps
from typing import Any, ParamSpec, TypeVar

from plinth.errors import MissingError, RegistryError
from plinth.storage.workspace import Workspace
from plinth_registry import artifact_places
from plinth_registry.login import accounts
from plinth_registry.mlflow_process import ARTIFACTS, ARTIFACTS_VARIABLE, DATABASE, DATABASE_VARIABLE
from plinth_registry.model_database import ModelDatabase
from plinth_registry.model_registry import Refused, Server
from plinth_registry.server import ensure_server, find_server, is_own, is_running

ABSENT = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")

P = ParamSpec("P")
R = TypeVar("R")


def connect(workspace: Workspace) -> Any:
    """A client of the workspace's MLflow.

    Where no server runs, models are read and written in the workspace's own database, and a server is started for
    everything else: runs, metrics, and a database that does not exist yet.

    Raises:
        RegistryError: when no server can be reached.
    """
    own = not (os.environ.get("MLFLOW_TRACKING_URI") or os.environ.get(DATABASE_VARIABLE))
    if not own or find_server(workspace):
        return _client(workspace, ensure_server(workspace))
    artifacts = None if os.environ.get(ARTIFACTS_VARIABLE) else workspace.mlflow / ARTIFACTS
    server = lru_cache(maxsize=1)(lambda: _client(workspace, ensure_server(workspace)))
    return ModelDatabase(workspace.mlflow / DATABASE, artifacts, server, partial(is_running, workspace))


def _client(workspace: Workspace, uri: str) -> Any:
    """The model registry of the workspace's own server; MLflow's library for what else it does, and other servers."""
    if not is_own(workspace, uri):
        return _library(workspace, uri)
    return Server(uri, accounts.authorization(workspace, uri), partial(_library, workspace, uri))


def _library(workspace: Workspace, uri: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Standard output belongs to the command that runs, which may be writing JSON.
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    # MLflow's own retries back off for minutes; our callers retry by running again.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    accounts.log_in(workspace, uri)
    return artifact_places.guard(MlflowClient(tracking_uri=uri, registry_uri=uri), uri)


def _code(error: Exception) -> str:
    """The code of an error of MLflow, of its library or not; empty for other errors."""
    library = sys.modules.get("mlflow.exceptions")  # an error of what was not imported is not raised
    known = (Refused, library.MlflowException) if library else (Refused,)
    return str(error.error_code) if isinstance(error, known) else ""


@contextmanager
def speaking(purpose: str) -> Iterator[None]:
    """Turn errors of MLflow and of the network into one named error."""
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
                f"the connection to MLflow broke: {purpose}", found=error, remedy="run the same command again"
            ) from error
        raise


def named(purpose: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that errors of MLflow in it name its purpose."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with speaking(purpose):
                return function(*args, **kwargs)

        return call

    return decorate


def optional(call: Callable[[], Any]) -> Any | None:
    """The result of a call, or None where MLflow has no such thing."""
    try:
        return call()
    except Exception as error:
        if (code := _code(error)) and (code in ABSENT or "not found" in str(error).lower()):
            return None
        raise


def ensure_model(client: Any, name: str, description: str) -> None:
    """Make a registered model unless it is there."""
    try:
        client.create_registered_model(name, description=description)
    except Exception as error:
        if _code(error) != "RESOURCE_ALREADY_EXISTS":
            raise


def versions(client: Any, name: str) -> list[Any]:
    """Every version of a registered model, oldest first."""
    found = _pages(lambda token: client.search_model_versions(f"name = '{name}'", max_results=200, page_token=token))
    return sorted(found, key=lambda version: int(version.version))


def models(client: Any) -> list[Any]:
    """Every registered model."""
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
