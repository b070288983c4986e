"""A user's JSONL: right lines become items, wrong ones counted rejects with a line and a reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.errors import PlinthError, RejectRateError, SourceError
from plinth.evaluation.parameters import Probes, UserProbe
from plinth.evaluation.probes import probe_sets

LINE = {"prompt": "The capital of Wales is", "gold": "Cardiff", "wrong": ["Swansea", "Newport"], "id": "wales"}


def jsonl(*rows: Any) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


def lines(*rows: Any, **given_: Any) -> probe_sets.Read:
    return probe_sets.read_lines("mine", UserProbe(path="mine.jsonl", **given_), jsonl(*rows))


def test_a_line_is_an_item() -> None:
    (one,) = lines(LINE, family="languages").items
    assert (one.item, one.probe, one.family, one.template) == ("wales", "mine", "languages", "wales")
    assert (one.prompt, one.gold, one.wrong) == ("The capital of Wales is", " Cardiff", (" Swansea", " Newport"))
    assert sorted(one.control.split()) == sorted(one.prompt.split())
    assert one.control != one.prompt


@pytest.mark.parametrize(
    ("prompt", "gold", "expected"),
    [
        ("It is ", "so", ("It is", " so")),
        ("It is\n\n", " so", ("It is", "\n\nso")),
        ("It is", " so", ("It is", " so")),
        ("print (x", ")", ("print (x", ")")),
        ("f (a).", "b", ("f (a).", " b")),
        ("今日 は", "晴れ", ("今日 は", " 晴れ")),
    ],
)
def test_white_space_belongs_to_the_answer(prompt: str, gold: str, expected: tuple[str, str]) -> None:
    (one,) = lines({"prompt": prompt, "gold": gold}).items
    assert (one.prompt, one.gold) == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{broken", "Expecting property name"),
        ("[1]", "found a list"),
        ({"prompt": "a b"}, "`gold`"),
        ({"prompt": " ", "gold": "x"}, "`prompt`"),
        ({"prompt": 3, "gold": "x"}, "`prompt`"),
        ({**LINE, "wrongs": []}, "unknown field 'wrongs'"),
        ({**LINE, "wrong": "Swansea"}, "list of non-empty texts"),
        ({**LINE, "wrong": ["Cardiff"]}, "occurs twice"),
        ({**LINE, "wrong": [""]}, "list of non-empty texts"),
        ({"prompt": "Why?", "gold": "So."}, "too short to be shuffled"),
        ({"prompt": "a b " * 60_000, "gold": "x"}, "at most 100000"),
        ('{"prompt": "a b \\ud800", "gold": "x"}', "surrogates"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_what_is_no_item_is_a_reject_with_its_line(row: Any, reason: str) -> None:
    found = lines(LINE, row)
    assert [one.item for one in found.items] == ["wales"]
    (bad,) = found.rejects
    assert bad.line == 2
    assert reason in bad.reason


def test_ids_are_unique() -> None:
    found = lines(LINE, LINE)
    assert found.rejects == [probe_sets.BadLine(2, "another line has the id 'wales'")]


def rows(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"number {i} is", "gold": f"n{i}"} for i in range(count)]


def test_examples_stand_before_every_prompt_and_are_not_scored() -> None:
    given_ = UserProbe(path="mine.jsonl", examples=2)
    found = probe_sets.read("mine", given_, jsonl(*rows(5)))
    assert [one.prompt for one in found.items] == ["number 2 is", "number 3 is", "number 4 is"]
    assert {one.examples for one in found.items} == {"number 0 is n0\n\nnumber 1 is n1\n\n"}
    assert not any("number 0" in one.text for one in found.items)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_items_than_examples_is_a_named_error(count: int) -> None:
    with pytest.raises(SourceError, match="probe mine has too few items"):
        probe_sets.read("mine", UserProbe(path="mine.jsonl", examples=2), jsonl(*rows(count)))


def test_rejects_are_bounded() -> None:
    given_ = UserProbe(path="mine.jsonl")
    assert len(probe_sets.read("mine", given_, jsonl(*rows(99), "{")).rejects) == 1
    with pytest.raises(RejectRateError, match="2 of 100 lines") as error:
        probe_sets.read("mine", given_, jsonl(*rows(98), "{", "[]"))
    assert "line 99" in str(error.value)


@given(st.binary(max_size=300))
def test_no_content_gets_past_without_a_name(data: bytes) -> None:
    with pytest.raises(PlinthError, match="probe mine"):
        probe_sets.read("mine", UserProbe(path="mine.jsonl"), data)


def test_a_name_of_a_built_in_probe_is_taken() -> None:
    with pytest.raises(ValueError, match="'code' is a built-in or installed probe"):
        Probes(sets={"code": UserProbe(path="x")})
    assert Probes(families=("maths",), sets={"b": UserProbe(path="x"), "a": UserProbe(path="y")}).names == (
        "maths",
        "a",
        "b",
    )
