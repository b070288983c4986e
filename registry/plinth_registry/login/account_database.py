"""Accounts in the SQLite database of MLflow's login, where no server runs: starting one takes longer than a command.

Each change is one transaction with the rows that MLflow's own store would write. A database of another MLflow is left
to its server. Does not belong here: what an account may do, and its password (`accounts`).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Final

#: Alembic revision of the tables that are written here. Change it together with the statements, after
#: `test_an_account_has_the_same_rows_with_and_without_a_server` has passed with a newer MLflow.
REVISION: Final = "f1a2b3c4d5e6"
VERSIONS: Final = "alembic_version_auth"
#: Seconds to wait for another transaction.
BUSY_S = 60.0


def write(path: Path, person: str, password: str, resource: tuple[str, str], permission: str) -> bool:
    """Make an account unless there is one, with a password and a permission; False: only a server can write this file.

    Args:
        path: of the database; empty before its first use.
        password: new password; empty to keep the old one.
        resource: type and name of what the permission is for.
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
    """True if the tables are those that are written here; they are made where there is none."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    for statement in () if tables else _new_tables():
        database.execute(statement)
    if tables and VERSIONS not in tables:
        return False
    return database.execute(f"SELECT version_num FROM {VERSIONS}").fetchall() == [(REVISION,)]


def _new_tables() -> list[str]:
    """Statements that make the tables: what MLflow's own migrations make, without its server, which those of its
    command would import. They run in memory, for each of them counts at once."""
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
