"""Rollbacks in hard cases: before the first checkpoint, past a corrupted one, killed in the middle, too often."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import TrainingError
from plinth.launch.parameters import Launch
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.guard import GuardParameters
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import History, timeline
from tests.ranks import RankFailed, run_ranks

pytestmark = pytest.mark.slow

Make = Callable[..., RunConfig]


def broken_at(config: RunConfig, bad: dict[int, int], dies_at: int = 0) -> str:
    """Train, with a parameter that turns NaN before each step of `bad`, the given number of times; return the final
    parameters.

    With `dies_at`, the process is gone after the rollback of that step is on the timeline and before it is done.
    """
    import torch

    from plinth.training import loop, trainer
    from plinth.training.checkpoint import snapshot
    from plinth.training.engine import engine

    launch, roll_back = trainer.Trainer.launch, loop.TrainingRun.roll_back

    def breaking(self: Any, stream: Any, step: int, *more: int) -> Any:
        if bad.get(step, 0) > 0:
            bad[step] -= 1
            kept[-1].saver.wait_until_copied()
            with torch.no_grad():
                self.engine.module.norm.weight.fill_(torch.nan)
        return launch(self, stream, step, *more)

    def dying(self: Any, made: Any) -> int:
        if made.step == dies_at:
            raise KeyboardInterrupt
        return roll_back(self, made)

    trainer.Trainer.launch, loop.TrainingRun.roll_back = breaking, dying
    kept: list[Any] = []
    opened = loop.TrainingRun.__init__
    loop.TrainingRun.__init__ = lambda self, *given: (opened(self, *given), kept.append(self))[0]
    rank = engine.join(config)
    torch.set_num_threads(1)
    assert loop.train(config, rank, 0)
    digest: str = snapshot.digests(kept[-1].trainer.engine)["parameters_sha256"]
    engine.leave()
    return digest


def run(make: Make, root: Path, bad: dict[int, int], **changes: Any) -> tuple[RunConfig, str, History]:
    config = make(
        workspace=root,
        launch=Launch(ranks=1),
        parallel=Parallel(zero_stage=1),
        checkpoints=Checkpoints(every_steps=4, keep_last=4, audit_steps=4),
        **changes,
    )
    (digest,) = run_ranks(1, broken_at, config, bad)
    return config, digest, timeline(config.directory.events)


@pytest.mark.exhaustive
def test_back_to_the_beginning_and_to_a_checkpoint(make: Make, tmp_path: Path) -> None:
    """A run that is not finite at step 2 has nothing to load, at step 7 it has step 4; both steps are left out."""
    _, digest, story = run(make, tmp_path / "a", {2: 1, 7: 1})
    assert [event["step"] for event in story.of("rolled_back")] == [0, 4]
    assert [event["number"] for event in story.of("rolled_back")] == [1, 2]
    assert story.skipped == {2, 7}
    assert sorted(story.steps) == [step for step in range(1, 13) if step not in (2, 7)]
    assert story.diverged == []
    # Killed between the intervention and its rollback, and resumed in another process: the same end.
    config = make(workspace=tmp_path / "b", launch=Launch(ranks=1), checkpoints=Checkpoints(every_steps=4, keep_last=4))
    with pytest.raises(RankFailed):
        run_ranks(1, broken_at, config, {2: 1, 7: 1}, 7)
    assert len(timeline(config.directory.events).of("rolled_back")) == 1
    (again,) = run_ranks(1, broken_at, config, {})
    assert again == digest
    assert timeline(config.directory.events).skipped == {2, 7}


@pytest.mark.exhaustive
def test_a_checkpoint_that_has_learnt_from_the_window_is_refused(make: Make, tmp_path: Path) -> None:
    """A window that reaches back over a checkpoint spoils it: it is refused by name, and made again."""
    config, _, story = run(make, tmp_path, {9: 1}, guard=GuardParameters(skip_before=2))
    (made,) = story.of("rolled_back")
    assert made["step"] == 4
    assert story.skipped == {7, 8, 9}
    (refused,) = story.of("refused")
    assert refused["step"] == 8
    assert "trained on steps 7 to 9, which rollback 1 skips" in refused["reason"]
    assert checkpoint.committed(config.directory)[-2:] == [8, 12]
    checkpoint.verify(config.directory, 8)


def test_too_many_rollbacks_stop_the_run_with_the_last_checkpoint_intact(make: Make, tmp_path: Path) -> None:
    with pytest.raises(RankFailed) as failed:
        run(make, tmp_path, {6: 1, 10: 1}, guard=GuardParameters(max_rollbacks=1))
    error = failed.value.error
    assert isinstance(error, TrainingError)
    assert "the guard stopped the run at step 10: nonfinite" in str(error)
    assert "as often as allowed (1)" in str(error)
    directory = make(workspace=tmp_path).directory
    assert checkpoint.newest_valid(directory)[0] in (4, 8)  # the writer of 8 may outlive its rank


def test_without_the_guard_what_is_not_finite_ends_the_run(make: Make, tmp_path: Path) -> None:
    with pytest.raises(RankFailed) as failed:
        run(make, tmp_path, {6: 1}, guard=GuardParameters(enabled=False))
    assert isinstance(failed.value.error, TrainingError)
    assert "step 6 is not finite" in str(failed.value.error)
