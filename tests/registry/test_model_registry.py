"""The model registry without MLflow's library gives what the library gives, from the server and from its database."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plinth.storage.workspace import Workspace
from plinth_registry.mlflow import Server, connection
from plinth_registry.mlflow.database import REVISION, ModelDatabase
from plinth_registry.mlflow.database import rows as rows_of
from plinth_registry.mlflow.server import ARTIFACTS, DATABASE

SHOWN = ("name", "version", "source", "run_id", "description", "tags", "creation_timestamp")


def shown(version: Any) -> dict[str, Any]:
    """Return the fields of a version that Plinth reads."""
    return {name: str(getattr(version, name) or "") if name != "tags" else version.tags for name in SHOWN}


def outcome(ask: Callable[..., Any], *given: Any) -> str:
    """The code of the error that a call raises."""
    try:
        ask(*given)
    except Exception as error:
        return str(getattr(error, "error_code", error))
    return "done"


TABLES = ("registered_models", "model_versions", "model_version_tags", "registered_model_aliases")


def change(client: Any, library: Any, run: str, name: str) -> None:
    """Every change that Plinth makes to models, to `name` and its candidates."""
    candidates = f"{name}-candidate"
    for made in (candidates, candidates, name):
        connection.ensure_model(client, made, "made here")
    library.create_model_version(candidates, "plinth:///models/x", run, tags={"candidate": "a'b"}, description="d")
    client.set_model_version_tag(candidates, "1", "approval", "rejected")
    client.set_model_version_tag(candidates, "1", "approval", "approved")
    client.set_model_version_tag(candidates, "1", "gone", "soon")
    client.delete_model_version_tag(candidates, "1", "gone")
    client.delete_model_version_tag(candidates, "1", "gone")
    client.update_model_version(candidates, "1", "better")
    assert client.copy_model_version(f"models:/{candidates}/1", name).version == "1"
    client.set_registered_model_alias(name, "canary", "1")
    assert client.copy_model_version(f"models:/{candidates}/1", name).version == "2"
    client.set_registered_model_alias(name, "canary", "2")
    client.set_registered_model_alias(name, "champion", "2")
    client.delete_registered_model_alias(name, "canary")
    client.delete_registered_model_alias(name, "canary")
    library.delete_model_version(name, "1")
    for ask, *given in (
        (client.copy_model_version, f"models:/{candidates}/9", name),
        (client.copy_model_version, f"models:/{candidates}/1", f"{name}-absent"),
        (client.copy_model_version, f"models:/{name}/1", name),  # deleted
        (client.update_model_version, name, "1", "text"),
        (client.set_model_version_tag, name, "3", "key", "value"),
        (client.delete_model_version_tag, name, "3", "key"),
        (client.set_registered_model_alias, name, "canary", "3"),
        (client.delete_registered_model_alias, f"{name}-absent", "canary"),
    ):
        assert outcome(ask, *given) == "RESOURCE_DOES_NOT_EXIST", (ask, given)


def rows(database: Path, name: str) -> dict[str, list[Any]]:
    """The rows of a model and its candidates; of times, whether they are set and which is later."""
    with closing(sqlite3.connect(database)) as opened:
        opened.row_factory = sqlite3.Row
        found = {
            table: [
                {key: str(value).replace(name, "NAME") for key, value in dict(row).items()}
                for row in opened.execute(f"SELECT * FROM {table} WHERE name LIKE ?", (f"{name}%",))
            ]
            for table in TABLES
        }
    for row in (row for table in found.values() for row in table if "creation_time" in row):
        made, updated = (int(row.pop(key)) for key in ("creation_time", "last_updated_time"))
        assert 1.7e12 < made <= updated
    return {table: sorted(map(str, listed)) for table, listed in found.items()}


@pytest.mark.slow
def test_server_and_database_write_the_same_rows(mlflow_workspace: Workspace, mlflow_uri: str, tmp_path: Path) -> None:
    place = mlflow_workspace.mlflow / DATABASE
    clients = {
        "words": connection.connect(mlflow_workspace),
        "texts": ModelDatabase(place, mlflow_workspace.mlflow / ARTIFACTS, no_server),
    }
    library = connection._library(mlflow_workspace, mlflow_uri)
    run = library.create_run(library.create_experiment("words")).info.run_id
    for name, client in clients.items():
        change(client, library, run, name)
    assert rows(place, "texts") == rows(place, "words")
    assert len(rows(place, "words")["model_version_tags"]) == 6

    for name, client in clients.items():
        assert _names(client) == _names(library) >= {"words", "texts-candidate"}, name
        assert client.get_registered_model("words").aliases == {"champion": "2"} == _aliases(library), name
        for model in ("words", "texts-candidate"):
            found = connection.versions(client, model)
            assert [shown(one) for one in found] == [shown(one) for one in connection.versions(library, model)], name
        assert shown(client.get_model_version("words", "2")) == shown(library.get_model_version("words", "2")), name
        assert outcome(client.get_model_version, "words", "1") == "RESOURCE_DOES_NOT_EXIST", name
        assert outcome(client.get_registered_model, "other") == "RESOURCE_DOES_NOT_EXIST", name

        client.log_dict(run, {"gates": [1]}, f"gates-{name}-1.json")
        path = library.download_artifacts(run, f"gates-{name}-1.json", str(tmp_path))
        assert Path(path).read_text() == '{\n  "gates": [\n    1\n  ]\n}'
    assert clients["words"].get_run(run).info.run_id == run  # what is not here, the library does


def _names(client: Any) -> set[str]:
    return {one.name for one in connection.models(client)}


def _aliases(library: Any) -> dict[str, str]:
    return {which: str(version) for which, version in library.get_registered_model("words").aliases.items()}


def test_a_part_of_a_list_has_the_token_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"model_versions": [{"name": "words", "version": 2}], "next_page_token": "more"}
    monkeypatch.setattr(Server, "request", lambda *_: json.dumps(answer).encode())
    page = Server("http://127.0.0.1:1", {}, dict).search_model_versions("name = 'words'")
    assert ([one.version for one in page], page.token) == (["2"], "more")


@pytest.mark.parametrize("place", ["mlflow-artifacts://other/1/a", "s3://bucket/1/a"])
def test_an_artifact_that_another_server_keeps_is_written_by_the_library(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[tuple[Any, ...]]()
    answer = {"run": {"info": {"artifact_uri": place}}}
    monkeypatch.setattr(Server, "request", lambda *_: json.dumps(answer).encode())
    library = SimpleNamespace(log_text=lambda *given: written.append(given))
    Server("http://127.0.0.1:1", {}, lambda: library).log_dict("run", {"a": 1}, "a.json")
    assert written == [("run", '{\n  "a": 1\n}', "a.json")]


def no_server() -> Any:
    """Fail: no server is needed."""
    raise AssertionError("a server was started")


def make_database(path: Path) -> Path:
    """A database with the columns that are written, and two models: the second has no version."""
    names = {"registered_models": "name PRIMARY KEY, creation_time, last_updated_time, description"}
    names["model_versions"] = (
        "name REFERENCES registered_models, version INTEGER, creation_time, last_updated_time, description, "
        "current_stage, source, run_id, run_link, storage_location, status, PRIMARY KEY (name, version)"
    )
    names["model_version_tags"] = "name, version INTEGER, key, value, PRIMARY KEY (name, version, key)"
    names |= {"alembic_version": "version_num", "webhooks": "deleted_timestamp", "runs": "run_uuid, artifact_uri"}
    with closing(sqlite3.connect(path)) as database:
        for name, columns in names.items():
            database.execute(f"CREATE TABLE {name} ({columns})")
        database.execute("INSERT INTO alembic_version VALUES (?)", (REVISION,))
        database.execute("INSERT INTO registered_models (name) VALUES ('words-candidate'), ('words')")
        database.execute("INSERT INTO model_versions (name, version, current_stage) VALUES ('words-candidate', 1, '')")
        database.execute("INSERT INTO model_version_tags VALUES ('words-candidate', 1, 'candidate', 'a')")
        database.commit()
    return path


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE alembic_version SET version_num = 'newer'",
        "INSERT INTO webhooks VALUES (NULL)",
        None,
    ],
)
def test_a_server_writes_what_is_not_known_here(spoil: str | None, tmp_path: Path) -> None:
    """Tables of another MLflow, webhooks that must be called, and no database."""
    path = tmp_path / "mlflow.db"
    before = b""
    if spoil is not None:
        with closing(sqlite3.connect(make_database(path))) as database:
            database.execute(spoil)
            database.commit()
        before = path.read_bytes()
    asked = list[tuple[Any, ...]]()
    server = SimpleNamespace(set_model_version_tag=lambda *given: asked.append(given), get_run=asked.append)
    client = ModelDatabase(path, None, lambda: server)
    client.set_model_version_tag("words-candidate", "1", "key", "value")
    client.get_run("run")  # nothing but models is in it
    assert asked == [("words-candidate", "1", "key", "value"), "run"]
    assert (path.read_bytes() if spoil else b"") == before


def test_a_server_that_starts_meanwhile_writes_from_then_on(tmp_path: Path) -> None:
    path, asked, runs = make_database(tmp_path / "mlflow.db"), list[str](), list[bool]()
    server = SimpleNamespace(set_model_version_tag=lambda *given: asked.append(given[2]))
    client = ModelDatabase(path, None, lambda: server, lambda: bool(runs))
    client.set_model_version_tag("words-candidate", "1", "before", "")
    runs.append(True)
    client.set_model_version_tag("words-candidate", "1", "after", "")
    assert (client.get_model_version("words-candidate", "1").tags.keys(), asked) == ({"candidate", "before"}, ["after"])


def test_a_webhook_that_was_deleted_needs_no_server(tmp_path: Path) -> None:
    with closing(sqlite3.connect(make_database(tmp_path / "mlflow.db"))) as database:
        database.execute("INSERT INTO webhooks VALUES (1)")
        database.commit()
    client = ModelDatabase(tmp_path / "mlflow.db", None, no_server)
    client.set_model_version_tag("words-candidate", "1", "key", "value")
    assert client.get_model_version("words-candidate", "1").tags == {"candidate": "a", "key": "value"}


def test_copies_at_once_get_numbers_of_their_own_and_one_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    path = make_database(tmp_path / "mlflow.db")

    def copy(_: int) -> str:
        client = ModelDatabase(path, None, no_server)
        return str(client.copy_model_version("models:/words-candidate/1", "words").version)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(map(int, pool.map(copy, range(12)))) == [*range(1, 13)]
    with closing(sqlite3.connect(path)) as database:  # tags of the next version are there already
        database.execute("INSERT INTO model_version_tags VALUES ('words', 13, 'candidate', 'planted')")
        database.commit()
    before = path.read_bytes()
    with pytest.raises(sqlite3.IntegrityError):
        copy(13)
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["mlflow-artifacts:/../trust", "file:///trust", "s3://bucket/1", "/trust"])
def test_an_artifact_is_written_below_the_artifacts_of_the_server_or_by_it(place: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(make_database(tmp_path / "mlflow.db"))) as database:
        database.execute("INSERT INTO runs VALUES ('own', 'mlflow-artifacts:/1/own/artifacts'), ('other', ?)", (place,))
        database.commit()
    written = list[str]()
    server = SimpleNamespace(log_text=lambda run, *_: written.append(run))
    client = ModelDatabase(tmp_path / "mlflow.db", tmp_path / "artifacts", lambda: server)
    for run in ("own", "other", "absent"):
        client.log_dict(run, {}, "a.json")
    assert written == ["other", "absent"]
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")]
    assert files == ["artifacts/1/own/artifacts/a.json"]


def test_an_artifact_is_written_through_no_link(tmp_path: Path) -> None:
    from mlflow.exceptions import MlflowException

    with closing(sqlite3.connect(make_database(tmp_path / "mlflow.db"))) as database:
        database.execute("INSERT INTO runs VALUES ('own', 'mlflow-artifacts:/1')")
        database.commit()
    (tmp_path / "trust").mkdir()
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "1").symlink_to(tmp_path / "trust")
    with pytest.raises(MlflowException, match="not inside the artifacts"):
        ModelDatabase(tmp_path / "mlflow.db", tmp_path / "artifacts", no_server).log_dict("own", {}, "root.json")
    assert not any((tmp_path / "trust").iterdir())


def test_the_database_is_opened_to_read(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("CREATE TABLE registered_models (name TEXT)")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        ModelDatabase(tmp_path / "mlflow.db", None, no_server)._rows("INSERT INTO registered_models VALUES ('planted')")


def test_what_a_killed_process_has_written_is_taken_back_before_it_is_read(tmp_path: Path) -> None:
    """Only a connection that may write does so, and a command reads before it writes."""
    path = make_database(tmp_path / "mlflow.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN IMMEDIATE")
    writer.executemany("INSERT INTO registered_models (name) VALUES (?)", [(f"{n}" * 200,) for n in range(1000)])
    (tmp_path / "killed").mkdir()
    for name in ("mlflow.db-journal", "mlflow.db"):
        shutil.copy(tmp_path / name, tmp_path / "killed")
    writer.close()
    found = rows_of(tmp_path / "killed" / "mlflow.db", "SELECT name FROM registered_models ORDER BY name")
    assert found == [("words",), ("words-candidate",)]


def test_a_database_whose_server_was_killed_at_its_start_is_left_to_the_next(tmp_path: Path) -> None:
    path, made = tmp_path / "mlflow.db", list[str]()
    path.touch()
    client = ModelDatabase(path, None, lambda: SimpleNamespace(create_registered_model=made.append))
    assert client.search_registered_models() == []
    client.create_registered_model("words")
    assert made == ["words"]
