"""The model registry without MLflow's library gives what the library gives, from the server and from its database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plinth.storage.workspace import Workspace
from registry import mlflow_client
from registry.mlflow_process import DATABASE
from registry.model_registry import ModelDatabase

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
