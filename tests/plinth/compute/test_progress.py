"""Progress: work that does not advance is shown all the same, short work is not, and nothing is shown after its end."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Iterator

import pytest

from plinth.compute import progress
from plinth.compute.progress import ProgressBars, ProgressLines, metered


class Written(io.StringIO):
    """A stream whose reader waits for lines."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Condition()

    def write(self, text: str) -> int:
        with self.written:
            self.written.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> bool:
        with self.written:
            return self.written.wait_for(lambda: text in self.getvalue(), timeout=300)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
    monkeypatch.setattr(progress, "TICK_S", 0.001)
    before = set(threading.enumerate())
    yield Written()
    for thread in set(threading.enumerate()) - before:  # rich ends its own and does not wait for it
        thread.join(60)
    assert set(threading.enumerate()) <= before


def test_work_that_does_not_advance_is_shown_with_what_is_left(stream: Written) -> None:
    with ProgressLines(stream).meter("blobs", 7) as meter:
        meter.advance(3, "web")
        assert stream.wait_for("blobs: 3/7 web (0 s)\n")


def test_work_without_a_total_is_shown_without_one_and_has_no_last_line(stream: Written) -> None:
    with ProgressLines(stream).meter("plinth verify", 0):
        assert stream.wait_for("plinth verify: (0 s)\n")
        shown = stream.getvalue()
    assert set(stream.getvalue().splitlines()) == set(shown.splitlines())


def test_a_command_has_been_silent_since_its_process_started(
    stream: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 3600.0)
    monkeypatch.setattr(progress.time, "process_time", lambda: 7200.0)
    with ProgressLines(stream, patience_s=0.001).meter("plinth verify", 0):
        assert stream.wait_for("plinth verify: (0 s)\n")


def test_the_innermost_work_alone_is_shown_and_then_the_outer_again(stream: Written) -> None:
    lines = ProgressLines(stream)
    with lines.meter("assets", 2):
        with lines.meter("documents", 5):
            assert stream.wait_for("documents: 0/5 (0 s)\n")
            seen = len(stream.getvalue())
            assert stream.wait_for("documents: 0/5 (0 s)\ndocuments: 0/5 (0 s)\n")
            assert "assets" not in stream.getvalue()[seen:]
        assert stream.wait_for("assets: 0/2 (0 s)\n")


@pytest.mark.parametrize("kind", [ProgressLines, ProgressBars])
def test_work_shorter_than_the_patience_shows_nothing(
    stream: Written, kind: type[ProgressLines] | type[ProgressBars]
) -> None:
    with kind(stream, patience_s=math.inf).meter("assets", 2) as meter:
        meter.advance()
    assert stream.getvalue() == ""


def test_a_bar_appears_when_the_patience_ends_and_never_after_the_work(
    stream: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    bars = ProgressBars(stream, patience_s=0.001)
    with bars.meter("assets", 2) as outer:
        assert stream.wait_for("assets")
        with bars.meter("documents", 5):  # drawn with the outer one, by the same console
            assert stream.wait_for("documents")
    shown = stream.getvalue()
    outer.tick(innermost=True)  # type: ignore[attr-defined]
    assert stream.getvalue() == shown


def test_failed_work_has_no_last_line(stream: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", math.inf)
    with pytest.raises(KeyError), ProgressLines(stream).meter("blobs", 2):
        raise KeyError
    assert stream.getvalue() == ""


def test_items_are_counted_as_they_are_worked_on(stream: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TICK_S", 300)
    assert list(metered(ProgressLines(stream), "blobs", "abc", 3)) == ["a", "b", "c"]
    assert stream.getvalue().splitlines() == ["blobs: 1/3", "blobs: 2/3", "blobs: 3/3", "blobs: 3/3 in 0.0 s"]


def test_a_count_has_its_unit(stream: Written) -> None:
    with ProgressLines(stream).meter("evaluation", 7, "tokens") as meter:
        meter.advance(3)
        assert stream.wait_for("evaluation: 3/7 tokens\n")
