"""Components of the Dagster instance: a launcher that detects dead run processes, and SQLite storage with one engine
per database.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final

import dagster as dg
import psutil
from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, LaunchRunContext, WorkerStatus
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._core.storage.tags import GRPC_INFO_TAG
from sqlalchemy import Connection, Engine, NullPool, create_engine

# Run launcher that detects dead run processes.
#
# With Dagster's default launcher, a run stayed "started" forever and blocked the queue if its process was killed
# together with the code server or `plinth run`. `dagster.yaml` configures this one.

#: Run tag with the machine of its process. Runs on other machines cannot be checked from here; machines and containers
#: that share a workspace need unique names.
HOST: Final = "plinth/host"
#: Tolerance for rounded clocks.
ROUNDED_S = 1.0


def host() -> str:
    """Return the name of this machine, as it is written to the tags of Dagster runs."""
    return socket.gethostname()


class WatchedRunLauncher(DefaultRunLauncher):
    """Launcher that detects if the process of a run on this machine has died."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def launch_run(self, context: LaunchRunContext) -> None:
        super().launch_run(context)
        run = self._instance.get_run_by_id(context.dagster_run.run_id)
        # A code server started by this process uses a socket. A code server on a port may run on another machine or
        # pod.
        if run and "socket" in json.loads(run.tags.get(GRPC_INFO_TAG, "{}")):
            self._instance.add_run_tags(run.run_id, {HOST: host()})

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Check that the process that reported the run's start is alive. A process that was created later does not
        count, because it only reuses the process ID."""
        if run.tags.get(HOST) != host():
            return CheckRunHealthResult(WorkerStatus.RUNNING, "not checked: the process is on another machine")
        found = self._instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.RUN_START, limit=1).records
        started = found[0].event_log_entry if found else None
        if started is None or started.dagster_event is None or started.dagster_event.pid is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "not checked: no process has reported its start")
        pid = started.dagster_event.pid
        try:
            process = psutil.Process(pid)
            if process.create_time() <= started.timestamp + ROUNDED_S and process.status() != psutil.STATUS_ZOMBIE:
                return CheckRunHealthResult(WorkerStatus.RUNNING)
        except psutil.NoSuchProcess:
            pass
        return CheckRunHealthResult(WorkerStatus.FAILED, f"process {pid} on {host()} exited")


# Dagster's SQLite databases with one SQLAlchemy engine per database. Migrations are read only once.
#
# Dagster creates an engine for every read and event, and each engine recompiles its statements. Alembic reads all
# ninety migration files whenever it checks the version of a database.


@lru_cache(maxsize=32)
def _idle_engine(database: str) -> Engine:
    """Return a database engine that keeps no connection open, so that forks and deleted files do not break it."""
    return create_engine(database, poolclass=NullPool, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS})


class _Kept:
    """Database engines that keep their connections open during `kept_connections`."""

    engines: ClassVar[dict[str, Engine] | None] = None


@contextmanager
def kept_connections() -> Iterator[None]:
    """Keep database connections open during a run, because SQLite checkpoints its log whenever the last connection
    closes."""
    if _Kept.engines is not None:  # another thread keeps the connections open
        yield
        return
    engines = _Kept.engines = dict[str, Engine]()
    try:
        yield
    finally:
        _Kept.engines = None
        for engine in engines.values():
            engine.dispose()


def _engine(database: str) -> Engine:
    kept = _Kept.engines
    if kept is None:
        return _idle_engine(database)
    if database not in kept:
        kept[database] = create_engine(database, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS})
    return kept[database]


_read = ScriptDirectory.from_config
_MIGRATIONS = dict[str | None, ScriptDirectory]()


def _read_once(config: Config) -> ScriptDirectory:
    """Return the migrations that an Alembic configuration names, which are read once per process."""
    place = config.get_main_option("script_location")
    return _MIGRATIONS[place] if place in _MIGRATIONS else _MIGRATIONS.setdefault(place, _read(config))


ScriptDirectory.from_config = _read_once  # type: ignore[method-assign]


class SqliteEvents(SqliteEventLogStorage):
    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        with self._db_lock:
            engine = _engine(self.conn_string_for_shard(shard))
            if shard not in self._initialized_dbs:
                self._initdb(engine)
                self._initialized_dbs.add(shard)
            with engine.begin() as connection:
                yield connection


class SqliteRuns(SqliteRunStorage):
    @contextmanager
    def connect(self) -> Iterator[Connection]:
        with _engine(self._conn_string).begin() as connection:
            yield connection


class SqliteStorage(DagsterSqliteStorage):
    """SQLite databases in a folder, with Dagster's runs, events and schedules."""

    def __init__(self, base_dir: str, inst_data: Any = None) -> None:
        super().__init__(base_dir, inst_data)
        self._run_storage = SqliteRuns(self._run_storage._conn_string)
        self._event_log_storage = SqliteEvents(self._event_log_storage._base_dir)

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Any) -> SqliteStorage:
        Path(config_value["base_dir"]).mkdir(parents=True, exist_ok=True)
        return cls(inst_data=inst_data, **config_value)
