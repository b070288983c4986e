"""Dagster instance of a workspace, and alerts: failed jobs and sensor findings, one per line in `alerts.jsonl`."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from plinth.errors import WorkspaceError
from plinth.storage.atomic import append_to, write_bytes
from plinth.storage.workspace import Workspace
from plinth_jobs import recipes

if TYPE_CHECKING:
    import dagster as dg

#: File of alerts, one line per failed job or sensor finding, and the jobs that watch releases.
ALARMS = "alerts.jsonl"
RELEASE_JOBS = frozenset({"mirror", "canary", "feed"})

#: A file in `dagster/` that a sensor touches at every tick.
HEARTBEAT = "heartbeat"


def record_failure(workspace: Path, run_id: str, job: str, message: str | None) -> None:
    """Append a failure to the `alerts.jsonl` of a workspace, as one line."""
    line = json.dumps({"time": time.time(), "run": run_id, "job": job, "message": message})
    with append_to(workspace / ALARMS) as stream:
        stream.write(f"{line}\n".encode())


def settings_file() -> Path:
    """Return the path of `dagster.yaml`: the file named in PLINTH_DAGSTER_YAML. If the variable is not set, return the
    file in the checkout or installed package."""
    if named := os.environ.get("PLINTH_DAGSTER_YAML"):
        return Path(named)
    here = Path(__file__).parent
    checkout = here.parents[1] / "dagster.yaml"
    return checkout if checkout.exists() else here / "dagster.yaml"


def home(workspace: Workspace) -> Path:
    """Return DAGSTER_HOME of a workspace, which is a private folder with the current settings.

    The settings name classes that Dagster imports and calls. They are therefore not read from the workspace, where
    other users may have write access. The databases stay in the workspace.
    """
    folder = recipes.notes_folder(workspace.root) / "dagster"
    target, wanted = folder / "dagster.yaml", yaml.safe_dump(_settings(workspace.dagster)).encode()
    if not target.exists() or target.read_bytes() != wanted:
        write_bytes(target, wanted)
    return folder


def _settings(databases: Path) -> dict[str, Any]:
    """Return the settings of the Dagster instance. Missing settings get Dagster's defaults, with storage in the
    workspace."""
    given: dict[str, Any] = yaml.safe_load(settings_file().read_bytes()) or {}
    own = {
        "local_artifact_storage": _local("dagster._core.storage.root", "LocalArtifactStorage", databases),
        "compute_logs": _local(
            "dagster._core.storage.local_compute_log_manager", "LocalComputeLogManager", databases / "storage"
        ),
    }
    if not _STORAGES & given.keys():
        own["storage"] = {"custom": _local("plinth_jobs.dagster_parts", "SqliteStorage", databases)}
    return own | given


def _local(module: str, name: str, folder: Path) -> dict[str, Any]:
    return {"module": module, "class": name, "config": {"base_dir": str(folder)}}


#: Settings for the storage of runs, events and schedules.
_STORAGES = frozenset({"storage", "run_storage", "event_log_storage", "schedule_storage"})


#: Dagster's names of the code location that `plinth up` serves, and of the repository in it.
LOCATION, REPOSITORY = "plinth_jobs.definitions", "__repository__"


def of_code_location(instance: dg.DagsterInstance, job: str) -> dg.DagsterInstance:
    """Record the runs that this process executes as runs of a job in the code location.

    Dagster's pages (timeline, job, asset) list runs by the origin of their job, but `execute_in_process` records no
    origin.
    """
    from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

    origin = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(LOCATION), REPOSITORY), job)
    create = partial(instance.create_run_for_job, remote_job_origin=origin)
    instance.create_run_for_job = create  # type: ignore[method-assign]
    return instance


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM interrupt the Dagster runs of this process, and restore their handlers afterward.

    Dagster permanently gives SIGTERM the handler of SIGINT, and a shell starts background jobs with SIGINT ignored. A
    background job could therefore not be stopped, and its children would also ignore SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_instance(workspace: Workspace) -> dg.DagsterInstance:
    """Open the Dagster instance for runs that this process executes itself.

    Raises:
        WorkspaceError: the settings require a package that is not installed or a server that is not reachable.
    """
    import dagster as dg

    try:
        return dg.DagsterInstance.from_config(str(home(workspace)))
    except Exception as error:  # each storage raises its own exceptions
        raise WorkspaceError(
            f"Dagster cannot open an instance with the settings in {settings_file()}",
            found=error,
            remedy="correct the settings; for PostgreSQL, start the server and `pip install 'plinth[postgres]'`",
        ) from error
