"""Workspaces of an MLflow server: MLFLOW_WORKSPACE selects where Plinth registers models and clients load them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth import processes
from plinth.compute.context import Context
from plinth.errors import MissingError, RegistryError
from plinth_registry import decisions
from plinth_registry.mlflow import connection, settings, workspaces
from plinth_registry.mlflow.server import SERVER_ENVIRONMENT, ensure_server, find_server, healthy, stop_server
from tests.registry.exports.test_released import ModelLine
from tests.registry.login.conftest import enrol_server
from tests.registry.test_api import ADA, BEN, register

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An MLflow server with the workspaces `search` and `other`."""
    import mlflow

    port = processes.free_port("127.0.0.1")
    uri, home = f"http://127.0.0.1:{port}", tmp_path / "server"
    home.mkdir()
    command = [sys.executable, "-m", "mlflow", "server", "--enable-workspaces", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{home}/mlflow.db", "--artifacts-destination", f"{home}/artifacts"]
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(
            command, env=os.environ | SERVER_ENVIRONMENT, stdout=log, stderr=log, cwd=home, start_new_session=True
        ) as server,
    ):
        until = time.monotonic() + 200
        while not healthy(uri):
            assert server.poll() is None, (home / "log").read_text()
            assert time.monotonic() < until, (home / "log").read_text()
            time.sleep(0.2)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        for name in ("search", "other"):
            mlflow.create_workspace(name)
        monkeypatch.setenv("MLFLOW_WORKSPACE", "search")
        yield uri
        server.terminate()


@pytest.fixture
def own_server(ctx: Context, own_trust: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The workspace's own server, in a workspace and with trust that only this test changes."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield
    stop_server(ctx.workspace)


def test_a_release_is_in_the_workspace_of_the_environment(
    ctx: Context, line: Any, tenants: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    own = ModelLine(ctx, line.recipe)
    found, _ = register(ctx, own)
    decisions.approve(ctx, own.recipe, found.version, ADA, "good")
    decisions.promote(ctx, own.recipe, found.version, BEN, "good")
    name = own.recipe.required_release().name
    monkeypatch.setenv("PLINTH_WORKSPACE", str(ctx.workspace.root))
    for uri in (f"models:/{name}@champion", f"models:/{found.model}/1"):
        assert (Path(mlflow.artifacts.download_artifacts(uri)) / "MLmodel").is_file()
    monkeypatch.setenv("MLFLOW_WORKSPACE", "other")
    with pytest.raises(mlflow.exceptions.MlflowException, match="not found"):
        mlflow.artifacts.download_artifacts(f"models:/{name}@champion")
    client = mlflow.MlflowClient()
    client.create_registered_model(name)
    for _ in range(2):
        client.create_model_version(name, f"plinth:///models/{own.checkpoint.digest[:12]}")
    client.set_registered_model_alias(name, "champion", "2")
    with pytest.raises(mlflow.exceptions.MlflowException, match=f"{name} version 2 was never released"):
        mlflow.artifacts.download_artifacts(f"models:/{name}@champion")


def test_the_local_server_separates_the_models_of_two_teams(
    ctx: Context, line: Any, own_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    monkeypatch.setenv("MLFLOW_WORKSPACE", "search")
    own = ModelLine(ctx, line.recipe)
    found, _ = register(ctx, own)
    decisions.approve(ctx, own.recipe, found.version, ADA, "good")
    decisions.promote(ctx, own.recipe, found.version, BEN, "good")
    name = own.recipe.required_release().name
    uri = ensure_server(ctx.workspace)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("PLINTH_WORKSPACE", str(ctx.workspace.root))
    assert {one.name for one in mlflow.list_workspaces()} == {"default", "search"}
    assert (Path(mlflow.artifacts.download_artifacts(f"models:/{name}@champion")) / "MLmodel").is_file()
    assert aliases(ctx, name) == {"champion": found.version}

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("MLFLOW_WORKSPACE", "other")  # the same server: Plinth creates the workspace
    assert ensure_server(ctx.workspace) == uri
    with pytest.raises(MissingError):
        aliases(ctx, name)
    assert find_server(ctx.workspace).workspaces  # type: ignore[union-attr]

    # they stay enabled: a process without the variables neither stops the server nor mixes the models
    monkeypatch.delenv("MLFLOW_ENABLE_WORKSPACES")
    monkeypatch.delenv("MLFLOW_WORKSPACE")
    assert workspaces.enabled(ctx.workspace)
    assert ensure_server(ctx.workspace) == uri
    stop_server(ctx.workspace)
    with pytest.raises(MissingError):
        aliases(ctx, name)
    monkeypatch.setenv("MLFLOW_WORKSPACE", "search")
    assert aliases(ctx, name) == {"champion": found.version}
    monkeypatch.setenv("MLFLOW_WORKSPACE", "../search")
    with pytest.raises(RegistryError, match=r"MLflow refused the workspace '\.\./search'"):
        ensure_server(ctx.workspace)


def aliases(ctx: Context, name: str) -> dict[str, str]:
    """Return the aliases of a model as Plinth sees them in the MLflow workspace of the environment."""
    with connection.speaking("read a model"):
        found: dict[str, str] = connection.connect(ctx.workspace).get_registered_model(name).aliases
    return found


def test_a_login_and_workspaces_exclude_each_other(
    ctx: Context, own_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol_server(ctx.workspace)
    settings.ask(ctx.workspace, settings.LoginSettings())
    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    with pytest.raises(RegistryError, match="cannot have both MLflow workspaces and a login"):
        ensure_server(ctx.workspace)
    assert find_server(ctx.workspace) is None
