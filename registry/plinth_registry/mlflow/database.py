"""MLflow's SQLite databases, written directly when no server runs, because starting a server takes longer than a
decision.

The databases have the model registry and the accounts for its login. Each change is one transaction with the rows that
MLflow's own store would write. Another process, such as a server that starts in the meantime, therefore sees the whole
change or nothing. When a server runs, it makes all changes, because it fails if another process commits between its
read and its write. The server also makes changes that are not supported here: to a database that does not exist yet, to
tables of another MLflow version, or with webhooks, which the server calls.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from plinth.storage.atomic import write_bytes
from plinth_registry.mlflow import (
    ABSENT,
    PROXIED,
    ModelPage,
    ModelVersion,
    Refused,
    RegisteredModel,
    inside,
    is_proxied,
)

#: Supported Alembic revision. Change it together with the statements, after
#: `test_server_and_database_write_the_same_rows` has passed with a newer MLflow.
REVISION: Final = "dc11669786a5"
#: Seconds to wait for another transaction.
BUSY_S = 60.0
KEPT: Final = "current_stage != 'Deleted_Internal'"

P = ParamSpec("P")
R = TypeVar("R")


class _Foreign(Exception):
    """Error that reports that only a server may write the database."""


def _here(
    change: Callable[Concatenate[ModelDatabase, sqlite3.Connection, P], R],
) -> Callable[Concatenate[ModelDatabase, P], R]:
    """Decorate a method that changes the database, so that it runs in one transaction. If only a server may write the
    database, the server makes the change."""

    @wraps(change)
    def call(self: ModelDatabase, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with self._transaction() as database:
                return change(self, database, *args, **kwargs)
        except _Foreign:
            made: R = getattr(self._server(), change.__name__)(*args, **kwargs)
            return made

    return call


class ModelDatabase:
    """Registered models in MLflow's SQLite database. If the file does not exist, there are no models.

    Args:
        database: path of the database.
        artifacts: folder of the server's artifacts; None if they are elsewhere, and only the server writes them.
        server: function that starts the server and returns a client of it, for all other calls.
        runs: function that returns True if a server runs now.

    Raises:
        sqlite3.Error: the tables are not those of MLflow, or the file cannot be written.
    """

    def __init__(
        self,
        database: Path,
        artifacts: Path | None,
        server: Callable[[], Any],
        runs: Callable[[], bool] = lambda: False,
    ) -> None:
        self._database = database
        self._artifacts = artifacts
        self._server = server
        self._runs = runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server(), name)

    def search_registered_models(self, **_: Any) -> ModelPage:
        return ModelPage(
            [self.get_registered_model(name) for (name,) in self._rows("SELECT name FROM registered_models")]
        )

    def search_model_versions(self, filter_string: str, **_: Any) -> ModelPage:
        name = filter_string.removeprefix("name = '").removesuffix("'")
        return ModelPage(self._versions(f"name = ? AND {KEPT}", name))

    def get_registered_model(self, name: str) -> RegisteredModel:
        found = self._rows("SELECT description FROM registered_models WHERE name = ?", name)
        if not found:
            raise _absent(name)
        aliases = self._rows("SELECT alias, version FROM registered_model_aliases WHERE name = ?", name)
        return RegisteredModel(name, found[0][0] or "", {alias: str(version) for alias, version in aliases})

    def get_model_version(self, name: str, version: str) -> ModelVersion:
        if found := self._versions(f"name = ? AND version = ? AND {KEPT}", name, version):
            return found[0]
        raise _absent(f"{name}/{version}")

    @_here
    def create_registered_model(self, database: sqlite3.Connection, name: str, description: str | None = None) -> None:
        made = "INSERT INTO registered_models (name, creation_time, last_updated_time, description) VALUES (?, ?, ?, ?)"
        try:
            database.execute(made, (name, _now_ms(), _now_ms(), description or ""))
        except sqlite3.IntegrityError as error:
            raise Refused(f"{name} exists", "RESOURCE_ALREADY_EXISTS") from error

    @_here
    def copy_model_version(self, database: sqlite3.Connection, src_model_uri: str, dst_name: str) -> ModelVersion:
        """Copy a model version into another registered model, which must exist."""
        name, _, number = src_model_uri.removeprefix("models:/").rpartition("/")
        source, now_ms = self.get_model_version(name, number), _now_ms()
        touched = "UPDATE registered_models SET last_updated_time = ? WHERE name = ?"
        if not database.execute(touched, (now_ms, dst_name)).rowcount:
            raise _absent(dst_name)
        asked = "SELECT coalesce(max(version), 0) + 1 FROM model_versions WHERE name = ?"
        ((version,),) = database.execute(asked, (dst_name,))
        copied = "description, current_stage, status, run_id, run_link, storage_location"
        database.execute(
            f"INSERT INTO model_versions (name, version, creation_time, last_updated_time, source, {copied}) "
            f"SELECT ?, ?, ?, ?, ?, {copied} FROM model_versions WHERE name = ? AND version = ?",
            (dst_name, version, now_ms, now_ms, src_model_uri, name, number),
        )
        database.execute(
            "INSERT INTO model_version_tags (key, value, name, version) "
            "SELECT key, value, ?, ? FROM model_version_tags WHERE name = ? AND version = ?",
            (dst_name, version, name, number),
        )
        return replace(source, name=dst_name, version=str(version), source=src_model_uri, creation_timestamp=now_ms)

    @_here
    def update_model_version(self, database: sqlite3.Connection, name: str, version: str, description: str) -> None:
        self.get_model_version(name, version)
        database.execute(
            "UPDATE model_versions SET description = ?, last_updated_time = ? WHERE name = ? AND version = ?",
            (description, _now_ms(), name, version),
        )

    @_here
    def set_model_version_tag(
        self, database: sqlite3.Connection, name: str, version: str, key: str, value: str
    ) -> None:
        self.get_model_version(name, version)
        database.execute(
            "INSERT OR REPLACE INTO model_version_tags (name, version, key, value) VALUES (?, ?, ?, ?)",
            (name, version, key, str(value)),
        )

    @_here
    def delete_model_version_tag(self, database: sqlite3.Connection, name: str, version: str, key: str) -> None:
        self.get_model_version(name, version)
        database.execute(
            "DELETE FROM model_version_tags WHERE name = ? AND version = ? AND key = ?", (name, version, key)
        )

    @_here
    def set_registered_model_alias(self, database: sqlite3.Connection, name: str, alias: str, version: str) -> None:
        self.get_model_version(name, version)
        database.execute(
            "INSERT OR REPLACE INTO registered_model_aliases (name, alias, version) VALUES (?, ?, ?)",
            (name, alias, version),
        )

    @_here
    def delete_registered_model_alias(self, database: sqlite3.Connection, name: str, alias: str) -> None:
        self.get_registered_model(name)
        database.execute("DELETE FROM registered_model_aliases WHERE name = ? AND alias = ?", (name, alias))

    def log_dict(self, run_id: str, dictionary: Mapping[str, Any], artifact_file: str) -> None:
        """Store a value as a JSON artifact of a run."""
        self.log_text(run_id, json.dumps(dictionary, indent=2), artifact_file)

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        """Store a text as an artifact of a run."""
        found = self._rows("SELECT artifact_uri FROM runs WHERE run_uuid = ?", run_id)
        place = found[0][0] if found else ""
        if self._artifacts is None or not is_proxied(place):
            self._server().log_text(run_id, text, artifact_file)
            return
        path = self._artifacts / place.removeprefix(PROXIED).lstrip("/") / artifact_file
        write_bytes(self._artifacts / inside(self._artifacts, path), text.encode())

    def _versions(self, where: str, *given: str) -> list[ModelVersion]:
        columns = "name, version, source, run_id, description, creation_time"
        return [
            ModelVersion(
                name, str(version), source or "", run_id or "", description or "", made or 0, self._tags(name, version)
            )
            for name, version, source, run_id, description, made in self._rows(
                f"SELECT {columns} FROM model_versions WHERE {where}", *given
            )
        ]

    def _tags(self, name: str, version: int) -> dict[str, str]:
        asked = "SELECT key, value FROM model_version_tags WHERE name = ? AND version = ?"
        return {key: value or "" for key, value in self._rows(asked, name, version)}

    def _rows(self, asked: str, *given: Any) -> list[Any]:
        return rows(self._database, asked, *given)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the `with` block in an exclusive transaction. The changes are committed at the end, or discarded if the
        block raises an error.

        Raises:
            _Foreign: only a server may write this database.
        """
        if not self._database.exists() or self._runs():
            raise _Foreign
        with closing(_opened(self._database, "rw")) as database:
            database.execute("PRAGMA foreign_keys = ON")
            database.execute("BEGIN IMMEDIATE")
            if not _is_known(database):
                raise _Foreign
            yield database
            database.commit()


