"""What Plinth has started for a workspace on this machine: the parts of `plinth up`, and the MLflow server.

Imports nothing heavy: `plinth doctor` lists them, `plinth down` stops them.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import NamedTuple

import psutil

from plinth.storage.workspace import Workspace
from plinth_jobs import supervised
from plinth_jobs.supervised import STOP_GRACE_S, PartState
from plinth_registry.mlflow.server import find_server, stop_server


class StartedServer(NamedTuple):
    """A server that runs. `bytes` is the resident memory of it and its children."""

    name: str
    pid: int
    bytes: int


def started(workspace: Workspace) -> list[StartedServer]:
    """The servers of a workspace that run on this machine."""
    record, mlflow = supervised.read(workspace), find_server(workspace)
    found = []
    if record is not None and record.find() is not None:
        found = [("plinth up", record.pid), *((part.name, part.pid) for part in record.parts if part.pid)]
    if mlflow and mlflow.pid not in (pid for _, pid in found):
        found.append(("MLflow server", mlflow.pid))
    return [StartedServer(name, pid, _memory(pid, alone=name == "plinth up")) for name, pid in found]


def ended(workspace: Workspace) -> list[PartState]:
    """Parts of `plinth up` that have ended since it started, whether or not they run again; itself if it was killed."""
    record = supervised.read(workspace)
    if record is None:
        return []
    if record.find() is None:
        return [PartState(name="plinth up", ended="killed: its servers ended with it")]
    return [part for part in record.parts if part.ended]


def down(workspace: Workspace) -> list[StartedServer]:
    """Stop them; training runs go on. Returns those that ran."""
    found, record = started(workspace), supervised.read(workspace)
    process = record.find() if record is not None else None
    if process is not None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=2 * STOP_GRACE_S)
        except psutil.TimeoutExpired:
            process.kill()
    if record is not None:
        supervised.record_path(workspace).unlink(missing_ok=True)
    stop_server(workspace)
    return found


def _memory(pid: int, *, alone: bool = False) -> int:
    found = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *([] if alone else process.children(recursive=True))):
            found += int(each.memory_info().rss)
    return found
