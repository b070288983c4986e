"""The released line of the registry's tests, its sealed export, and an MLflow of their own, for attackers."""

from __future__ import annotations

from typing import Any

import pytest

from plinth.compute.context import Context
from plinth_registry.mlflow import connection
from tests.registry.conftest import ctx, line, make_line, unregistered
from tests.registry.exports.conftest import export

__all__ = ["ctx", "export", "line", "make_line", "unregistered"]


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The database of an MLflow, with its tables."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where artifacts lie
        MlflowClient(tracking_uri=uri, registry_uri=uri).search_experiments()
    return uri


@pytest.fixture
def mlflow(ctx: Context, mlflow_database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of an MLflow that everyone can write: its own code and database, without the network between."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_database)
    return connection.connect(ctx.workspace)
