"""Committed or nothing: every interruption, every kind of damage, on tiny files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plinth.errors import CheckpointError, DiskFullError
from plinth.training.checkpoint import checkpoint
from plinth.training.directory import RunDirectory

FILES = {"state.json": b'{"step": 1}', "engine/state/model.pt": b"weights" * 50, "rng/rank-00000.json": b"[1]"}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    return run


def staged(run: RunDirectory, step: int) -> Path:
    folder = checkpoint.stage(run, step)
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def committed(run: RunDirectory, *steps: int) -> None:
    for step in steps:
        staged(run, step)
        checkpoint.commit(run, step)


def test_commit_then_verify(run: RunDirectory) -> None:
    committed(run, 3)
    folder = checkpoint.verify(run, 3)
    assert folder == run.checkpoints / "step-00000003"
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == {*FILES, "manifest.json"}
    assert not list(run.staging.iterdir())


def test_commit_is_the_same_for_the_same_files(run: RunDirectory, tmp_path: Path) -> None:
    other = RunDirectory(tmp_path / "elsewhere")
    other.root.mkdir()
    committed(run, 3)
    committed(other, 3)
    name = "step-00000003/manifest.json"
    assert (run.checkpoints / name).read_bytes() == (other.checkpoints / name).read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30)
@given(st.data())
def test_any_flipped_bit_is_refused_by_name(run: RunDirectory, data: st.DataObject) -> None:
    committed(run, 1)
    folder = run.checkpoints / "step-00000001"
    name = data.draw(st.sampled_from([*FILES, "manifest.json"]))
    content = bytearray((folder / name).read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"step-00000001: {name} has changed"):
        checkpoint.verify(run, 1)


def test_torn_missing_and_unknown_files(run: RunDirectory) -> None:
    committed(run, 1)
    folder = run.checkpoints / "step-00000001"
    (folder / "engine/state/model.pt").write_bytes(b"weights" * 49)
    with pytest.raises(CheckpointError, match=r"engine/state/model\.pt has changed") as error:
        checkpoint.verify(run, 1)
    assert str(error.value.found).startswith("343 bytes")
    (folder / "engine/state/model.pt").rename(folder / "other.pt")
    with pytest.raises(CheckpointError, match="lacks files that its manifest lists") as error:
        checkpoint.verify(run, 1)
    assert error.value.found == "missing ['engine/state/model.pt'], unknown ['other.pt']"


def test_newest_that_verifies_is_used(run: RunDirectory) -> None:
    committed(run, 1, 2, 3)
    assert checkpoint.newest_valid(run) == (3, [])
    (run.checkpoints / "step-00000003/state.json").write_bytes(b"{}")
    step, refused = checkpoint.newest_valid(run)
    assert (step, [bad for bad, _ in refused]) == (2, [3])
    checkpoint.refuse(run, 3)
    assert checkpoint.committed(run) == [1, 2]
    committed(run, 3)
    assert checkpoint.newest_valid(run) == (3, [])


def test_nothing_to_trust_is_an_error_and_nothing_at_all_is_a_start(run: RunDirectory) -> None:
    assert checkpoint.newest_valid(run) == (None, [])
    committed(run, 1)
    (run.checkpoints / "step-00000001/state.json").unlink()
    with pytest.raises(CheckpointError, match="can be trusted"):
        checkpoint.newest_valid(run)


class Killed(BaseException):
    """Stands for SIGKILL: no handler of ours may catch it and tidy up."""


@pytest.mark.parametrize("call", ["manifest", "rename", "record"])
def test_interrupted_commit_leaves_the_last_one(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    committed(run, 1)
    staged(run, 2)

    def kill(*args: Any, **options: Any) -> None:
        raise Killed

    if call == "rename":
        monkeypatch.setattr(Path, "rename", kill)
    else:
        real, due = checkpoint.write_bytes, {"manifest": "manifest.json", "record": "step-00000002.json"}[call]
        monkeypatch.setattr(
            checkpoint, "write_bytes", lambda path, data: kill() if path.name == due else real(path, data)
        )
    with pytest.raises(Killed):
        checkpoint.commit(run, 2)
    monkeypatch.undo()
    assert checkpoint.newest_valid(run) == (1, [])
    checkpoint.clean(run)
    assert not run.staging.exists()
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-00000001", "step-00000001.json"]
    committed(run, 2)
    assert checkpoint.newest_valid(run) == (2, [])


def test_full_disk_is_named_and_nothing_becomes_visible(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(run, 1)
    staged(run, 2)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError):
        checkpoint.commit(run, 2)
    monkeypatch.undo()
    assert checkpoint.committed(run) == [1]
    checkpoint.verify(run, 1)


def test_no_room_is_seen_before_writing(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(run, 1)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(DiskFullError, match="no room for another checkpoint"):
        checkpoint.stage(run, 2)
