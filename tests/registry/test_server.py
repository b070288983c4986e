"""The local server: one per workspace, found again, replaced when dead, stopped on request."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from plinth.errors import DiskFullError, RegistryError
from plinth.storage.workspace import Workspace
from plinth_registry.mlflow import server
from plinth_registry.mlflow.connection import connect, models, optional, versions


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    workspace = Workspace(tmp_path / "workspace").ensure()
    yield workspace
    server.stop_server(workspace)


@pytest.mark.slow
def test_a_server_that_cannot_be_remembered_is_ended(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: what the next command and `plinth down` do not know would run for ever."""
    started: list[int] = []
    real = server.RunningProcess.of

    written = server.write_bytes

    def full(path: Path, data: bytes, *, mode: int | None = None) -> None:
        if mode is not None:  # the key of webhook secrets, before the server starts
            return written(path, data, mode=mode)
        raise DiskFullError(f"no space left while writing {path}")

    monkeypatch.setattr(server.RunningProcess, "of", lambda pid: started.append(pid) or real(pid))
    monkeypatch.setattr(server, "write_bytes", full)
    with pytest.raises(DiskFullError):
        server.ensure_server(workspace)
    (pid,) = started
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.exhaustive
@pytest.mark.slow
def test_one_server_for_many_callers_and_the_same_port_after_a_kill(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(3) as pool:
        uris = set(pool.map(lambda _: server.ensure_server(workspace), range(3)))
    (uri,) = uris
    state = server.find_server(workspace)
    assert state is not None
    assert state.uri == uri
    assert uri.startswith("http://127.0.0.1:")
    environment = psutil.Process(state.pid).environ()
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.getpgid(state.pid) == state.pid != os.getpgid(0)

    os.killpg(state.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(state.pid)], timeout=300)
    assert server.find_server(workspace) is None
    # A child process that was handed the address still knows whose server it is.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert server.ensure_server(workspace) == uri

    again = server.find_server(workspace)
    assert again is not None
    assert again.pid != state.pid
    monkeypatch.delenv("MLFLOW_TRACKING_URI")

    # models need no server
    connect(workspace).create_registered_model("words")
    assert [model.name for model in models(connect(workspace))] == ["words"]
    server.stop_server(workspace)
    connect(workspace).create_registered_model("texts")
    assert {model.name for model in models(connect(workspace))} == {"texts", "words"}
    assert server.find_server(workspace) is None


def test_where_nothing_is_registered_a_reader_is_told_so_and_starts_nothing(workspace: Workspace) -> None:
    client = connect(workspace)
    assert models(client) == versions(client, "words") == []
    assert optional(lambda: client.get_model_version("words", "1")) is None
    assert optional(lambda: client.get_registered_model("words")) is None
    assert not server._path(workspace).exists()


def test_stopping_ends_workers_whose_parent_was_killed(workspace: Workspace) -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)", "mlflow"]
    starting = f"import subprocess, time; subprocess.Popen({sleeping!r}); time.sleep(600)"
    parent = psutil.Popen([sys.executable, "-c", starting, "mlflow"], start_new_session=True)
    while not parent.children():
        time.sleep(0.02)
    workers = parent.children()
    state = server.ServerState(pid=parent.pid, started_at_s=parent.create_time(), port=1)
    server._path(workspace).write_text(state.model_dump_json())
    parent.kill()
    parent.wait(300)
    assert workers[0].is_running()
    assert server.stop_server(workspace)
    assert psutil.wait_procs(workers, timeout=300)[1] == []
    assert not server.stop_server(workspace)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_server_ends_after_its_last_user(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next command finds it still there; without one it ends by itself, also when its user was killed."""
    code = (
        "import os, sys; from plinth.storage.workspace import Workspace\n"
        "from plinth_registry.mlflow.server import ensure_server\n"
        "print(ensure_server(Workspace(sys.argv[1])), flush=True); os.kill(os.getpid(), 9)"
    )
    starting = [sys.executable, "-c", code, str(workspace.root)]
    first = subprocess.run(starting, capture_output=True, text=True, timeout=600)
    state = server.find_server(workspace)
    assert state is not None
    assert state.uri == first.stdout.strip()
    second = subprocess.run(starting, capture_output=True, text=True, timeout=600)
    assert second.stdout == first.stdout
    family = [psutil.Process(state.pid), *psutil.Process(state.pid).children(recursive=True)]
    assert psutil.wait_procs(family, timeout=300)[1] == []
    assert "no process has used it for 20 s" in (workspace.mlflow / "server.log").read_text()


def test_another_process_with_the_same_number_is_left_alone(workspace: Workspace) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        state = server.ServerState(pid=bystander.pid, started_at_s=1.0, port=1)
        server._path(workspace).write_text(state.model_dump_json())
        assert server.find_server(workspace) is None
        assert not server.stop_server(workspace)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_garbage_in_the_state_file_means_no_server(workspace: Workspace) -> None:
    server._path(workspace).write_text("{")
    assert server.find_server(workspace) is None


def test_a_server_of_ones_own_wins_and_must_answer(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    with pytest.raises(RegistryError, match=f"no MLflow server responds at http://127.0.0.1:{port}"):
        server.ensure_server(workspace)
    assert not server._path(workspace).exists()


def test_a_server_that_cannot_start_says_why(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RegistryError, match="did not start") as caught:
        server.ensure_server(workspace)
    assert "server.log" in str(caught.value)
