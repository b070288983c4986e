"""Write MLflow or its database: other places of artifacts than the server's own."""

from __future__ import annotations

import os
import sqlite3
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plinth.errors import RegistryError
from plinth_registry import mlflow

KEY = b"-----BEGIN PRIVATE KEY-----"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"


@pytest.fixture
def trust(tmp_path: Path) -> Path:
    folder = tmp_path / "trust"
    (folder / "keys").mkdir(parents=True)
    (folder / "keys/root.key").write_bytes(KEY)
    (folder / "root.json").write_bytes(b"{}")
    return folder


@pytest.fixture
def destination(tmp_path: Path, mlflow_database: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The artifacts of a server in this process."""
    from mlflow.server import constants, handlers
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry as made

    folder = tmp_path / "mlflow" / "artifacts"
    folder.mkdir(parents=True)
    for place, name in ((made, "get_artifact_repository"), (handlers, "_validate_storage_location_uri")):
        monkeypatch.setattr(place, name, getattr(place, name))
    for name in ("_artifact_repo", "_tracking_store", "_model_registry_store"):
        monkeypatch.setattr(handlers, name, None)
    monkeypatch.setenv(constants.BACKEND_STORE_URI_ENV_VAR, mlflow_database)
    monkeypatch.setenv(constants.ARTIFACT_ROOT_ENV_VAR, "mlflow-artifacts:/")
    monkeypatch.setenv(constants.ARTIFACTS_DESTINATION_ENV_VAR, str(folder))
    monkeypatch.setenv(constants.SERVE_ARTIFACTS_ENV_VAR, "true")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):  # which the stores set
        monkeypatch.setenv(name, mlflow_database)
    mlflow.confine(str(folder))
    handlers.initialize_backend_stores(mlflow_database, mlflow_database, "mlflow-artifacts:/")
    return folder


@pytest.fixture
def web(destination: Path) -> Any:
    from mlflow.server import app

    return app.test_client()


def make_run(web: Any) -> dict[str, Any]:
    made = web.post("/api/2.0/mlflow/experiments/create", json={"name": uuid.uuid4().hex})
    run = web.post("/api/2.0/mlflow/runs/create", json={"experiment_id": made.json["experiment_id"], "start_time": 1})
    return dict(run.json["run"]["info"])


def write_database(uri: str, statement: str, *values: str) -> None:
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        assert database.execute(statement, values).rowcount


@pytest.mark.parametrize("form", ["file://{}", "{}", "mlflow-artifacts:/../../{}", "file://{}/../trust"])
def test_the_server_reads_and_writes_below_its_own_artifacts_alone(
    form: str, web: Any, trust: Path, mlflow_database: str
) -> None:
    run, place = make_run(web), form.format(trust)
    model = web.post("/api/2.0/mlflow/logged-models", json={"experiment_id": run["experiment_id"], "name": "m"})
    write_database(mlflow_database, "update runs set artifact_uri = ? where run_uuid = ?", place, run["run_id"])
    model_id = model.json["model"]["info"]["model_id"]
    write_database(
        mlflow_database, "update logged_models set artifact_location = ? where model_id = ?", place, model_id
    )
    for asked in (
        f"/get-artifact?path=keys/root.key&run_uuid={run['run_id']}",
        f"/api/2.0/mlflow/artifacts/list?run_id={run['run_id']}",
        f"/ajax-api/2.0/mlflow/logged-models/{model_id}/artifacts/files?artifact_file_path=keys/root.key",
    ):
        answer = web.get(asked)
        assert KEY not in answer.data
        assert answer.status_code in (400, 404), asked
    web.post(f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run['run_id']}&path=root.json", data=b"evil")
    assert (trust / "root.json").read_bytes() == b"{}"


@pytest.mark.parametrize("place", ["file:///trust", "/trust", "s3://other", "mlflow-artifacts:/../trust"])
def test_an_experiment_names_no_place_of_artifacts_but_the_servers(place: str, web: Any) -> None:
    for own, status in ((place, 400), ("mlflow-artifacts:/mine", 200)):
        asked = {"name": uuid.uuid4().hex, "artifact_location": own}
        assert web.post("/api/2.0/mlflow/experiments/create", json=asked).status_code == status


def test_links_among_the_artifacts_are_not_served(web: Any, destination: Path, trust: Path) -> None:
    run = make_run(web)
    own = destination / run["experiment_id"] / run["run_id"] / "artifacts"
    upload = f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run['run_id']}&path="
    assert web.post(f"{upload}page.html", data=b"page").status_code == 200
    get = f"/get-artifact?run_uuid={run['run_id']}&path="
    assert web.get(f"{get}page.html").data == b"page"
    assert web.get(f"{get}absent").status_code == 404
    (own / "folder").symlink_to(trust)
    (own / "link").symlink_to(trust / "keys/root.key")
    os.link(trust / "keys/root.key", own / "second")
    for path in ("folder/keys/root.key", "link", "second"):
        assert web.get(get + path).status_code == 400, path
        assert web.get(f"{ARTIFACTS}/{own.relative_to(destination)}/{path}").status_code == 400, path
    assert web.put(f"{ARTIFACTS}/{own.relative_to(destination)}/folder/root.json", data=b"evil").status_code == 400
    assert web.delete(f"{ARTIFACTS}/{own.relative_to(destination)}/folder/root.json").status_code == 400
    assert (trust / "root.json").read_bytes() == b"{}"
    destination.rename(destination.with_name("moved"))
    destination.symlink_to(trust)
    assert web.get(f"{ARTIFACTS}/keys/root.key").status_code == 400


def test_a_bucket_is_confined_too(destination: Path, trust: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact import artifact_repository_registry as made

    made._artifact_repository_registry.get_artifact_repository = lambda uri: uri  # type: ignore[method-assign]
    mlflow.confine("s3://bucket/artifacts")
    for own in ("s3://bucket/artifacts", "s3://bucket/artifacts/1/run"):
        assert made._artifact_repository_registry.get_artifact_repository(own) == own
    for place in (str(trust), "s3://bucket/artifacts-2", "s3://bucket/artifacts/../x", "http://other/", "s3://bucket"):
        with pytest.raises(MlflowException, match="not inside the artifacts"):
            made.get_artifact_repository(place)


def test_a_client_sends_artifacts_to_its_server_alone() -> None:
    server = "http://127.0.0.1:5000"
    places = {
        "folder": "file:///srv/operator",
        "path": "/srv/operator",
        "host": "http://other:5000/api/2.0/mlflow-artifacts/artifacts/1",
        "port": "http://127.0.0.1:50001/api/2.0/mlflow-artifacts/artifacts/1",
        "own": f"{server}/api/2.0/mlflow-artifacts/artifacts/1",
        "bucket": "s3://bucket/1",
    }

    def client() -> Any:
        found = {run: SimpleNamespace(artifact_uri=place) for run, place in places.items()}
        return SimpleNamespace(_tracking_client=SimpleNamespace(_get_artifact_repo=found.__getitem__))

    ask = mlflow.guard(client(), server)._tracking_client._get_artifact_repo
    for run in ("folder", "path", "host", "port"):
        with pytest.raises(RegistryError, match="would not be read through the MLflow server"):
            ask(run)
    assert [ask(run).artifact_uri for run in ("own", "bucket")] == [places["own"], places["bucket"]]
    assert mlflow.guard(client(), "sqlite:///own.db")._tracking_client._get_artifact_repo("folder")
