"""The timeline survives writers that die anywhere."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plinth.errors import DiskFullError, IntegrityError
from plinth.training.telemetry.timeline import History, Timeline, TimelineReader, put_before, read_events, timeline


def step(timeline: Timeline, number: int, loss: float) -> None:
    timeline.append("step", step=number, loss=loss, grad_norm=1.0, batch="b")


def test_sequence_rises_over_writers(tmp_path: Path) -> None:
    path = tmp_path / "run" / "events.jsonl"
    first, second = Timeline(path), Timeline(path)
    for writer in (first, second, second, first, Timeline(path)):
        writer.append("x")
    assert [event["seq"] for event in read_events(path)] == [1, 2, 3, 4, 5]
    assert [event["seq"] for event in read_events(path, after_seq=3)] == [4, 5]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(st.floats(0, 1))
def test_cut_anywhere_the_next_writer_goes_on(tmp_path: Path, share: float) -> None:
    path = tmp_path / "events.jsonl"
    path.unlink(missing_ok=True)
    writer = Timeline(path)
    for number in range(1, 5):
        writer.append("x", text="é" * number)
    whole = path.read_bytes()
    cut = round(share * len(whole))
    path.write_bytes(whole[:cut])
    survivors = whole[:cut].count(b"\n")
    assert len(list(read_events(path))) == survivors
    for later in (writer, Timeline(path)):
        later.append("after")
    assert [event["seq"] for event in read_events(path)] == list(range(1, survivors + 3))
    assert path.read_bytes().startswith(b"".join(whole.splitlines(keepends=True)[:survivors]))


def test_lines_longer_than_the_window(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    Timeline(path).append("x", text="a" * 200_000)
    Timeline(path).append("y", text="b" * 200_000)
    assert [event["seq"] for event in read_events(path)] == [1, 2]


def _append_many(path: Path) -> None:
    writer = Timeline(path)
    for _ in range(200):
        writer.append("x", pid=os.getpid())


def test_two_processes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_many, args=(path,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    events = list(read_events(path))
    assert [event["seq"] for event in events] == list(range(1, 601))
    assert len({event["pid"] for event in events}) == 3


def test_steps_done_again_count_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writer = Timeline(path)
    for number, loss in ((1, 3.0), (2, 2.0), (3, 1.0)):
        step(writer, number, loss)
    writer.append("resumed", step=1)
    step(writer, 2, 2.0)
    step(writer, 3, 1.5)
    story = timeline(path)
    assert {number: event["loss"] for number, event in story.steps.items()} == {1: 3.0, 2: 2.0, 3: 1.5}
    assert (story.redone, story.diverged) == (2, [3])
    assert [event["step"] for event in story.of("resumed")] == [1]


def test_reader_gives_each_event_once_and_waits_for_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = TimelineReader(path)
    assert reader.poll() == []
    Timeline(path).append("a")
    with path.open("ab") as stream:
        stream.write(b'{"seq": 2, "event"')
    assert [event["event"] for event in reader.poll()] == ["a"]
    Timeline(path).append("b")
    assert [event["event"] for event in reader.poll()] == ["b"]
    assert reader.poll() == []


def test_infinity_is_written_as_text(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    Timeline(path).append("step", loss=math.nan, grad_norm=math.inf)
    (event,) = read_events(path)
    assert (event["loss"], event["grad_norm"]) == ("nan", "inf")


def test_damage_within_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"seq": 1, "event": "a"}\nrubbish\n' + json.dumps({"seq": 2, "event": "b"}).encode() + b"\n")
    with pytest.raises(IntegrityError, match="line 2 is not an event"):
        list(read_events(path))


def test_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    writer = Timeline(path)
    writer.append("a")
    before, real = path.read_bytes(), os.pwrite

    def half(fd: int, data: bytes, offset: int) -> int:
        if offset > len(before):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[: len(data) // 2], offset)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(DiskFullError):
        writer.append("b")
    assert path.read_bytes() == before


def test_steps_repeated_by_another_layout_are_compared_by_what_they_saw() -> None:
    def told(batch: str, *, reshaped: bool) -> list[int]:
        story = History()
        for event in (
            {"event": "step", "step": 1, "loss": 2.0, "grad_norm": 1.0, "batch": "a"},
            *([{"event": "reshaped", "step": 0}] if reshaped else []),
            {"event": "step", "step": 1, "loss": 2.0000001, "grad_norm": 1.0, "batch": batch},
            {"event": "step", "step": 2, "loss": 1.5, "grad_norm": 1.0, "batch": "b"},
            {"event": "step", "step": 2, "loss": 1.4, "grad_norm": 1.0, "batch": "b"},  # by the same layout
        ):
            story.add(event)
        return story.diverged

    assert told("a", reshaped=True) == [2]
    assert told("a", reshaped=False) == [1, 2]
    assert told("other", reshaped=True) == [1, 2]


def test_an_earlier_timeline_from_elsewhere_comes_first(tmp_path: Path) -> None:
    """Followers of the timeline receive all of it; the writer continues."""
    there, here = Timeline(tmp_path / "there.jsonl"), Timeline(tmp_path / "here.jsonl")
    step(there, 1, 3.0)
    step(there, 2, 2.0)
    here.append("submitted")
    reader = TimelineReader(here.path)
    assert [event["event"] for event in reader.poll()] == ["submitted"]
    put_before(here.path, there.path.read_bytes() + b'{"torn')
    here.append("resumed", step=2)
    told = reader.poll()
    assert [event["event"] for event in told] == ["step", "step", "submitted", "resumed"]
    assert [event["seq"] for event in told] == [1, 2, 3, 4]
    assert told == list(read_events(here.path))
    put_before(tmp_path / "new.jsonl", there.path.read_bytes())
    assert (tmp_path / "new.jsonl").read_bytes() == there.path.read_bytes()
