"""Attack: a user who can write the workspace records the operator's own processes among those that Plinth ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from plinth.launch import local
from plinth.launch.base import Handle
from plinth.launch.local import LocalLauncher
from plinth.launch.parameters import Launch
from plinth.launch.slurm import SlurmLauncher
from plinth.storage import atomic
from plinth.storage import running as started
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import writer
from plinth.training.directory import RunDirectory
from plinth_jobs import supervised

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)", "mlflow", "plinth"]


@pytest.fixture
def bystander() -> Iterator[psutil.Popen]:
    """A process of the operator, which leads a session as jobs and servers do."""
    process = psutil.Popen(SLEEP, start_new_session=True)
    yield process
    assert process.poll() is None, "the bystander was killed"
    process.kill()
    process.wait()


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Workspace(tmp_path / "workspace").ensure()


def test_down_ends_no_process_that_the_workspace_names(workspace: Workspace, bystander: psutil.Popen) -> None:
    exact = {"pid": bystander.pid, "started_at_s": bystander.create_time()}
    (workspace.dagster / "server.json").write_text(json.dumps(exact))
    (workspace.mlflow / "server.json").write_text(json.dumps({**exact, "port": 1, "login": "", "stores": []}))
    assert supervised.started(workspace) == supervised.down(workspace) == []


def test_the_records_are_outside_and_follow_the_workspace_through_links(workspace: Workspace) -> None:
    folder = started.folder(workspace)
    assert not folder.resolve().is_relative_to(workspace.root.resolve())
    assert folder.stat().st_mode & 0o077 == 0
    link = workspace.root.parent / "link"
    link.symlink_to(workspace.root)
    assert started.folder(Workspace(link)) == folder
    assert started.folder(Workspace(workspace.root.parent / "other")) != folder


def handle_of(process: psutil.Popen) -> Handle:
    return local._handle(psutil.Process(process.pid))


def test_cancel_ends_no_process_that_a_handle_names(tmp_path: Path, bystander: psutil.Popen) -> None:
    (tmp_path / "handle.json").write_text(handle_of(bystander).model_dump_json())
    assert LocalLauncher().find(tmp_path) is None


def test_a_handle_of_another_runs_job_is_not_taken(tmp_path: Path) -> None:
    """The run's own job is found although the file names another one."""
    launcher, sleep = LocalLauncher(), [sys.executable, "-c", "import time; time.sleep(600)"]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    mine, other = (launcher.submit(sleep, tmp_path / name, tmp_path / name / "log") for name in "ab")
    try:
        (tmp_path / "a" / "handle.json").write_text(other.model_dump_json())
        assert launcher.find(tmp_path / "a") == mine
        (tmp_path / "a").rename(tmp_path / "moved")  # with its job under way, which stays its own
        (tmp_path / "moved" / "handle.json").write_text(mine.model_dump_json())
        assert launcher.find(tmp_path / "moved") == mine
    finally:
        for handle in (mine, other):
            launcher.cancel(handle, 60.0)


def test_a_slurm_job_of_another_name_is_not_taken(tmp_path: Path) -> None:
    handle = Handle(launcher="slurm", id="7", started="someone-elses-job", host="cluster")
    (tmp_path / "handle.json").write_text(handle.model_dump_json())
    assert SlurmLauncher(Launch(kind="slurm", ranks=1), 1.0).find(tmp_path) is None


def test_a_lock_that_names_another_process_kills_none(tmp_path: Path, bystander: psutil.Popen) -> None:
    run = RunDirectory(tmp_path)
    lock = writer.lock_path(run, 0)
    fd = atomic.take(lock, owner=f"{bystander.pid} {socket.gethostname()}")
    try:
        monotonic = time.monotonic
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: monotonic() + 1e6 * next(counter))
            counter = iter(range(10**6))
            writer.end(run, 0)
    finally:
        os.close(fd)


def test_a_server_that_nobody_uses_ends(tmp_path: Path) -> None:
    """Also when its user was killed; a new user waits for the end and then starts another."""
    users = tmp_path / "users"
    code = f"import time, pathlib; from plinth.storage import running; running.use(pathlib.Path({str(users)!r}))"
    user = subprocess.Popen(
        [sys.executable, "-c", f"{code}; print('used', flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert user.stdout is not None
    assert user.stdout.readline() == b"used\n"
    assert atomic.try_take(users) is None
    user.kill()
    user.wait()
    fd = started.wait_until_unused(users, 0.1, 0.01)
    assert atomic.held(users)
    os.close(fd)
    started.use(users)
    assert atomic.try_take(users) is None
