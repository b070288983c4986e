"""What Plinth has started for a workspace on this machine: the Dagster pages of `plinth up`, and the MLflow server.

Imports nothing heavy: `plinth doctor` lists them, `plinth down` stops them.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from plinth.storage import started as records
from plinth.storage.atomic import write_bytes
from plinth.storage.started import RunningProcess
from plinth.storage.workspace import Workspace
from registry.server import find_server, stop_server

STOP_GRACE_S = 20


class StartedServer(NamedTuple):
    """A server that runs. `bytes` is the resident memory of it and its children."""

    name: str
    pid: int
    bytes: int


def note_pages(workspace: Workspace, pid: int) -> Path:
    """Write down the process of `plinth up`; whoever ends it deletes the file that is returned."""
    path = _noted(workspace)
    write_bytes(path, RunningProcess.of(pid).model_dump_json().encode())
    return path


def started(workspace: Workspace) -> list[StartedServer]:
    """The servers of a workspace that run on this machine."""
    pages, mlflow = _pages(workspace), find_server(workspace)
    found = [("Dagster", pages.pid)] if pages else []
    found += [("MLflow", mlflow.pid)] if mlflow else []
    return [StartedServer(name, pid, _memory(pid)) for name, pid in found]


def down(workspace: Workspace) -> list[StartedServer]:
    """Stop them; training runs go on. Returns those that ran."""
    found, pages = started(workspace), _pages(workspace)
    if pages is not None:
        pages.send_signal(signal.SIGINT)
        try:
            pages.wait(timeout=STOP_GRACE_S)
        except psutil.TimeoutExpired:
            pages.kill()
    stop_server(workspace)
    return found


def _pages(workspace: Workspace) -> psutil.Process | None:
    try:
        return RunningProcess.model_validate_json(_noted(workspace).read_bytes()).find()
    except (FileNotFoundError, ValueError):
        return None


def _memory(pid: int) -> int:
    found = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            found += int(each.memory_info().rss)
    return found


def _noted(workspace: Workspace) -> Path:
    return records.folder(workspace) / "up.json"
