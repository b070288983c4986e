"""Ledger of reservations: money that runs can still spend, and money that they have spent.

    reserve (an upper bound, within every limit)  ->  the job runs  ->  settle (its actual cost)

There is one row per submission of a run's job, and per materialization of a corpus stage. Until settlement, a row
counts with its upper bound. Limits are in the ledger too, separate from recipes. They are append-only, and the newest
limit for a name is valid. Money is in whole millionths, so sums are exact.

Does not belong here: computation of bounds (admission) and costs (settlement).
"""

from __future__ import annotations

import datetime
import importlib
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from plinth.errors import BudgetError, StorageError
from plinth.records import Frozen
from plinth.storage.atomic import named_failures

#: Millionths of a unit of money.
MICROS = 1_000_000

#: Prefix of the run field of a corpus stage's row.
CORPUS = "corpus:"

#: Prefix of the reason of a refused submission.
REFUSED = "refused: "

Scope = Literal["all", "team", "experiment", "workspace"]
Period = Literal["total", "month"]

_TABLES = {
    "reservations": (
        "id TEXT PRIMARY KEY, workspace TEXT, run TEXT, recipe TEXT, team TEXT, experiment TEXT, person TEXT, "
        "ranks INTEGER, price BIGINT, spot INTEGER, reserved BIGINT, reason TEXT, work TEXT, "
        "before_s DOUBLE PRECISION, made DOUBLE PRECISION, "
        "ended DOUBLE PRECISION, spent BIGINT, rank_s DOUBLE PRECISION, tokens BIGINT"
    ),
    "limits": (
        "scope TEXT, name TEXT, amount BIGINT, period TEXT, person TEXT, made DOUBLE PRECISION, number INTEGER"
    ),
}


class Reservation(Frozen):
    """Reservation for one submission. Money is in millionths, times in Unix seconds.

    Args:
        id: identifier of this submission.
        price: price per rank-hour.
        reserved: maximum cost; None if nothing bounds it.
        reason: source of the bound; for a refused submission, the reason of the refusal.
        work: identity of the training work and its ranks; runs that share it have similar costs.
        before_s: rank-seconds of the run before this submission.
        ended: time of settlement; None while the job can still spend.
        spent: actual cost.
        rank_s: rank-seconds of the job.
        tokens: tokens of the run at the end.
    """

    id: str
    workspace: str
    run: str
    recipe: str
    team: str
    experiment: str
    person: str
    ranks: int = Field(ge=1)
    price: int = Field(ge=0)
    spot: bool
    reserved: int | None = Field(ge=0)
    reason: str
    work: str
    before_s: float
    made: float
    ended: float | None = None
    spent: int | None = None
    rank_s: float | None = None
    tokens: int | None = None

    @property
    def refused(self) -> bool:
        """True if the submission was not admitted."""
        return self.reason.startswith(REFUSED)


class JobCost(Frozen):
    """Actual cost of a job, from its timeline."""

    spent: int = Field(ge=0)
    rank_s: float = Field(ge=0)
    tokens: int = Field(ge=0)


class Limit(Frozen):
    """Maximum sum of reserved and spent money, in millionths; None removes the limit.

    Args:
        name: team, experiment or workspace; empty for `all`.
        period: all time, or a calendar month (UTC). A job counts in the month of its submission.
        person: person who set the limit.
    """

    scope: Scope
    name: str
    amount: int | None = Field(ge=0)
    period: Period
    person: str
    made: float

    def covers(self, one: Reservation) -> bool:
        """Return True if a submission counts against this limit."""
        return self.scope == "all" or self.name == getattr(one, self.scope)

    @property
    def text(self) -> str:
        """Limit in words."""
        whose = "all runs" if self.scope == "all" else f"{self.scope} {self.name}"
        amount = "no limit" if self.amount is None else f"{self.amount / MICROS:,.2f}"
        return f"{whose}: {amount}{' a month' if self.period == 'month' else ''}"


_COLUMNS = tuple(Reservation.model_fields)
_LIMIT = tuple(Limit.model_fields)