def rows(database: Path, asked: str, *given: Any) -> list[Any]:
    """Return the rows of a read-only query, or an empty list if the database has no tables yet."""
    if not database.exists() or not database.stat().st_size:
        return []
    try:
        return _read(database, "ro", asked, *given)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
    _read(database, "rw", "SELECT 1 FROM sqlite_master")  # rolls back the transaction of a killed process
    return _read(database, "ro", asked, *given)


def _read(database: Path, mode: str, asked: str, *given: Any) -> list[Any]:
    with closing(_opened(database, mode)) as opened:
        return opened.execute(asked, given).fetchall()


def _opened(database: Path, mode: str) -> sqlite3.Connection:
    uri = f"{database.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)


def _is_known(database: sqlite3.Connection) -> bool:
    """Return True if the tables of a database are supported and no webhook is registered."""
    named = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchall()
    if not named or database.execute("SELECT version_num FROM alembic_version").fetchall() != [(REVISION,)]:
        return False  # or a server was killed before it created the tables
    return not database.execute("SELECT 1 FROM webhooks WHERE deleted_timestamp IS NULL").fetchall()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _absent(name: str) -> Refused:
    return Refused(f"no registered model {name} in this workspace", ABSENT)


#: Supported Alembic revision. Change it together with the statements, after
#: `test_an_account_has_the_same_rows_with_and_without_a_server` has passed with a newer MLflow.
ACCOUNTS_REVISION: Final = "f1a2b3c4d5e6"
VERSIONS: Final = "alembic_version_auth"


