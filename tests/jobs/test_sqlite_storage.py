"""Dagster's databases: the tables that Dagster makes, with fewer files read and fewer connections."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage

from plinth_jobs import dagster_parts
from plinth_jobs.dagster_parts import SqliteRuns, SqliteStorage, kept_connections


def tables(folder: Path) -> dict[str, Any]:
    """Tables, indices and revision of each database."""
    found = dict[str, Any]()
    for path in sorted(folder.rglob("*.db")):
        with closing(sqlite3.connect(path)) as database:
            schema = sorted(database.execute("SELECT name, sql FROM sqlite_master").fetchall())
            version = database.execute("SELECT version_num FROM alembic_version").fetchall()
        found[str(path.relative_to(folder))] = (schema, version)
    return found


def make(storage: type[DagsterSqliteStorage], folder: Path) -> dict[str, Any]:
    """The databases of a storage, that of a run among them."""
    made = storage.from_config_value(None, {"base_dir": str(folder)})  # type: ignore[arg-type]
    made.event_log_storage.get_logs_for_run("run")
    made.dispose()
    return tables(folder)


def test_migrations_are_read_once_and_the_tables_are_those_of_dagster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, original = list[object](), dagster_parts._read

    def counted(config: Any) -> ScriptDirectory:
        read.append(config)
        return original(config)

    monkeypatch.setattr(dagster_parts, "_MIGRATIONS", {})
    monkeypatch.setattr(dagster_parts, "_read", counted)
    own = make(SqliteStorage, tmp_path / "own")
    assert len(read) == 1
    monkeypatch.setattr(ScriptDirectory, "from_config", counted)
    assert own == make(DagsterSqliteStorage, tmp_path / "dagster")
    assert len(read) > 5
    assert len(own) == 4


def test_a_run_keeps_its_connections_until_it_ends(tmp_path: Path) -> None:
    runs = SqliteStorage(str(tmp_path)).run_storage
    assert isinstance(runs, SqliteRuns)

    def connection() -> object:
        with runs.connect() as connected:
            return connected.connection.dbapi_connection

    assert connection() is not connection()
    with kept_connections():
        with kept_connections():  # a second run of this process
            first = connection()
        assert connection() is first
        with runs.connect() as connected:
            connected.exec_driver_sql("DELETE FROM runs")
        assert list(tmp_path.rglob("runs.db-wal"))
    assert not list(tmp_path.rglob("runs.db-wal"))  # closed
    assert connection() is not first