class Ledger:
    """Reservations and limits in a database.

    Args:
        place: `postgresql://…`, or a file of SQLite.
    """

    def __init__(self, place: str) -> None:
        self._database = Database(place, _TABLES)

    def reserve(self, wanted: Reservation, earlier: JobCost | None = None) -> Reservation:
        """Reserve the bound of a submission if every limit permits; settle the run's previous submission in the same
        transaction.

        Args:
            earlier: cost of the run's last submission, whose job is gone; if None, an open submission of the run is
                returned unchanged.

        Raises:
            BudgetError: a limit would be exceeded, or there is a limit and nothing bounds the cost. The refusal is
                recorded.
        """
        try:
            with self._database.transaction() as execute:
                for one in _read(execute, "ended IS NULL AND workspace = ? AND run = ?", wanted.workspace, wanted.run):
                    if earlier is None:
                        return one
                    _settle(execute, one.id, earlier, wanted.made)
                for limit in _limits(execute, wanted):
                    _require(limit, _counted(execute, limit, wanted.made), wanted)
                _write(execute, wanted)
        except BudgetError as refusal:
            with self._database.transaction() as execute:
                nothing = {"ended": wanted.made, "spent": 0, "rank_s": 0.0, "tokens": 0, "reserved": 0}
                _write(execute, wanted.model_copy(update={**nothing, "reason": f"{REFUSED}{refusal.found}"}))
            raise
        return wanted

    def settle(self, id: str, cost: JobCost, now: float) -> None:
        """Replace a reserved bound with the job's cost. A reservation can be settled only once."""
        with self._database.transaction() as execute:
            _settle(execute, id, cost, now)

    def find(
        self, workspace: str = "", *, work: str = "", open_only: bool = False, since: float = 0.0
    ) -> list[Reservation]:
        """Return the submissions of a workspace, or all submissions with the same work, in order of time. Refused
        submissions are included."""
        asked = {name: value for name, value in {"workspace": workspace, "work": work}.items() if value}
        where = ["made >= ?", *(f"{name} = ?" for name in asked), *(["ended IS NULL"] if open_only else [])]
        with self._database.transaction() as execute:
            return _read(execute, " AND ".join(where), since, *asked.values())

    def totals(self, workspace: str) -> dict[tuple[str, str], tuple[int, int]]:
        """Return two sums in millionths by team and experiment: the costs of a workspace's settled submissions, and the
        bounds of its open submissions."""
        sums = "SUM(COALESCE(spent, 0)), SUM(CASE WHEN ended IS NULL THEN COALESCE(reserved, 0) ELSE 0 END)"
        asked = f"SELECT team, experiment, {sums} FROM reservations WHERE workspace = ? GROUP BY team, experiment"
        with self._database.transaction() as execute:
            return {(team, name): (int(one), int(two)) for team, name, one, two in execute(asked, [workspace])}

    def limits(self, now: float) -> list[tuple[Limit, int]]:
        """Return the current limits, each with the amount that counts against it."""
        with self._database.transaction() as execute:
            return [(one, _counted(execute, one, now)) for one in _limits(execute)]

    def limit(self, one: Limit) -> None:
        """Set a limit. It replaces the limit with the same scope, name and period."""
        with self._database.transaction() as execute:
            number = execute("SELECT COUNT(*) FROM limits")[0][0]
            marks = ", ".join("?" for _ in (*_LIMIT, number))
            execute(f"INSERT INTO limits ({', '.join(_LIMIT)}, number) VALUES ({marks})",
                    [*one.model_dump().values(), number])  # fmt: skip


