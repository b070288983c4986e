"""Parts of `plinth up`: one that ends is named and started again, and costs no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from plinth import processes
from plinth.storage.workspace import Workspace
from plinth_jobs import supervised
from plinth_jobs.cli import doctor
from plinth_jobs.supervised import PartSupervisor, ServerPart, SharedProcess, UpRecord, WatchedProcess

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
ROOT = Path(__file__).resolve().parents[2]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace").ensure()


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def sleeping(children: list[subprocess.Popen[bytes]]) -> Callable[[], WatchedProcess]:
    def start() -> WatchedProcess:
        children.append(subprocess.Popen(SLEEP))
        return children[-1]

    return start


def test_one_that_is_killed_is_started_again_and_stays_named(
    workspace: Workspace, children: list[subprocess.Popen[bytes]]
) -> None:
    clock, said = Clock(), list[str]()
    names = ("Dagster daemon", "exporter")
    parts = [ServerPart(name, sleeping(children)) for name in names]
    supervisor = PartSupervisor(parts, supervised.record_path(workspace), said.append, clock)
    supervisor.start()
    assert doctor.servers(workspace.root).state == "ok"
    daemon, exporter = children
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    supervisor.check()
    assert said == ["Dagster daemon exited (signal 9); restarting in 1 s"]
    finding = doctor.servers(workspace.root)
    assert (finding.state, "Dagster daemon exited (signal 9 at 20" in finding.found) == ("warn", True)
    assert "restarted" not in finding.found
    supervisor.check()
    assert len(children) == 2  # not at once
    clock.now += 1.0
    supervisor.check()
    assert len(children) == 3
    assert exporter.poll() is None
    listed = [(one.name, one.pid) for one in supervised.started(workspace)]
    assert listed == [("plinth up", os.getpid()), ("Dagster daemon", children[2].pid), ("exporter", exporter.pid)]
    assert "restarted" in doctor.servers(workspace.root).found  # until `plinth up` is stopped
    supervisor.stop()
    assert [child.wait() for child in children] == [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGTERM]
    assert supervised.started(workspace) == supervised.ended(workspace) == []


def test_the_wait_doubles_up_to_a_limit_and_starts_over_after_a_steady_life(workspace: Workspace) -> None:
    clock, said = Clock(), list[str]()

    class Ended:
        pid = os.getpid()
        code: int | None = 1

        def poll(self) -> int | None:
            return self.code

        def send_signal(self, sig: int) -> None: ...
        def kill(self) -> None: ...

    process = Ended()
    supervisor = PartSupervisor(
        [ServerPart("exporter", lambda: process)], supervised.record_path(workspace), said.append, clock
    )
    supervisor.start()
    for _ in range(17):
        supervisor.check()
        clock.now += 61.0
    waits = [sentence.rpartition("in ")[2] for sentence in said]
    assert waits == ["1 s", "2 s", "4 s", "8 s", "16 s", "32 s", "60 s", "60 s", "60 s"]
    process.code = None
    supervisor.check()
    clock.now += supervised.STEADY_S
    process.code = 0
    supervisor.check()
    assert said[-1] == "exporter exited (exit status 0); restarting in 1 s"


def test_one_that_cannot_be_started_costs_no_other(
    workspace: Workspace, children: list[subprocess.Popen[bytes]]
) -> None:
    said = list[str]()

    def fails() -> WatchedProcess:
        raise OSError("no such program")

    parts = [ServerPart("MLflow server", fails), ServerPart("exporter", sleeping(children))]
    supervisor = PartSupervisor(parts, supervised.record_path(workspace), said.append, Clock())
    supervisor.start()
    assert said == ["MLflow server exited (not started: no such program); restarting in 1 s"]
    assert len(children) == 1
    supervisor.stop()


def test_a_shared_server_is_watched_and_not_stopped(
    workspace: Workspace, children: list[subprocess.Popen[bytes]]
) -> None:
    child = sleeping(children)()
    part = ServerPart("MLflow server", lambda: SharedProcess(psutil.Process(child.pid)), shared=True)
    supervisor = PartSupervisor([part], supervised.record_path(workspace), pytest.fail, Clock())
    supervisor.start()
    supervisor.check()
    supervisor.stop()
    assert child.poll() is None


def test_one_that_was_killed_is_named_and_stopped_by_down(workspace: Workspace) -> None:
    own = UpRecord(pid=os.getpid(), started_at_s=1.0)  # another process of the same number
    supervised.record_path(workspace).write_text(own.model_dump_json())
    finding = doctor.servers(workspace.root)
    assert (finding.state, finding.found.partition(".")[0]) == (
        "warn",
        "plinth up exited (killed, together with its servers)",
    )
    assert supervised.down(workspace) == []
    assert doctor.servers(workspace.root).found == "none"


def test_parts_end_with_the_process_that_supervises_them() -> None:
    code = (
        "import sys, time; from plinth_jobs import supervised; from plinth import processes; "
        f"print(processes.start({SLEEP!r}, preexec_fn=supervised.dies_with_parent).pid, flush=True); time.sleep(600)"
    )
    own = {**os.environ, **processes.imports()}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=own, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    until = time.monotonic() + 120
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.02)
