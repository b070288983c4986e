"""Copies of databases at one moment, while others write, and their way back.

SQLite by its own online backup; PostgreSQL by `pg_dump` of an exported transaction, in which the rows are counted too.
"""

from __future__ import annotations

import importlib
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from plinth import processes
from plinth.errors import IntegrityError, MissingError, StorageError

SQLITE, POSTGRES = "sqlite", "postgres"
TIMEOUT_S: Final = 3600


def copy_sqlite(source: Path, target: Path) -> dict[str, int]:
    """Copy a database of SQLite as it is at one moment; returns the rows of its tables.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as found,
            closing(sqlite3.connect(target)) as made,
        ):
            found.backup(made)
        return rows_of_sqlite(target)
    except sqlite3.Error as error:
        raise StorageError(f"cannot copy the database {source}", found=error) from error


def rows_of_sqlite(path: Path) -> dict[str, int]:
    """How many rows each table has.

    Raises:
        IntegrityError: SQLite finds the file damaged.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            verdict = database.execute("PRAGMA integrity_check").fetchone()[0]
            names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
            tables = [name for (name,) in database.execute(names)]
            found = {name: int(database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]) for name in tables}
        except sqlite3.DatabaseError as error:
            raise IntegrityError(f"the database {path} is damaged", found=error) from error
    if verdict != "ok":
        raise IntegrityError(f"the database {path} is damaged", found=verdict)
    return found


def dump_postgres(url: str, target: Path) -> dict[str, int]:
    """Dump a database of PostgreSQL; returns the rows of its tables in the same transaction.

    Raises:
        StorageError: it cannot be reached, or `pg_dump` fails.
        MissingError: no `pg_dump` here.
    """
    with _connected(url) as connection:
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        cursor = connection.cursor()
        cursor.execute("SELECT pg_export_snapshot()")
        exported = cursor.fetchone()[0]
        found = _rows(cursor)
        _run(
            "pg_dump", "--format=custom", "--no-owner", f"--snapshot={exported}", f"--file={target}", f"--dbname={url}"
        )
    return found


def restore_postgres(url: str, dump: Path) -> dict[str, int]:
    """Put a dump into an empty database; returns the rows of its tables.

    Raises:
        StorageError: the database is not empty, cannot be reached, or refuses the dump; nothing of it is kept then.
    """
    with _connected(url) as connection:
        if found := _rows(connection.cursor()):
            raise StorageError(
                f"the database {_named(url)} is not empty",
                found=", ".join(sorted(found)[:5]),
                expected="an empty database",
                remedy="make a new one for the restored installation",
            )
    _run("pg_restore", "--no-owner", "--single-transaction", "--exit-on-error", f"--dbname={url}", str(dump))
    with _connected(url) as connection:
        return _rows(connection.cursor())


def differences(found: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    """Tables whose rows differ, in words."""
    names = sorted(found.keys() | expected.keys())
    return [
        f"{name}: {found.get(name)} rows, expected {expected.get(name)}"
        for name in names
        if found.get(name) != expected.get(name)
    ]


def _named(url: str) -> str:
    """A URL without its password, which should not be in it."""
    return re.sub("//[^@/]*@", "//", url)


def _rows(cursor: Any) -> dict[str, int]:
    cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY table_name")
    found = {}
    for (name,) in cursor.fetchall():
        cursor.execute(f'SELECT count(*) FROM "{name}"')
        found[name] = int(cursor.fetchone()[0])
    return found


@contextmanager
def _connected(url: str) -> Iterator[Any]:
    try:
        driver = importlib.import_module("psycopg2")
    except ImportError as error:
        raise MissingError(
            "PostgreSQL needs its driver", found=error, remedy="pip install 'plinth[postgres]'"
        ) from error
    try:
        with closing(driver.connect(url)) as connection:
            yield connection
    except driver.Error as error:
        raise StorageError(f"cannot copy the database {_named(url)}", found=str(error).strip()) from error


def _run(name: str, *words: str) -> None:
    program = shutil.which(name)
    if program is None:
        raise MissingError(
            f"no {name} on this machine", remedy="install PostgreSQL's client (Debian: postgresql-client)"
        )
    done = processes.run([program, *words], *processes.STORES, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise StorageError(f"{name} failed", found=done.stderr.strip()[-1000:])
