"""Databases are copied at one moment while others write, and damaged ones are refused."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.errors import IntegrityError, StorageError
from plinth_ops.backup import taking
from tests.postgres_server import postgres_server


def fill_sqlite(path: Path, rows: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE IF NOT EXISTS pairs (a INTEGER, b INTEGER)")
        database.executemany("INSERT INTO pairs VALUES (?, ?)", [(n, -n) for n in range(rows)])


def test_a_copy_of_sqlite_has_whole_transactions_of_the_log_too(tmp_path: Path) -> None:
    fill_sqlite(tmp_path / "a.db", 100)
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as writer:
        writer.execute("INSERT INTO pairs VALUES (1, -1)")
        writer.commit()  # in the write-ahead log
        writer.execute("INSERT INTO pairs VALUES (2, -2)")  # not committed
        assert taking.copy_sqlite(tmp_path / "a.db", tmp_path / "b.db") == {"pairs": 101}
    assert taking.rows_of_sqlite(tmp_path / "b.db") == {"pairs": 101}


@pytest.mark.parametrize("how", ["torn", "changed"])
def test_a_damaged_copy_of_sqlite_is_refused(tmp_path: Path, how: str) -> None:
    fill_sqlite(tmp_path / "a.db", 5000)
    taking.copy_sqlite(tmp_path / "a.db", tmp_path / "b.db")
    data = (tmp_path / "b.db").read_bytes()
    cut = len(data) // 2
    (tmp_path / "b.db").write_bytes(data[:cut] if how == "torn" else data[:cut] + b"\xff" * (len(data) - cut))
    with pytest.raises(IntegrityError, match="is damaged"):
        taking.rows_of_sqlite(tmp_path / "b.db")


def test_differences_are_named() -> None:
    found = taking.differences({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 0})
    assert found == ["b: 2 rows, expected 3", "c: None rows, expected 0"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.mark.slow
@pytest.mark.needs("PostgreSQL")
def test_a_dump_of_postgres_is_of_one_moment_and_comes_back(server: str, tmp_path: Path) -> None:
    import psycopg2

    def made(name: str) -> str:
        with contextlib.closing(psycopg2.connect(server)) as connection:
            connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {name}")
        return server.replace("/postgres?", f"/{name}?")

    source, target, stop = made("source"), made("target"), threading.Event()
    with contextlib.closing(psycopg2.connect(source)) as connection, connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, amount INTEGER)")
        cursor.execute("CREATE TABLE moves (n INTEGER)")
        cursor.execute("INSERT INTO accounts VALUES ('a', 0), ('b', 0)")

    def move() -> None:
        with contextlib.closing(psycopg2.connect(source)) as connection:
            number = 0
            while not stop.is_set():
                number += 1
                with connection:
                    cursor = connection.cursor()
                    cursor.execute("UPDATE accounts SET amount = amount + 1 WHERE name = 'a'")
                    cursor.execute("UPDATE accounts SET amount = amount - 1 WHERE name = 'b'")
                    cursor.execute("INSERT INTO moves VALUES (%s)", [number])

    thread = threading.Thread(target=move)
    thread.start()
    try:
        rows = taking.dump_postgres(source, tmp_path / "dump")
    finally:
        stop.set()
        thread.join()
    assert taking.restore_postgres(target, tmp_path / "dump") == rows
    with contextlib.closing(psycopg2.connect(target)) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT sum(amount), max(amount), (SELECT count(*) FROM moves) FROM accounts")
        assert cursor.fetchone() == (0, rows["moves"], rows["moves"])
    with pytest.raises(StorageError, match="is not empty"):
        taking.restore_postgres(target, tmp_path / "dump")
    torn = tmp_path / "torn"
    torn.write_bytes((tmp_path / "dump").read_bytes()[:-40])
    with pytest.raises(StorageError, match="pg_restore failed"):
        taking.restore_postgres(made("third"), torn)
