"""The connection to MLflow: one client, quiet, with named failures.

Source URIs of model versions are `plinth:///models/<12>`: relative to the workspace, so that neither a
moved workspace nor a server on another machine breaks them (MLflow itself refuses local paths outside
a run's artifacts). Weights never pass through MLflow.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from plinth.errors import LineageError, MissingError, RegistryError
from plinth.storage.workspace import Workspace
from registry import artifact_places
from registry.login import accounts
from registry.mlflow_process import DATABASE
from registry.server import ensure_server, find_server, use

SCHEME = "plinth://"
ABSENT = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")

P = ParamSpec("P")
R = TypeVar("R")


def connect(workspace: Workspace) -> Any:
    """An `MlflowClient` of the workspace's server, which is started when it does not run: for whoever writes.

    Raises:
        RegistryError: when no server can be reached.
    """
    return _client(workspace, ensure_server(workspace))


def reading(workspace: Workspace) -> Any:
    """An `MlflowClient` for whoever only reads; starts no server.

    Without one it reads the workspace's own database, as the server would; where there is none, nothing is registered.

    Raises:
        RegistryError: when `MLFLOW_TRACKING_URI` does not answer.
    """
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return connect(workspace)
    running, database = find_server(workspace), workspace.mlflow / DATABASE
    if running is not None:
        use(workspace)
        return _client(workspace, running.uri)
    return _client(workspace, f"sqlite:///{database}") if database.exists() else Unregistered()


class Unregistered:
    """What a reader asks of MLflow, where nothing was ever registered."""

    def search_registered_models(self, **_: Any) -> Any:
        return _none_found()

    def search_model_versions(self, *_: Any, **__: Any) -> Any:
        return _none_found()

    def get_registered_model(self, name: str) -> Any:
        raise _absent(name)

    def get_model_version(self, name: str, version: str) -> Any:
        raise _absent(f"{name}/{version}")


def _none_found() -> Any:
    from mlflow.store.entities import PagedList

    return PagedList([], None)


def _absent(what: str) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

    return MlflowException(f"{what}: nothing is registered in this workspace", RESOURCE_DOES_NOT_EXIST)


def _client(workspace: Workspace, uri: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Standard output belongs to the command that runs, which may be writing JSON.
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    # MLflow's own retries back off for minutes; our callers retry by running again.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    accounts.log_in(workspace, uri)
    return artifact_places.guard(MlflowClient(tracking_uri=uri, registry_uri=uri), uri)


@contextmanager
def speaking(purpose: str) -> Iterator[None]:
    """Turn errors of MLflow and of the network into one named error."""
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException

    try:
        yield
    except MlflowException as error:
        kind = MissingError if error.error_code in ABSENT else RegistryError
        raise kind(f"MLflow refused: {purpose}", found=error, remedy="`plinth status` shows the registry") from error
    except RequestException as error:
        raise RegistryError(
            f"the connection to MLflow broke: {purpose}", found=error, remedy="run the same command again"
        ) from error


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
    from mlflow.exceptions import MlflowException

    try:
        return call()
    except MlflowException as error:
        if error.error_code in ABSENT or "not found" in str(error).lower():
            return None
        raise


def ensure_model(client: Any, name: str, description: str) -> None:
    """Make a registered model unless it is there."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
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


def source_uri(workspace: Workspace, directory: Path) -> str:
    """The source URI of a model directory in MLflow."""
    return f"{SCHEME}/{directory.relative_to(workspace.root).as_posix()}"


def source_directory(workspace: Workspace, uri: str) -> Path:
    """The directory that a source URI names.

    Raises:
        LineageError: when it names something outside the workspace's models.
    """
    relative = Path(uri.removeprefix(f"{SCHEME}/"))
    directory = workspace.root / relative
    if not uri.startswith(f"{SCHEME}/") or directory.parent != workspace.models or ".." in relative.parts:
        raise LineageError(
            f"the registry names a source that is not a model of this workspace: {uri}",
            expected=f"{SCHEME}/models/…",
            remedy="register the checkpoint in this workspace",
        )
    return directory
