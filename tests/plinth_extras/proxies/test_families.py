"""Items: their right answers pass, their broken ones do not, and checks hold what they say."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from plinth_extras.proxies.job import FAMILIES, TOOLS, passes, proxies, summary

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", [0, 7])
def test_right_answers_pass_and_broken_ones_do_not(seed: int) -> None:
    made = proxies(120, seed)
    assert Counter(one.family for one in made) == dict.fromkeys(FAMILIES, 120)
    for one in made:
        assert passes(one.check, one.asked, one.answer), one
        assert passes(one.check, one.asked, f"{one.answer}\n\nand more"), one
        assert not passes(one.check, one.asked, one.broken), one
        assert not passes(one.check, one.asked, ""), one
        assert len(one.broken.encode()) == len(one.answer.encode())
        assert one.prompt.count("\n\n") == 2
        question = one.prompt.rsplit("\n\n", 1)[1]
        assert question not in one.prompt[: -len(question)]  # else an example would have the answer


def test_an_item_depends_on_seed_family_and_number_only() -> None:
    few, many = proxies(5, 0), proxies(50, 0)
    assert [one for one in many if one.number < 5] == few
    assert {one.prompt for one in proxies(5, 1)}.isdisjoint(one.prompt for one in few)
    dates = [one for one in few if one.family == "format"][1]  # a change of an item is another version of the asset
    assert dates.prompt == (
        "Date: 7 June 1985\nISO: 1985-06-07\n\nDate: 8 April 1950\nISO: 1950-04-08\n\nDate: 18 July 1902\nISO:"
    )
    assert (dates.answer, dates.broken) == (" 1902-07-18", " 19020-7-18")


def test_words_to_copy_are_in_the_prompt_and_nowhere_else() -> None:
    for one in proxies(60, 0):
        if one.family == "copying":
            question = one.prompt.rsplit("\n\n", 1)[1]
            assert question.count(one.answer.strip()) == 1
            assert re.fullmatch(r" ([bdfgklmnprstvz][aeiou]){3}", one.answer)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "Ada", "age": 3}', True),
        ('\n {"age": 3, "name": ""} \n', True),
        ('{"name": "Ada", "age": 3}\n\n{"name"', True),
        ('{"name": "Ada", "age": 3.5}', False),
        ('{"name": "Ada"}', False),
        ('{"name": "Ada", "age": 3, "more": 1}', False),
        ('{"name": "Ada", "age": NaN}', False),
        ('{"name": "Ada", "age": 3} is the answer', False),
        ("{'name': 'Ada', 'age': 3}", False),
        ("[" * 100_000, False),
        ("", False),
    ],
)  # fmt: skip
def test_json_to_a_schema(text: str, expected: bool) -> None:
    assert passes("valid_json", {"schema": SCHEMA}, text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<call>{"name": "weather", "arguments": {"city": "Oslo"}}</call>', True),
        ('<call> {"arguments": {"minutes": 5}, "name": "timer"} </call>', True),
        ('<call>{"name": "weather", "arguments": {"minutes": 5}}</call>', False),
        ('<call>{"name": "alarm", "arguments": {}}</call>', False),
        ('<call>{"name": "timer", "arguments": {"minutes": 0}}</call>', False),
        ('<call>{"name": ["timer"], "arguments": {"minutes": 1}}</call>', False),
        ('<call>{"name": "timer", "arguments": "{}"}</call>', False),
        ('{"name": "weather", "arguments": {"city": "Oslo"}}', False),
        ('<call>{"name": "weather"', False),
        ("<call>[]</call>", False),
    ],
)
def test_the_shape_of_a_tool_call(text: str, expected: bool) -> None:
    assert passes("tool_call", {"tools": TOOLS}, text) is expected


def test_schemas_are_valid() -> None:
    from jsonschema import Draft202012Validator

    for one in proxies(4, 0):
        for schema in (one.asked.get("schema"), *one.asked.get("tools", {}).values()):
            if schema is not None:
                Draft202012Validator.check_schema(schema)
    json.dumps([dict(one.asked) for one in proxies(4, 0)])


def test_estimates_of_answers_that_are_known() -> None:
    rows = [
        {"family": family, "passed": number % 4 == 0, "bytes": 10, "bits": 20.0, "broken_bits": 20.0 + number - 5}
        for family in ("a", "b")
        for number in range(20)
    ]
    made = summary(rows, 0)
    assert made["families"]["a"] == made["families"]["b"]
    assert made["overall"]["passed"]["value"] == 0.25
    assert made["overall"]["prefers"]["value"] == 14 / 20
    assert (made["overall"]["margin"]["value"], made["overall"]["bits_per_byte"]["value"]) == (4.5, 2.0)
    assert (made["families"]["a"]["passed"]["n"], made["overall"]["passed"]["n"]) == (20, 40)