def _read(execute: Execute, where: str, *values: Any) -> list[Reservation]:
    rows = execute(f"SELECT {', '.join(_COLUMNS)} FROM reservations WHERE {where} ORDER BY made, id", values)
    return [Reservation(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]


def _write(execute: Execute, one: Reservation) -> None:
    values = one.model_copy(update={"spot": int(one.spot)})
    marks = ", ".join("?" for _ in _COLUMNS)
    execute(f"INSERT INTO reservations ({', '.join(_COLUMNS)}) VALUES ({marks})",
            [getattr(values, name) for name in _COLUMNS])  # fmt: skip


def _settle(execute: Execute, id: str, cost: JobCost, now: float) -> None:
    execute(
        "UPDATE reservations SET ended = ?, spent = ?, rank_s = ?, tokens = ? WHERE id = ? AND ended IS NULL",
        [now, cost.spent, cost.rank_s, cost.tokens, id],
    )


def _limits(execute: Execute, covering: Reservation | None = None) -> list[Limit]:
    """Return the newest limit for each scope, name and period. If `covering` is given, only limits that apply to that
    submission are returned."""
    named = [] if covering is None else [covering.team, covering.experiment, covering.workspace]
    where = " WHERE scope = 'all' OR name IN (?, ?, ?)" if named else ""
    rows = execute(f"SELECT {', '.join(_LIMIT)} FROM limits{where} ORDER BY number", named)
    found = [Limit(**dict(zip(_LIMIT, row, strict=True))) for row in rows]
    found = [one for one in found if covering is None or one.covers(covering)]
    newest = {(one.scope, one.name, one.period): one for one in found}
    return [one for one in newest.values() if one.amount is not None]


def _counted(execute: Execute, limit: Limit, now: float) -> int:
    """Return the amount that counts against a limit: costs of settled submissions and bounds of open submissions."""
    whose, values = ("1 = 1", []) if limit.scope == "all" else (f"{limit.scope} = ?", [limit.name])
    since = month(now) if limit.period == "month" else 0.0
    total = f"SELECT COALESCE(SUM(COALESCE(spent, reserved, 0)), 0) FROM reservations WHERE {whose} AND made >= ?"
    return int(execute(total, [*values, since])[0][0])


def _subject(wanted: Reservation) -> str:
    if wanted.run.startswith(CORPUS):
        return f"{wanted.run.removeprefix(CORPUS)} is not made"
    return f"run {wanted.run} is not submitted"


def month(now: float) -> float:
    """Return the beginning of the calendar month of a time, in UTC."""
    then = datetime.datetime.fromtimestamp(now, datetime.UTC)
    return then.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


def _require(limit: Limit, counted: int, wanted: Reservation) -> None:
    assert limit.amount is not None
    if wanted.reserved is None:
        raise BudgetError(
            f"{_subject(wanted)}: its cost has no upper bound",
            found=f"{wanted.reason}; {limit.text}",
            expected="an upper bound to compare with the limit",
            remedy="set a device with a price in budget/settings.yaml, or a time in training.stopping (docs/costs.md)",
        )
    if counted + wanted.reserved > limit.amount:
        raise BudgetError(
            f"{_subject(wanted)}: it could exceed the budget",
            found=f"{limit.text}; {counted / MICROS:,.2f} spent or reserved, {wanted.reserved / MICROS:,.2f} wanted "
            f"({wanted.reason})",
            expected=f"at most {max(0, limit.amount - counted) / MICROS:,.2f}",
            remedy="wait for other runs to settle, train less, or raise the limit: `plinth ops cost limit WHOSE "
            "AMOUNT`",
        )


# Small database with concurrent writers: SQLite in a file, or PostgreSQL by URL.
#
# Transactions of all processes run one after the other, so a value that was read is still current at the write. SQLite
# takes its write lock at once (`BEGIN IMMEDIATE`), PostgreSQL an advisory lock of the database. Each transaction has
# its own connection, so threads share none. libpq reads passwords (PGPASSWORD, ~/.pgpass); do not put them into the
# URL.

#: Runs a statement with `?` for values; returns its rows.
Execute = Callable[..., list[tuple[Any, ...]]]

#: Seconds to wait for another SQLite transaction.
BUSY_S = 60.0

#: Key of PostgreSQL's advisory lock: "plinth" as a number.
LOCK = int.from_bytes(b"plinth", "big")


class Database:
    """Database whose tables are created in the first transaction.

    Args:
        place: `postgresql://…`, or a file of SQLite, on a disk of this machine.
        tables: name -> columns, in SQL that both databases accept.
    """

    def __init__(self, place: str, tables: dict[str, str]) -> None:
        self.place, self._tables = place, tables
        self._remote = re.match(r"postgres(ql)?://", place) is not None

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """Run a block exclusively; its writes are committed together at its end, or rolled back if it raises.

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
                "the database refused a statement",
                found=f"{re.sub('//[^@/]*@', '//', self.place)}: {str(error).strip()}",
                remedy="check that it is reachable and writable, then run the command again",
            ) from error

    def _begin(self, execute: Execute) -> None:
        if self._remote:
            execute("SELECT pg_advisory_xact_lock(?)", [LOCK])
            # checked first, because "create table if not exists" requires the right to create tables
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
