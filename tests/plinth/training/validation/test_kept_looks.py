"""Probe evaluations that a checkpoint keeps: each read from the timeline once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import LineageError
from plinth.evaluation.probes.noise import LAST
from plinth.training.validation.probe_curves import curves, kept, read


def event(step: int, score: float, items: str = "set", **more: Any) -> dict[str, Any]:
    scores = {"maths": {"score": score, "control": 3.0}}
    return {"event": "evaluated", "step": step, "tokens": step * 10, "probes": scores, "probe_set": items, **more}


def timeline(folder: Path, *events: dict[str, Any] | str) -> Path:
    path = folder / "events.jsonl"
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in events))
    return path


def scores(data: bytes | None) -> list[float]:
    assert data is not None
    return [look.score for look in read(data)["maths"]]


def test_the_newest_looks_until_the_step_are_kept(tmp_path: Path) -> None:
    events = timeline(tmp_path, {"event": "step", "step": 1}, *(event(step, 1.0 + step) for step in range(1, 9)))
    data = kept(None, 0, events, 7)
    assert scores(data) == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0][-LAST:]
    assert data is not None
    assert read(data)["maths"] == curves(event(step, 1.0 + step) for step in range(1, 8))["maths"][-LAST:]
    assert kept(None, 0, tmp_path / "none", 7) is None
    assert kept(None, 0, timeline(tmp_path, {"event": "evaluated", "step": 1, "slices": {}}), 7) is None


def test_what_an_earlier_checkpoint_keeps_is_not_read_again(tmp_path: Path) -> None:
    before = kept(None, 0, timeline(tmp_path, event(1, 5.0), event(2, 4.0)), 2)
    later = timeline(tmp_path, event(1, 0.1), event(2, 0.1), event(3, 3.0))
    assert scores(kept(before, 2, later, 3)) == [5.0, 4.0, 3.0]
    assert scores(kept(before, 2, tmp_path / "none", 3)) == [5.0, 4.0]


def test_steps_that_came_again_and_other_items(tmp_path: Path) -> None:
    before = kept(None, 0, timeline(tmp_path, event(1, 5.0)), 1)
    again = timeline(tmp_path, event(2, 4.0), event(3, 3.5), event(2, 4.5))  # rolled back to step 1
    assert scores(kept(before, 1, again, 4)) == [5.0, 4.5]
    assert scores(kept(before, 1, timeline(tmp_path, event(2, 4.0, items="others")), 2)) == [4.0]


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    events = timeline(tmp_path, '{"event": "evaluated", "st', '{"event": "step", "why": "evaluated"}', event(1, 5.0))
    assert scores(kept(None, 0, events, 1)) == [5.0]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"looks": [1]}', b'{"looks": {"a": [[1]]}}'])
def test_a_file_of_something_else_is_named(data: bytes) -> None:
    with pytest.raises(LineageError, match="has no valid probe scores"):
        read(data)
