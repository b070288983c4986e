"""The model registry without MLflow's library gives what the library gives, from the server and from its database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plinth.storage.workspace import Workspace
from plinth_registry import mlflow_client
from plinth_registry.mlflow_process import DATABASE
from plinth_registry.model_registry import ModelDatabase, Server

SHOWN = ("name", "version", "source", "run_id", "description", "tags", "creation_timestamp")


def shown(version: Any) -> dict[str, Any]:
    """What Plinth reads of a version."""
    return {name: str(getattr(version, name) or "") if name != "tags" else version.tags for name in SHOWN}


def outcome(ask: Callable[..., Any], *given: Any) -> str:
    """The code of the error that a call raises."""
    try:
        ask(*given)
    except Exception as error:
        return str(getattr(error, "error_code", error))
    return "done"


@pytest.mark.slow
def test_server_and_database_give_what_the_library_gives(
    mlflow_workspace: Workspace, mlflow_uri: str, tmp_path: Any
) -> None:
    own, library = mlflow_client.connect(mlflow_workspace), mlflow_client._library(mlflow_workspace, mlflow_uri)
    stored = ModelDatabase(mlflow_workspace.mlflow / DATABASE)
    experiment = library.create_experiment("words")
    run = library.create_run(experiment).info.run_id
    mlflow_client.ensure_model(own, "words-candidate", "made here")
    mlflow_client.ensure_model(own, "words-candidate", "made here")
    mlflow_client.ensure_model(own, "words", "made here")
    library.create_model_version(
        "words-candidate", "plinth:///models/x", run, tags={"candidate": "a'b"}, description="d"
    )
    own.set_model_version_tag("words-candidate", "1", "approval", "approved")
    own.set_model_version_tag("words-candidate", "1", "gone", "soon")
    own.delete_model_version_tag("words-candidate", "1", "gone")
    own.update_model_version("words-candidate", "1", "better")
    copied = own.copy_model_version("models:/words-candidate/1", "words")
    own.set_registered_model_alias("words", "champion", copied.version)
    own.set_registered_model_alias("words", "canary", copied.version)
    own.delete_registered_model_alias("words", "canary")
    library.create_model_version("words", "plinth:///models/y", run)
    library.delete_model_version("words", "2")

    for name, client in {"server": own, "database": stored}.items():
        assert _names(client) == _names(library) >= {"words", "words-candidate"}, name
        assert client.get_registered_model("words").aliases == {"champion": "1"} == _aliases(library), name
        for model in ("words", "words-candidate"):
            found = mlflow_client.versions(client, model)
            assert [shown(one) for one in found] == [shown(one) for one in mlflow_client.versions(library, model)], name
        assert shown(client.get_model_version("words", "1")) == shown(library.get_model_version("words", "1")), name
        assert outcome(client.get_model_version, "words", "2") == "RESOURCE_DOES_NOT_EXIST", name
        assert outcome(client.get_registered_model, "other") == "RESOURCE_DOES_NOT_EXIST", name
    assert outcome(own.copy_model_version, "models:/words-candidate/9", "words") == "RESOURCE_DOES_NOT_EXIST"

    own.log_dict(run, {"gates": [1]}, "gates-words-1.json")
    path = library.download_artifacts(run, "gates-words-1.json", str(tmp_path))
    with open(path) as file:
        assert file.read() == '{\n  "gates": [\n    1\n  ]\n}'
    assert own.get_run(run).info.run_id == run  # what is not here, the library does


def _names(client: Any) -> set[str]:
    return {one.name for one in mlflow_client.models(client)}


def _aliases(library: Any) -> dict[str, str]:
    return {which: str(version) for which, version in library.get_registered_model("words").aliases.items()}


def test_a_part_of_a_list_has_the_token_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"model_versions": [{"name": "words", "version": 2}], "next_page_token": "more"}
    monkeypatch.setattr(Server, "_request", lambda *_: json.dumps(answer).encode())
    page = Server("http://127.0.0.1:1", {}, dict).search_model_versions("name = 'words'")
    assert ([one.version for one in page], page.token) == (["2"], "more")


@pytest.mark.parametrize("place", ["mlflow-artifacts://other/1/a", "s3://bucket/1/a"])
def test_an_artifact_that_another_server_keeps_is_written_by_the_library(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[tuple[Any, ...]]()
    answer = {"run": {"info": {"artifact_uri": place}}}
    monkeypatch.setattr(Server, "_request", lambda *_: json.dumps(answer).encode())
    library = SimpleNamespace(log_dict=lambda *given: written.append(given))
    Server("http://127.0.0.1:1", {}, lambda: library).log_dict("run", {"a": 1}, "a.json")
    assert written == [("run", {"a": 1}, "a.json")]


def test_the_database_is_opened_to_read(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("CREATE TABLE registered_models (name TEXT)")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        ModelDatabase(tmp_path / "mlflow.db")._rows("INSERT INTO registered_models VALUES ('planted')")
