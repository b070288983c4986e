"""Items of the five families, each a pure function of seed, family and number, and the checks of their answers.

A prompt has two solved examples and another question of the same kind. The broken answer is the right one with two
neighboring characters exchanged, or the case of one changed, so that it no longer passes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

TOOL_CALL = re.compile(r"<call>(.*)</call>", re.DOTALL)

#: An answer ends at the first empty line.
END = "\n\n"

NAMES = ("Ada", "Ben", "Cem", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Kai", "Lea")
CITIES = ("Oslo", "Lima", "Cairo", "Accra", "Perth", "Quito", "Turin", "Hanoi", "Leeds", "Kyoto")
THINGS = ("apple", "stone", "river", "lamp", "bread", "cloud", "horse", "spoon", "violin", "garden", "ticket", "anchor")
MONTHS = ("January", "March", "April", "June", "July", "August", "October", "November")
MONTH_NUMBER = {"January": 1, "March": 3, "April": 4, "June": 6, "July": 7, "August": 8, "October": 10, "November": 11}
LETTERS = "bdfgklmnprstvz"
VOWELS = "aeiou"


@dataclass(frozen=True)
class Proxy:
    """An item: what is asked, the right and the broken answer, and the check with what it needs."""

    family: str
    number: int
    prompt: str
    answer: str
    broken: str
    check: str
    asked: Mapping[str, Any]


@dataclass(frozen=True)
class _Question:
    """A question with its right answer; examples are questions too."""

    text: str
    answer: str
    check: str
    asked: Mapping[str, Any]

    @property
    def continuation(self) -> str:
        """The answer as it follows the question: on a line of its own, or after a space."""
        return self.answer if self.answer.startswith("\n") else f" {self.answer}"


Asks = Callable[[Random], _Question]


def proxies(items: int, seed: int) -> list[Proxy]:
    """`items` of each family, families by name."""
    return [_proxy(family, number, seed) for family in sorted(FAMILIES) for number in range(items)]


def _proxy(family: str, number: int, seed: int) -> Proxy:
    draw = Random(f"{seed}/{family}/{number}")
    asks = FAMILIES[family][number % len(FAMILIES[family])]
    examples = (asks(draw), asks(draw))
    last = asks(draw)
    while last.text in [one.text for one in examples]:
        last = asks(draw)
    prompt = "".join(f"{one.text}{one.continuation}\n\n" for one in examples) + last.text
    return Proxy(family, number, prompt, last.continuation, _broken(draw, last), last.check, last.asked)


def _broken(draw: Random, question: _Question) -> str:
    """The first change, at places in an order that is drawn, after which the answer does not pass.

    Raises:
        ValueError: no change of this kind breaks the answer: an error in the question.
    """
    answer = question.continuation
    places = list(range(1, len(answer) - 1))
    draw.shuffle(places)
    exchanged = [answer[:at] + answer[at + 1] + answer[at] + answer[at + 2 :] for at in places]
    recased = [answer[:at] + answer[at].swapcase() + answer[at + 1 :] for at in places]
    for changed in (*exchanged, *recased):
        if not passes(question.check, question.asked, changed):
            return changed
    raise ValueError(f"nothing breaks {answer!r}")


def _record(draw: Random) -> _Question:
    value = {"name": draw.choice(NAMES), "age": draw.randrange(8, 99)}
    kinds = {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}}
    text = f"Record: {value['name']}, {value['age']} years\nJSON:"
    return _Question(text, json.dumps(value), "valid_json", {"schema": _object(kinds)})


def _order(draw: Random) -> _Question:
    things = draw.sample(THINGS, 2)
    kinds = {"city": {"enum": list(CITIES)}, "items": {"type": "array", "items": {"type": "string"}, "minItems": 2}}
    value = {"city": draw.choice(CITIES), "items": things}
    text = f"Order: {' and '.join(things)} to {value['city']}\nJSON:"
    return _Question(text, json.dumps(value), "valid_json", {"schema": _object(kinds)})


def _bullets(draw: Random) -> _Question:
    things = draw.sample(THINGS, 3)
    text = f"List: {', '.join(things)}\nBullets:"
    answer = "\n".join(f"- {thing}" for thing in things)
    return _Question(text, f"\n{answer}", "pattern", {"pattern": r"(- [a-z]+\n){2}- [a-z]+"})


def _date(draw: Random) -> _Question:
    day, month, year = draw.randrange(1, 29), draw.choice(MONTHS), draw.randrange(1900, 2030)
    answer = f"{year:04d}-{MONTH_NUMBER[month]:02d}-{day:02d}"
    pattern = r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    return _Question(f"Date: {day} {month} {year}\nISO:", answer, "pattern", {"pattern": pattern})


def _weather(draw: Random) -> _Question:
    city = draw.choice(CITIES)
    return _call(f"User: How is the weather in {city}?", "weather", {"city": city})


def _timer(draw: Random) -> _Question:
    minutes = draw.randrange(2, 90)
    return _call(f"User: Wake me in {minutes} minutes.", "timer", {"minutes": minutes})


def _call(text: str, name: str, arguments: Mapping[str, Any]) -> _Question:
    answer = f"<call>{json.dumps({'name': name, 'arguments': arguments})}</call>"
    return _Question(f"{text}\nTool:", answer, "tool_call", {"tools": TOOLS})


def _capitals(draw: Random) -> _Question:
    thing = draw.choice(THINGS)
    return _Question(f"In capitals: {thing}\nAnswer:", thing.upper(), "pattern", {"pattern": "[A-Z]+"})


def _quoted(draw: Random) -> _Question:
    thing = draw.choice(THINGS)
    return _Question(f"In double quotes: {thing}\nAnswer:", f'"{thing}"', "pattern", {"pattern": '"[a-z]+"'})


def _polite(draw: Random) -> _Question:
    thing = draw.choice(THINGS)
    text = f"Begin with Yes and end with a full stop: {thing}\nAnswer:"
    return _Question(text, f"Yes, the {thing}.", "pattern", {"pattern": r"Yes[ ,][^.!?]*\."})


def _copy(draw: Random) -> _Question:
    word = _word(draw)
    return _Question(f"Copy: {word}\nCopied:", word, "exactly", {"text": word})


def _look_up(draw: Random) -> _Question:
    table = {thing: _word(draw) for thing in draw.sample(THINGS, 3)}
    thing = draw.choice(sorted(table))
    rows = "; ".join(f"{key} = {value}" for key, value in table.items())
    return _Question(f"{rows}\n{thing} =", table[thing], "exactly", {"text": table[thing]})


def _word(draw: Random) -> str:
    """A word that no text has: it can only be copied."""
    return "".join(draw.choice(LETTERS) + draw.choice(VOWELS) for _ in range(3))


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    required = list(properties)
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


TOOLS = {
    "weather": _object({"city": {"type": "string", "minLength": 1}}),
    "timer": _object({"minutes": {"type": "integer", "minimum": 1}}),
}

#: Kinds of question of each family, taken in turn.
FAMILIES: Mapping[str, tuple[Asks, ...]] = {
    "copying": (_copy, _look_up),
    "format": (_bullets, _date),
    "instruction": (_capitals, _quoted, _polite),
    "json": (_record, _order),
    "tool_call": (_weather, _timer),
}


def passes(check: str, asked: Mapping[str, Any], text: str) -> bool:
    """Whether what comes before the first empty line passes."""
    return _CHECKS[check](asked, text.split(END)[0].strip(" \n"))


def valid_json(asked: Mapping[str, Any], text: str) -> bool:
    """JSON, and nothing else, that fits `schema`."""
    try:
        return _fits(asked["schema"], json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return False


def tool_call(asked: Mapping[str, Any], text: str) -> bool:
    """`<call>` with the name of one of `tools` and arguments that fit its schema."""
    found = TOOL_CALL.fullmatch(text)
    try:
        call = json.loads(found[1], parse_constant=_refuse) if found else None
    except (ValueError, RecursionError):
        return False
    if not isinstance(call, dict) or set(call) != {"name", "arguments"} or not isinstance(call["name"], str):
        return False
    schema = asked["tools"].get(call["name"])
    return schema is not None and _fits(schema, call["arguments"])


def pattern(asked: Mapping[str, Any], text: str) -> bool:
    """The whole answer matches the regular expression `pattern`."""
    return re.fullmatch(asked["pattern"], text) is not None


def exactly(asked: Mapping[str, Any], text: str) -> bool:
    """The answer is `text`."""
    return bool(text == asked["text"])


_CHECKS: dict[str, Callable[[Mapping[str, Any], str], bool]] = {
    "valid_json": valid_json,
    "tool_call": tool_call,
    "pattern": pattern,
    "exactly": exactly,
}


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    return bool(_validator(json.dumps(schema, sort_keys=True)).is_valid(value))


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
