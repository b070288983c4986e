"""Write the workspace: links, pipes and devices where the operator's processes append, lock, note, delete or copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.progress import SILENT
from plinth.corpus.slices import reviews
from plinth.errors import RegistryError, WorkspaceError
from plinth.launch.base import tail
from plinth.launch.local import LocalLauncher
from plinth.storage import atomic, blob_cache
from plinth.storage.objects import Folder
from plinth.storage.state import State
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import checkpoint
from plinth.training.directory import RunDirectory
from plinth.training.supervise import rank_watch
from plinth.training.telemetry.timeline import Timeline
from plinth_jobs.instance import record_failure
from plinth_ops.backup.snapshot import BackupArchive
from plinth_ops.backup.taking import take
from plinth_registry.mlflow import server

KEPT = b"ssh-ed25519 AAAA operator"  # no line end: what appends would cut or extend it

REVIEW = reviews.Review(id="0" * 32, reason="toxic", label="bad", reviewer="ada", time="2026-01-01T00:00:00Z")

WRITERS: dict[str, tuple[str, Callable[[Path, Path], Any]]] = {
    "timeline": ("runs/r/events.jsonl", lambda root, path: Timeline(path).append("step", step=1)),
    "lock": ("plinth.lock", lambda root, path: os.close(atomic.take(path, owner="plinth run"))),
    "alarms": ("alerts.jsonl", lambda root, path: record_failure(root, "", "job", "text")),
    "job log": ("runs/r/job.log", lambda root, path: LocalLauncher().submit(["true"], path.parent, path)),
    "labels": ("reviews/ada.jsonl", lambda root, path: reviews.append(Workspace(root), [REVIEW])),
    "server log": ("mlflow/server.log", lambda root, path: server.ensure_server(Workspace(root))),
}


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_through_a_planted_link(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        atomic.opened(log, one_name=True)
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


@pytest.mark.parametrize("name", ["rank-0003.stack", "rank-0003.part"])
def test_a_rank_that_hangs_writes_its_stacks_through_no_link(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_watch, "recorded", list)
    (tmp_path / "target").write_bytes(KEPT)
    (tmp_path / "hangs").mkdir()
    (tmp_path / "hangs" / name).symlink_to(tmp_path / "target")
    rank_watch.dump(tmp_path / "hangs", 3)
    assert (tmp_path / "target").read_bytes() == KEPT
    assert "test_planted_links" in (tmp_path / "hangs/rank-0003.stack").read_text()


def _sweep(root: Path) -> None:
    with Workspace(root).locked("run"):
        pass


DELETERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "tmp, at the start": ("tmp", lambda root: Workspace(root).ensure()),
    "tmp": ("tmp", _sweep),
    "staging": ("store/staging", _sweep),
    "staging, at the start": ("store/staging", lambda root: Workspace(root).ensure()),
    "checkpoints": ("runs/r/checkpoints", lambda root: checkpoint.clean(RunDirectory(root / "runs/r"))),
    "staged checkpoints": ("runs/r/staging", lambda root: checkpoint.clean(RunDirectory(root / "runs/r"))),
    "run": ("runs/r", lambda root: checkpoint.clean(RunDirectory(root / "runs/r"))),
    "writers": ("runs/r/writers", lambda root: checkpoint.clean(RunDirectory(root / "runs/r"))),
    "a checkpoint": ("runs/r/checkpoints", lambda root: checkpoint.delete(RunDirectory(root / "runs/r"), 2)),
    "leases": ("store/leases", lambda root: blob_cache.leases(root / "store/leases")),
    "records": ("records", lambda root: list(Folder(root / "records").facts())),
    "blobs": ("store/files/md5", lambda root: list(Store(root / "store").facts())),
}


@pytest.mark.parametrize("name", DELETERS)
def test_nothing_is_deleted_through_a_link_in_the_place_of_a_folder(name: str, tmp_path: Path) -> None:
    root, docs = Workspace(tmp_path / "workspace").ensure().root, tmp_path / "docs"
    place, delete = DELETERS[name]
    for file in ("letter.txt", "thesis/chapter.txt", "step-00000002/model", "checkpoints/other/model"):
        (docs / file).parent.mkdir(parents=True, exist_ok=True)
        (docs / file).write_bytes(KEPT)
    (docs / "step-00000002.json").write_bytes(KEPT)
    for path in docs.rglob("*"):
        os.utime(path, (0, 0))
    before = sorted(docs.rglob("*"))
    if (root / place).exists():
        (root / place).rmdir()
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).symlink_to(docs)
    with pytest.raises(WorkspaceError, match=f"nothing is deleted through the link {root / place}"):
        delete(root)
    assert sorted(docs.rglob("*")) == before


def test_links_within_those_folders_go_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").ensure()
    run = RunDirectory(workspace.runs / "r")
    run.checkpoints.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/letter.txt").write_bytes(KEPT)
    for folder in (workspace.tmp, run.checkpoints):
        (folder / "left").symlink_to(tmp_path / "docs")
        os.utime(folder / "left", (0, 0), follow_symlinks=False)
    _sweep(workspace.root)
    checkpoint.clean(run)
    assert [*workspace.tmp.iterdir(), *run.checkpoints.iterdir()] == []
    assert (tmp_path / "docs/letter.txt").read_bytes() == KEPT


def test_a_linked_store_and_linked_runs_on_another_disk_are_used(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    for name in ("store", "runs"):
        (tmp_path / "disk" / name).mkdir(parents=True)
        (tmp_path / "workspace" / name).symlink_to(tmp_path / "disk" / name)
    _sweep(Workspace(tmp_path / "workspace").ensure().root)
    checkpoint.clean(RunDirectory(tmp_path / "workspace/runs/r"))


PLANTED: dict[str, Callable[[Path, Path], Any]] = {
    "link": lambda path, target: path.symlink_to(target),
    "link to its folder": lambda path, target: path.symlink_to(target.parent),
    "hard link": lambda path, target: path.hardlink_to(target),
    "pipe": lambda path, target: os.mkfifo(path),
}


@pytest.mark.parametrize("how", PLANTED)
@pytest.mark.parametrize("place", ["approvals/0123456789ab/zz.json", "policies/zz.json", "runs/r/zz"])
def test_a_backup_carries_nothing_from_outside(how: str, place: str, tmp_path: Path, own_trust: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").ensure()
    (workspace.root / place).parent.mkdir(parents=True, exist_ok=True)
    PLANTED[how](workspace.root / place, own_trust / "seal")
    with pytest.raises(WorkspaceError, match=f"{place} cannot be backed up"):
        take(State(workspace), BackupArchive(str(tmp_path / "backups")), (), "needed", SILENT)
    secret = (own_trust / "seal").read_bytes()
    assert [path for path in (tmp_path / "backups").rglob("*") if path.is_file() and path.read_bytes() == secret] == []


def test_a_backup_of_a_workspace_behind_links_and_with_links_inside(tmp_path: Path, own_trust: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "disk/r/wandb/run-1").mkdir(parents=True)
    (tmp_path / "disk/r/wandb/run-1/log").write_text("log")
    (tmp_path / "disk/r/wandb/latest-run").symlink_to("run-1")
    (tmp_path / "real/runs").symlink_to(tmp_path / "disk")
    (tmp_path / "workspace").symlink_to(tmp_path / "real")
    state = State(Workspace(tmp_path / "workspace").ensure())
    _, snapshot = take(state, BackupArchive(str(tmp_path / "backups")), (), "needed", SILENT)
    assert [each.path for each in snapshot.entries if each.group == "runs"] == ["runs/r/wandb/run-1/log"]
