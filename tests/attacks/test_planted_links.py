"""Write the workspace: links, pipes and devices where the operator's processes append, lock or note."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.sensors.alarms import record_failure
from plinth.errors import RegistryError, WorkspaceError
from plinth.launch.files import tail
from plinth.launch.local import LocalLauncher
from plinth.storage import atomic, locks
from plinth.storage.workspace import Workspace
from plinth.training.telemetry.timeline import Timeline
from registry import server

KEPT = b"ssh-ed25519 AAAA operator"  # no line end: what appends would cut or extend it

WRITERS: dict[str, tuple[str, Callable[[Path, Path], Any]]] = {
    "timeline": ("runs/r/events.jsonl", lambda root, path: Timeline(path).append("step", step=1)),
    "lock": ("plinth.lock", lambda root, path: os.close(locks.take(path, owner="plinth run"))),
    "alarms": ("alerts.jsonl", lambda root, path: record_failure(root, "", "job", "text")),
    "job log": ("runs/r/job.log", lambda root, path: LocalLauncher().submit(["true"], path.parent, path)),
    "server log": ("mlflow/server.log", lambda root, path: server.ensure_server(Workspace(root))),
}


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_through_a_planted_link(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    target, root = tmp_path / "authorized_keys", Workspace(tmp_path / "workspace").ensure().root
    target.write_bytes(KEPT)
    place, write = WRITERS[name]
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).symlink_to(target)
    with pytest.raises(WorkspaceError, match="cannot write"):
        write(root, root / place)
    assert target.read_bytes() == KEPT


@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_no_log_that_is_a_planted_link_is_quoted(plant: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """Errors quote the last lines of `server.log` and `job.log`, and Dagster's database keeps errors."""
    secret, log = tmp_path / "root.key", tmp_path / "job.log"
    secret.write_text("-----BEGIN PRIVATE KEY-----\nMC4CAQAw\n")
    plant(secret, log)
    with pytest.raises(WorkspaceError, match="cannot read"):
        atomic.open_to_read(log)
    assert tail(log, 5).startswith(f"cannot read {log}: ")
    assert "MC4CAQAw" not in tail(log, 5)
    log.unlink()
    log.write_text("one\ntwo\nthree\n")
    assert tail(log, 2) == "two\nthree"


def test_the_error_of_a_server_that_does_not_start_quotes_no_planted_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    workspace, secret = Workspace(tmp_path / "workspace").ensure(), tmp_path / "root.key"
    secret.write_text("MC4CAQAw\n")

    def command(_: Workspace, __: int) -> list[str]:
        log = workspace.mlflow / "server.log"
        log.unlink()
        log.symlink_to(secret)
        return ["/bin/false"]

    monkeypatch.setattr(server, "_command", command)
    with pytest.raises(RegistryError, match=r"cannot read .*server\.log") as caught:
        server.ensure_server(workspace)
    assert "MC4CAQAw" not in str(caught.value)


def test_a_pipe_or_a_device_is_refused_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(WorkspaceError, match="a pipe or a device"):
            atomic.append_to(tmp_path / "pipe")
    finally:
        os.close(reader)
    with pytest.raises(WorkspaceError, match="a pipe or a device"):
        Timeline(tmp_path / "pipe").append("step", step=1)
