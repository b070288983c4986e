"""Excess by document, source and bucket, worked out by hand; what a rollback does to the story of a run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from plinth.training.forensics import replay
from plinth.training.step_documents import StepDocument, rank_sources
from plinth.training.telemetry.timeline import Timeline, timeline


def seen(row: int, first: int, tokens: int, bucket: str = "web", source: str = "a.example") -> StepDocument:
    return StepDocument(9, row, first, tokens, f"{row}{first}", bucket, source, f"https://{source}/{row}", 0, 0)


def test_a_document_has_the_targets_that_are_its_tokens() -> None:
    """The last 4 of 5 tokens are targets; the first token of the row is not a target, that of the second document
    is."""
    losses = np.array([1.0, 2.0, np.nan, 4.0], np.float32)
    first, second = replay.scored(seen(0, 0, 2), losses), replay.scored(seen(0, 2, 3), losses)
    assert (first.losses.tolist(), first.start) == ([1.0], 0)
    assert (second.targets, second.loss, second.start) == (2, 3.0, 1)
    alone = replay.scored(seen(0, 0, 1), losses)
    assert alone.targets == 0
    assert math.isnan(alone.loss)


def test_excesses_add_up_to_that_of_the_batch() -> None:
    flat = np.full(4, 2.0, np.float32)
    usual = replay.typical([replay.scored(seen(0, 0, 5), flat), replay.scored(seen(1, 0, 5), flat + 1)])
    assert usual == {"": 2.5, "web": 2.5}
    documents = [
        replay.scored(seen(0, 0, 5), flat),
        replay.scored(seen(1, 0, 5, "dump", "b.example"), flat + 7),
    ]
    found = replay.rank(documents, usual, lambda one, first, last: f"{first}-{last}")
    assert found["loss"] == 5.5
    assert found["excess"] == pytest.approx(-0.5 * 0.5 + 6.5 * 0.5)  # `dump` is held against all
    assert [(row["bucket"], row["source"], row["excess"]) for row in found["sources"]] == [
        ("dump", "b.example", pytest.approx(3.25)),
        ("web", "a.example", pytest.approx(-0.25)),
    ]
    assert [row["excess"] for row in found["documents"]] == pytest.approx([3.25, -0.25])
    assert found["documents"][0]["spans"] == [{"first": 1, "tokens": 4, "loss": 9.0, "text": "1-5"}]


def test_worst_spans_do_not_overlap() -> None:
    losses = np.zeros(80, np.float32)
    losses[20:24], losses[60] = 8.0, 3.0
    spans = replay.worst_spans(replay.scored(seen(0, 0, 81), losses), None)
    assert [span["loss"] for span in spans] == [2.0, 0.1875]
    first, second = (range(span["first"], span["first"] + span["tokens"]) for span in spans)
    assert set(range(21, 25)) <= set(first)
    assert 61 in second
    assert not set(first) & set(second)


def test_sources_that_came_with_the_trouble_stand_out() -> None:
    before = [seen(0, 0, 90), seen(1, 0, 10, source="b.example")]
    inside = [seen(0, 0, 60), seen(1, 0, 40, source="b.example")]
    assert [(row["source"], row["share"], row["share_before"]) for row in rank_sources(inside, before)] == [
        ("b.example", 0.4, 0.1),
        ("a.example", 0.6, 0.9),
    ]


def test_what_is_typical_is_not_asked_of_spoilt_steps(tmp_path: Path) -> None:
    """The second step of a window is held against steps before the window, not against the first."""
    events = Timeline(tmp_path / "events.jsonl")
    for step in range(1, 13):
        events.append("step", step=step, loss=1.0, grad_norm=1.0, batch="b", vetoed=step == 8)
    for rule, action, window in (("loss_spike", "rollback", [10, 11]), ("throughput", "warn", [1, 12])):
        events.append("intervention", step=11, action=action, rule=rule, number=1, factor=1.0, window=window)
    events.append("skipped", step=6, rule="loss_spike", window=[6, 6])
    bad = replay.suspect_steps(timeline(events.path))
    assert bad == {6, 8, 10, 11}
    assert replay.baseline_steps(12, 4, bad) == [2, 4, 7, 9]
    assert replay.baseline_steps(11, 2, bad) == [4, 9]
    assert replay.baseline_steps(1000, 4) == [951, 967, 983, 999]
    assert replay.baseline_steps(1000, 1, range(900, 1000)) == [899]  # a long window reaches back further
    assert replay.baseline_steps(3, 2, {1, 2, 4}) == [5, 6]


def test_a_rollback_takes_steps_back_and_skipped_ones_stay_out(tmp_path: Path) -> None:
    events = Timeline(tmp_path / "events.jsonl")
    for step in range(1, 6):
        events.append("step", step=step, loss=float(step), grad_norm=1.0, batch="b")
    window = {"window": [4, 5], "factor": 1.0}
    events.append("intervention", step=5, action="rollback", rule="loss_spike", number=1, **window)
    for step, loss in ((3, 3.0), (6, 2.5)):
        events.append("step", step=step, loss=loss, grad_norm=1.0, batch="b", redone=step == 3)
        if step == 3:
            for left_out in (4, 5):
                events.append("skipped", step=left_out, rule="loss_spike", window=[4, 5])
    story = timeline(tmp_path / "events.jsonl")
    assert sorted(story.steps) == [1, 2, 3, 6]
    assert story.skipped == {4, 5}
    assert [event["step"] for event in story.undone] == [4, 5]
    assert (story.redone, story.diverged) == (1, [])
