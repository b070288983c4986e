"""Checkpoints to keep: the last, every n, the best, the audited, the final, and those not yet uploaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from plinth.training.checkpoint import checkpoint, selection
from plinth.training.directory import RunDirectory
from plinth.training.parameters.run import Checkpoints

#: Smoothed loss that each step is saved with; step 3 was the best before it went up again.
LOSSES = {1: 5.0, 2: 4.0, 3: 2.0, 4: 3.0, 5: 3.5, 6: 2.5}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    for step, loss in LOSSES.items():
        folder = checkpoint.stage(run, step)
        (folder / "state.json").write_text(json.dumps({"step": step, "monitor": {"loss_ema": loss}}))
        checkpoint.commit(run, step)
    return run


@pytest.mark.parametrize(
    ("policy", "always", "staying"),
    [
        (Checkpoints(keep_last=2), set(), [5, 6]),
        (Checkpoints(keep_last=1), {2}, [2, 6]),
        (Checkpoints(keep_last=1, keep_every=2), set(), [2, 4, 6]),
        (Checkpoints(keep_last=1, keep_best=1), set(), [3, 6]),
        (Checkpoints(keep_last=1, keep_best=2), set(), [3, 6]),
        (Checkpoints(keep_last=1, keep_best=3), set(), [3, 4, 6]),
        (Checkpoints(keep_last=9), {99}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_policies(run: RunDirectory, policy: Checkpoints, always: set[int], staying: list[int]) -> None:
    removed = selection.retain(run, policy, always)
    assert checkpoint.committed(run) == staying
    assert removed == [step for step in LOSSES if step not in staying]
    assert selection.retain(run, policy, always) == []
    folders = sorted(path.name for path in run.checkpoints.iterdir() if path.is_dir())
    assert folders == [checkpoint.name(step) for step in staying]


def test_what_is_not_uploaded_stays_unless_the_disk_is_short(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Checkpoints(keep_last=1, upload="s3://bucket/runs")
    assert selection.retain(run, policy, set()) == []
    for step in (1, 2):
        shutil.copy(checkpoint.record_path(run, step), checkpoint.uploaded_path(run, step))
    assert selection.retain(run, policy, set()) == [1, 2]
    assert checkpoint.committed(run) == [3, 4, 5, 6]

    free = iter([0, 0, 1000, 1000])  # just enough is enough
    monkeypatch.setattr(selection.shutil, "disk_usage", lambda path: type("Usage", (), {"free": next(free)}))
    assert selection.free_space(run, policy, {4}, needed=1000) == [3]
    assert checkpoint.committed(run) == [4, 5, 6]


def test_a_note_of_an_earlier_checkpoint_of_the_same_step_does_not_count(run: RunDirectory) -> None:
    shutil.copy(checkpoint.record_path(run, 6), checkpoint.uploaded_path(run, 6))
    assert checkpoint.is_uploaded(run, 6)
    folder = checkpoint.stage(run, 6)
    (folder / "state.json").write_text("{}")  # trained again after a rollback, with another outcome
    checkpoint.commit(run, 6)
    assert not checkpoint.is_uploaded(run, 6)
    checkpoint.verify(run, 6)


def test_held_out_slices_decide_over_the_training_loss(run: RunDirectory) -> None:
    for step, web, code in ((7, 1.0, 2.0), (8, 1.2, 1.4), (9, 1.5, 1.5)):
        monitor = {"loss_ema": 0.1 * step, "slices": {"web": web, "code": code}}
        (checkpoint.stage(run, step) / "state.json").write_text(json.dumps({"step": step, "monitor": monitor}))
        checkpoint.commit(run, step)
    assert selection.scores(run, [6, 7, 8, 9]) == pytest.approx({7: 1.5, 8: 1.3, 9: 1.5})
    selection.retain(run, Checkpoints(keep_last=1, keep_best=1), set())
    assert checkpoint.committed(run) == [8, 9]
