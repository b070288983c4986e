"""Which checkpoint a run goes on from, where rollbacks left windows out; on tiny files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.selection import select_checkpoint
from plinth.training.directory import RunDirectory
from plinth.training.guard.rules import Intervention
from plinth.training.telemetry.timeline import Timeline


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    return run


def commit(run: RunDirectory, step: int, known: tuple[int, ...] = ()) -> None:
    """A checkpoint whose state knows of these rollbacks."""
    rollbacks = [{"number": number} for number in known]
    folder = checkpoint.stage(run, step)
    (folder / "state.json").write_text(json.dumps({"step": step, "monitor": {"guard": {"rollbacks": rollbacks}}}))
    checkpoint.commit(run, step)


def intervention(action: Any, first: int, last: int) -> dict[str, Any]:
    made = Intervention(step=last, rule="loss_spike", action=action, value=9.0, threshold=3.0, first=first, last=last)
    return made.event()


@pytest.mark.parametrize(
    ("action", "first", "known", "chosen"),
    [
        ("rollback", 7, (), 6),  # saved before the window
        ("rollback", 6, (), 3),  # the window begins with the step that was saved
        ("rollback", 5, (), 3),
        ("rollback", 5, (1,), 6),  # saved after the rollback, which it knows
        ("skip", 5, (), 6),  # only rollbacks leave windows out
    ],
)
def test_a_checkpoint_that_learnt_from_a_window_left_out_is_refused(
    run: RunDirectory, action: str, first: int, known: tuple[int, ...], chosen: int
) -> None:
    commit(run, 3)
    commit(run, 6, known)
    events = Timeline(run.events)
    events.append("intervention", **intervention(action, first, 8), durable=True)
    config: Any = SimpleNamespace(directory=run)
    found = select_checkpoint(config, events)
    assert not isinstance(found, Exception)
    assert (found[0], len(found[1])) == (chosen, int(action == "rollback"))