def write_account(path: Path, person: str, password: str, resource: tuple[str, str], permission: str) -> bool:
    """Write an account with a password and a permission, and create the account if needed. Return False if only a
    server can write this file.

    Args:
        path: file of the database; empty before its first use.
        person: name of the account.
        password: new password; empty to keep the old password.
        resource: type and name of the resource that the permission is for.
        permission: permission on the resource.
    """
    from werkzeug.security import generate_password_hash

    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        if not _has_tables(database):
            return False
        if password:
            database.execute(
                "INSERT INTO users (username, password_hash, is_admin) VALUES (?, ?, 0) "
                "ON CONFLICT (username) DO UPDATE SET password_hash = excluded.password_hash",
                (person, generate_password_hash(password)),
            )
        ((user,),) = database.execute("SELECT id FROM users WHERE username = ?", (person,))
        role = f"__user_{user}__"  # MLflow gives each user a role of this name, which has the user's permissions
        database.execute("INSERT OR IGNORE INTO roles (name, workspace) VALUES (?, 'default')", (role,))
        ((number,),) = database.execute("SELECT id FROM roles WHERE name = ? AND workspace = 'default'", (role,))
        database.execute("INSERT OR IGNORE INTO user_role_assignments (user_id, role_id) VALUES (?, ?)", (user, number))
        database.execute(
            "INSERT OR IGNORE INTO role_permissions (role_id, resource_type, resource_pattern, permission) "
            "VALUES (?, ?, ?, ?)",
            (number, *resource, permission),
        )
        database.commit()
        return True


def _has_tables(database: sqlite3.Connection) -> bool:
    """Return True if the tables of the account database are supported. If there are no tables, create them first."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    for statement in () if tables else _new_tables():
        database.execute(statement)
    if tables and VERSIONS not in tables:
        return False
    return database.execute(f"SELECT version_num FROM {VERSIONS}").fetchall() == [(ACCOUNTS_REVISION,)]


def _new_tables() -> list[str]:
    """Return the SQL statements that create the tables of the account database.

    MLflow's own migrations run in a database in memory, because each migration commits at once. MLflow's server is not
    imported.
    """
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory
    from sqlalchemy import create_engine

    package = find_spec("mlflow")
    assert package is not None
    assert package.origin is not None
    script = ScriptDirectory(str(Path(package.origin).parent / "server" / "auth" / "db" / "migrations"))
    with create_engine("sqlite://").begin() as connection:
        given = {"version_table": VERSIONS, "fn": lambda revision, _: script._upgrade_revs("head", revision)}
        context = MigrationContext.configure(connection, opts=given)
        with Operations.context(context):
            context.run_migrations()
        made: sqlite3.Connection = connection.connection.dbapi_connection  # type: ignore[assignment]
        return [one for one in made.iterdump() if one not in ("BEGIN TRANSACTION;", "COMMIT;")]
