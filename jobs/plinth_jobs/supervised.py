"""Processes of `plinth up`: restarted when they exit, and reported by `plinth doctor`.

    ServerPart      a name and how to start it
    PartSupervisor  starts parts in order, polls them, restarts them with backoff, and stops them in reverse order
    UpRecord        record of running and exited processes for other commands, in the private folder of the workspace

The exit of a part does not affect the other parts. The delay before a restart doubles from `FIRST_S` to `LONGEST_S`,
and resets after `STEADY_S` of uptime. Start the supervisor in the main thread: the kernel ends the parts when that
thread ends.
"""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from plinth.compute.progress import Meter
from plinth.errors import PlinthError
from plinth.records import Frozen
from plinth.storage import running
from plinth.storage.atomic import write_bytes
from plinth.storage.running import RunningProcess
from plinth.storage.workspace import Workspace
from plinth_registry.mlflow.server import find_server, stop_server

FIRST_S, LONGEST_S, STEADY_S = 1.0, 60.0, 300.0
POLL_S, READY_S, STOP_GRACE_S = 0.5, 300.0, 20.0
PR_SET_PDEATHSIG = 1


class WatchedProcess(Protocol):
    """Interface of a process that the supervisor uses."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class ServerPart(NamedTuple):
    """Server of `plinth up`.

    Args:
        start: function that starts the process of the part.
        is_ready: function that returns True once the part is ready, so that the next parts can start.
        shared: True if the supervisor must not stop the part, because other commands use it.
    """

    name: str
    start: Callable[[], WatchedProcess]
    is_ready: Callable[[], bool] = lambda: True
    shared: bool = False


class PartState(Frozen):
    """State of a part of `plinth up`. `ended` describes the part's last exit, and is empty if the part never exited."""

    name: str
    pid: int = 0
    restarts: int = 0
    ended: str = ""


class UpRecord(RunningProcess):
    """Record of a running `plinth up`: its process ID, and the state of its parts."""

    parts: tuple[PartState, ...] = ()


class _Watched:
    """Part of `plinth up` with its running process and its restarts."""

    def __init__(self, part: ServerPart) -> None:
        self.part, self.state = part, PartState(name=part.name)
        self.process: WatchedProcess | None = None
        self.started_at = self.due = 0.0
        self.failures = 0


