"""MLflow workspaces on the local server: separate experiments and registered models for several teams.

`MLFLOW_ENABLE_WORKSPACES=true`, MLflow's own variable, enables them. They then stay enabled, because MLflow cannot
disable them while a workspace has experiments, and a process without the variable must not mix the models of two
workspaces. `MLFLOW_WORKSPACE` selects the workspace of a command; without it, MLflow uses the workspace `default`.

Workspaces exclude the login of the local server: its signed approvals identify a release by the name of a model, which
two workspaces may both have.
"""

from __future__ import annotations

import json
import os
import sqlite3
from typing import Final
from urllib.parse import quote

from plinth.errors import RegistryError
from plinth.storage.workspace import Workspace
from plinth_registry.mlflow import Refused, Server, settings
from plinth_registry.mlflow.database import rows

ENABLE_VARIABLE, NAME_VARIABLE = "MLFLOW_ENABLE_WORKSPACES", "MLFLOW_WORKSPACE"
DATABASE: Final = "mlflow.db"
HEADER: Final = "X-MLFLOW-WORKSPACE"
API: Final = "/api/3.0/mlflow/workspaces"


def enabled(workspace: Workspace) -> bool:
    """Return True if the local MLflow server of a workspace has MLflow workspaces."""
    return os.environ.get(ENABLE_VARIABLE, "").lower() in ("true", "1") or _exist(workspace)


def _exist(workspace: Workspace) -> bool:
    database = workspace.mlflow / DATABASE
    try:
        return bool(rows(database, "SELECT 1 FROM workspaces WHERE name != 'default' LIMIT 1"))
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return False
        raise


def headers(workspace: Workspace) -> dict[str, str]:
    """Return the header that selects the MLflow workspace of this process on the local server."""
    name = os.environ.get(NAME_VARIABLE, "").strip()
    return {HEADER: name} if name and enabled(workspace) else {}


def require_no_login(workspace: Workspace) -> None:
    """Require that the local server has MLflow workspaces or a login, but not both.

    Raises:
        RegistryError: the server has both.
    """
    if settings.identity(workspace) and enabled(workspace):
        raise RegistryError(
            "the local MLflow server cannot have both MLflow workspaces and a login",
            found=f"a login in {settings.folder(workspace)}, and MLflow workspaces",
            expected="one of them, because a signed approval names a model, which two MLflow workspaces may both have",
            remedy="disable the login with `plinth ops people login --off`, or use your own MLflow server; if no "
            f"MLflow workspace exists yet, unset {ENABLE_VARIABLE}",
        )


def create(workspace: Workspace, uri: str) -> None:
    """Create the MLflow workspace of this process on the local server, unless it exists.

    Raises:
        RegistryError: the server refuses its name.
    """
    for name in headers(workspace).values():
        server = Server(uri, {}, dict)
        try:
            server.request("GET", f"{API}/{quote(name, safe='')}")
        except Refused:
            _create(server, name)


def _create(server: Server, name: str) -> None:
    try:
        server.request("POST", API, json.dumps({"name": name}).encode())
    except Refused as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise RegistryError(
                f"MLflow refused the workspace {name!r} in {NAME_VARIABLE}", found=error, expected="a valid name"
            ) from error
