"""A rank that works through a long phase is not taken for one that hangs, and one that hangs is."""

from __future__ import annotations

from pathlib import Path

import pytest

from plinth.training.supervise import rank_watch
from plinth.training.telemetry import timeline as pulse


class Clock:
    """The monotonic clock of a test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_what_works_changes_the_timeline_and_what_hangs_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of pieces of ten seconds each, then a piece that does not end."""
    clock, timeline = Clock(), tmp_path / "events.jsonl"
    timeline.write_text("")
    for module in (rank_watch, pulse):
        monkeypatch.setattr(module, "time", clock)
    beat, seen = pulse.Pulse(timeline), rank_watch.LastChange(timeline)
    for _ in range(360):
        clock.now += 10.0
        beat()
        assert seen.age_s() == 0.0
    clock.now += 301.0
    assert seen.age_s() == 301.0


def test_many_pieces_in_a_second_touch_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, touched = Clock(), list[Path]()
    monkeypatch.setattr(pulse, "time", clock)
    monkeypatch.setattr(pulse.os, "utime", touched.append)
    beat = pulse.Pulse(tmp_path / "events.jsonl")
    for _ in range(1000):
        clock.now += 0.0025
        beat()
    assert len(touched) == 3
    monkeypatch.undo()
    pulse.Pulse(tmp_path / "none")()  # there may be no timeline yet
