"""Lines that cannot be an item: which are, which are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.peers import Peer

harness = Peer("plinth.evaluation.tasks.harness")  # imports lm_eval

GOOD = [json.dumps({"question": f"q{i}", "choices": ["a", "b"], "answer": i % 2}).encode() for i in range(9)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (GOOD[0][:20], "JSONDecodeError"),
        (b"\xff\xfe broken", "UnicodeDecodeError"),
        (b'["question", "answer"]', "list of string, not an object"),
        (b"null", "null, not an object"),
        (b'{"question": "q", "choices": ["a", "b"]}', "field 'answer' is absent, elsewhere number"),
        (b'{"question": "q", "choices": ["a", "b"], "answer": "1"}', "field 'answer' is string, elsewhere number"),
        (b'{"question": "q", "choices": "a b", "answer": 1}', "field 'choices' is string, elsewhere list of string"),
        (b'{"question": "q", "choices": [1, 2], "answer": 1}', "field 'choices' is list of number"),
        (b"[" * 100_000, "RecursionError"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", [0, 4, 9])
def test_one_damaged_line_is_found_wherever_it_is(line: bytes, reason: str, at: int) -> None:
    found = harness.damaged([*GOOD[:at], line, *GOOD[at:]])
    assert set(found) == {at + 1}
    assert reason in found[at + 1]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   \r",
        b'{"question": null, "choices": [], "answer": 1.5}',
        b'{"question": "q", "choices": ["a", null], "answer": 0, "note": "one more field"}',
    ],
)
def test_what_is_merely_unusual_is_kept(line: bytes) -> None:
    assert harness.damaged([*GOOD, line]) == {}


@given(st.lists(st.sampled_from([*GOOD, b"{", b"3", b"\xff"]), max_size=30))
def test_what_is_left_has_no_damage(lines: list[bytes]) -> None:
    found = harness.damaged(lines)
    assert harness.damaged([line for number, line in enumerate(lines, 1) if number not in found]) == {}
    assert {number for number, line in enumerate(lines, 1) if line not in GOOD} == set(found)


def test_files_are_rewritten_without_their_damage_and_others_left(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    spoilt, whole, other = tmp_path / "data" / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.json"
    spoilt.write_bytes(b"\n".join([*GOOD[:2], b"{", *GOOD[2:]]) + b"\n")
    whole.write_bytes(b"\n".join(GOOD) + b"\n")
    other.write_bytes(b"{")
    before = whole.stat().st_mtime_ns
    (found,) = harness.set_aside(tmp_path)
    assert (found.file, found.line) == ("data/a.jsonl", 3)
    assert spoilt.read_bytes() == whole.read_bytes()
    assert (whole.stat().st_mtime_ns, other.read_bytes()) == (before, b"{")