class PartSupervisor:
    """Supervisor that keeps the parts of `plinth up` running until it is stopped.

    Args:
        record: file to which the state is written.
        say: function that receives a message about each part that ended.
        clock: function that returns monotonic seconds.
    """

    def __init__(
        self,
        parts: Sequence[ServerPart],
        record: Path,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts, self._record, self._say, self._clock = [_Watched(part) for part in parts], record, say, clock
        self._stopping = False

    def start(self, meter: Meter | None = None) -> None:
        """Start every part in order. Wait for each part until it is ready, it has exited, or `READY_S` have passed."""
        for each in self._parts:
            if meter:
                meter.advance(1, each.part.name)
            self._start(each)
            until = self._clock() + READY_S
            while not each.part.is_ready() and self._clock() < until and not self._stopping:
                if each.process is None or each.process.poll() is not None:
                    break
                time.sleep(POLL_S / 5)

    def run(self) -> None:
        """Check the parts repeatedly until `request_stop` is called."""
        while not self._stopping:
            self.check()
            time.sleep(POLL_S)

    def request_stop(self) -> None:
        """Make `run` return. This method can be called from a signal handler."""
        self._stopping = True

    def check(self) -> None:
        """Report each part that has exited since the last check, and restart the parts for which the restart delay is
        over."""
        for each in self._parts:
            if each.process is not None and (code := each.process.poll()) is not None:
                self._note_end(each, _words(code))
            if each.process is None and self._clock() >= each.due:
                each.state = each.state.model_copy(update={"restarts": each.state.restarts + 1})
                self._start(each)

    def stop(self) -> None:
        """Stop all parts in reverse order, and delete the record."""
        own = [each.process for each in reversed(self._parts) if each.process is not None and not each.part.shared]
        for process in own:
            process.send_signal(signal.SIGTERM)
        until = self._clock() + STOP_GRACE_S
        while any(process.poll() is None for process in own) and self._clock() < until:
            time.sleep(POLL_S / 5)
        for process in own:
            if process.poll() is None:
                process.kill()
        self._record.unlink(missing_ok=True)

    def _start(self, each: _Watched) -> None:
        try:
            each.process = each.part.start()
        except (PlinthError, OSError) as error:
            self._note_end(each, f"not started: {error}")
            return
        each.started_at = self._clock()
        each.state = each.state.model_copy(update={"pid": each.process.pid})
        self._write()

    def _note_end(self, each: _Watched, how: str) -> None:
        lived = self._clock() - each.started_at if each.process is not None else 0.0
        each.failures = 1 if lived >= STEADY_S else each.failures + 1
        wait_s = min(FIRST_S * 2 ** (each.failures - 1), LONGEST_S)
        each.process, each.due = None, self._clock() + wait_s
        ended = f"{how} at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        each.state = each.state.model_copy(update={"pid": 0, "ended": ended})
        self._write()
        self._say(f"{each.part.name} exited ({how}); restarting in {wait_s:g} s")

    def _write(self) -> None:
        own = RunningProcess.of(psutil.Process().pid)
        record = UpRecord(**own.model_dump(), parts=tuple(each.state for each in self._parts))
        write_bytes(self._record, record.model_dump_json(indent=1).encode())


class SharedProcess:
    """Process that another process started, such as the MLflow server."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def poll(self) -> int | None:
        """Return None while the process runs, and -1 after it has ended. Only the parent process can read its exit
        status."""
        try:
            alive = self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            alive = False
        return None if alive else -1

    def send_signal(self, sig: int) -> None:
        self._process.send_signal(sig)

    def kill(self) -> None:
        self._process.kill()


def record_path(workspace: Workspace) -> Path:
    """Return the path of the file that records the workspace's running `plinth up`."""
    return running.folder(workspace) / "up.json"


def read(workspace: Workspace) -> UpRecord | None:
    """Return the record of `plinth up`, or None if `plinth up` was never started or was stopped. If `plinth up` was
    killed, its record remains."""
    try:
        return UpRecord.model_validate_json(record_path(workspace).read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def dies_with_parent() -> None:
    """Prepare a child process: it ends when the parent's thread ends, and SIGINT and SIGTERM are no longer ignored."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _words(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    return f"signal {-code}" if code != -1 else "process gone"


# Servers started by Plinth for a workspace on this machine: the parts of `plinth up`, and the MLflow server.
#
# `plinth doctor` lists these servers, and `plinth down` stops them. No heavy package is imported.


class StartedServer(NamedTuple):
    """Running server of a workspace. `bytes` is the resident memory of the server and its child processes."""

    name: str
    pid: int
    bytes: int


def started(workspace: Workspace) -> list[StartedServer]:
    """Return the servers of a workspace that run on this machine."""
    record, mlflow = read(workspace), find_server(workspace)
    found = []
    if record is not None and record.find() is not None:
        found = [("plinth up", record.pid), *((part.name, part.pid) for part in record.parts if part.pid)]
    if mlflow and mlflow.pid not in (pid for _, pid in found):
        found.append(("MLflow server", mlflow.pid))
    return [StartedServer(name, pid, _memory(pid, alone=name == "plinth up")) for name, pid in found]


def ended(workspace: Workspace) -> list[PartState]:
    """Return the parts of `plinth up` that have exited since its start, including restarted parts. If `plinth up`
    itself was killed, return only one entry for it."""
    record = read(workspace)
    if record is None:
        return []
    if record.find() is None:
        return [PartState(name="plinth up", ended="killed, together with its servers")]
    return [part for part in record.parts if part.ended]


def down(workspace: Workspace) -> list[StartedServer]:
    """Stop the servers of a workspace and return them. Training runs continue."""
    found, record = started(workspace), read(workspace)
    process = record.find() if record is not None else None
    if process is not None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=2 * STOP_GRACE_S)
        except psutil.TimeoutExpired:
            process.kill()
    if record is not None:
        record_path(workspace).unlink(missing_ok=True)
    stop_server(workspace)
    return found


def _memory(pid: int, *, alone: bool = False) -> int:
    found = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *([] if alone else process.children(recursive=True))):
            found += int(each.memory_info().rss)
    return found
