"""A small database of rows that several processes write: SQLite in a file, or PostgreSQL by URL.

Transactions run one after the other, whoever begins them: what one reads is still true when it writes. SQLite takes
its write lock at once (`BEGIN IMMEDIATE`), PostgreSQL an advisory lock of the database. Each has a connection of its
own, so that threads share none. Passwords are libpq's matter (PGPASSWORD, ~/.pgpass), and belong into no URL.
"""

from __future__ import annotations

import importlib
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from plinth.errors import StorageError
from plinth.storage.atomic import named_failures

#: Runs a statement with `?` for values; returns the rows it yields.
Execute = Callable[..., list[tuple[Any, ...]]]

#: Seconds to wait for another transaction of SQLite.
BUSY_S = 60.0

#: Of PostgreSQL's advisory lock: "plinth" as a number.
LOCK = int.from_bytes(b"plinth", "big")


class Database:
    """One database, made with its tables at the first transaction.

    Args:
        place: `postgresql://…`, or a file of SQLite, on a disk of this machine.
        tables: name -> columns, in SQL that both know.
    """

    def __init__(self, place: str, tables: dict[str, str]) -> None:
        self.place, self._tables = place, tables
        self._remote = re.match(r"postgres(ql)?://", place) is not None

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """Run a block alone; its writes count together when it ends, and not at all when it raises.

        Raises:
            StorageError: the database cannot be reached, or refuses a statement.
        """
        failures, connect = (self._postgres if self._remote else self._sqlite)()
        try:
            with closing(connect()) as connection:
                cursor = connection.cursor()

                def execute(statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
                    cursor.execute(statement.replace("?", "%s") if self._remote else statement, tuple(values))
                    return cursor.fetchall() if cursor.description else []

                self._begin(execute)
                yield execute
                connection.commit()
        except failures as error:
            raise StorageError(
                "the database did not do what it was asked",
                found=f"{re.sub('//[^@/]*@', '//', self.place)}: {str(error).strip()}",
                remedy="see that it can be reached and written, and run the command again",
            ) from error

    def _begin(self, execute: Execute) -> None:
        if self._remote:
            execute("SELECT pg_advisory_xact_lock(?)", [LOCK])
            # asked first: to create a table "if not exists" takes the right to create one
            there = {name for name in self._tables if execute("SELECT to_regclass(?)", [name])[0][0] is not None}
        else:
            execute("BEGIN IMMEDIATE")
            there = {name for (name,) in execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for name, columns in self._tables.items():
            if name not in there:
                execute(f"CREATE TABLE {name} ({columns})")

    def _sqlite(self) -> tuple[type[Exception], Callable[[], Any]]:
        path = Path(self.place)
        with named_failures(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return sqlite3.Error, lambda: sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)

    def _postgres(self) -> tuple[type[Exception], Callable[[], Any]]:
        try:
            driver = importlib.import_module("psycopg2")
        except ImportError as error:
            raise StorageError(
                "PostgreSQL needs its driver", found=error, remedy="pip install 'plinth[postgres]'"
            ) from error
        return driver.Error, lambda: driver.connect(self.place)
