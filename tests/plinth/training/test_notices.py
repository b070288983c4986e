from __future__ import annotations

from pathlib import Path

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.preparation import notices
from plinth.training.telemetry.timeline import Timeline
from tests.plinth.training.conftest import tiny


def test_text_that_fills_no_step_and_runs_that_are_not_continued_are_named(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path).ensure())
    old = tiny(tmp_path, run_id="tiny-old")
    batch = old.global_batch_sequences
    assert notices(ctx, old) == []
    configuration.write(old)
    Timeline(old.directory.events).append("submitted", launcher="local")
    new = tiny(tmp_path, run_id="tiny-new", sequences=old.total_steps * batch + batch - 1)
    assert notices(ctx, new) == [
        f"{batch - 1} of {new.sequences} sequences are not used, because they do not fill a step of {batch}",
        f"run tiny-new starts from new weights and does not continue tiny-old ({old.total_steps} steps); "
        "use `training.changes` to amend a run, or `training.initial` to start from its weights",
    ]
    Timeline(new.directory.events).append("submitted", launcher="local")
    assert len(notices(ctx, new)) == 1  # a run that has begun goes on
