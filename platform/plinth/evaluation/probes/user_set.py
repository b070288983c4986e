"""A probe of the user's own: a JSON object a line.

    {"prompt": "The capital of Wales is", "gold": "Cardiff", "wrong": ["Swansea", "Newport"], "template": "capitals"}

`prompt` and `gold` are needed; `wrong`, `id`, `template` and `control` may be left out. White space at the end of a
prompt moves to the answers, as tokenizers expect it; an answer that begins with a letter after a prompt that ends with
one gets a space. Without `template` an item is a cluster of its own; without `control` the words of its prompt are
shuffled.

Lines that are no items are rejects with a reason; more than a share of them stops the stage.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from plinth.errors import RejectRateError, SourceError
from plinth.evaluation.probes.base import ProbeItem
from plinth.evaluation.probes.builtin import draws
from plinth.evaluation.probes.parameters import UserProbe

FIELDS = {"id", "prompt", "gold", "wrong", "template", "control"}
#: Characters of an item's prompt and answers together, at most.
MOST_CHARACTERS = 100_000


class BadLine(NamedTuple):
    """A line that is no item."""

    line: int
    reason: str


class Read(NamedTuple):
    """Content of a file: items, and rejected lines."""

    items: list[ProbeItem]
    rejects: list[BadLine]


def read(name: str, given: UserProbe, data: bytes) -> Read:
    """The items of a file, examples before their prompts.

    Raises:
        SourceError: no more items than examples, or the file is no text.
        RejectRateError: too many lines are no items.
    """
    found = read_lines(name, given, data)
    lines = len(found.items) + len(found.rejects)
    if len(found.rejects) > given.max_rejected * lines:
        raise RejectRateError(
            f"probe {name}: {len(found.rejects)} of {lines} lines are no items",
            found="; ".join(f"line {one.line}: {one.reason}" for one in found.rejects[:5]),
            expected=f"at most a share of {given.max_rejected:g}",
            remedy=f"correct {given.path}; `plinth model probes check {given.path}` lists every line",
        )
    if len(found.items) <= given.examples:
        raise SourceError(
            f"probe {name} has fewer items than examples and one to score",
            found=f"{len(found.items)} items, examples: {given.examples}",
            expected=f"at least {given.examples + 1} items in {given.path}",
            remedy=f"add lines to the file, or lower evaluation.probes.sets.{name}.examples",
        )
    shown = "".join(f"{one.prompt}{one.gold}\n\n" for one in found.items[: given.examples])
    return Read([one._replace(examples=shown) for one in found.items[given.examples :]], found.rejects)


def read_lines(name: str, given: UserProbe, data: bytes) -> Read:
    """Every line as an item or a reject."""
    items: list[ProbeItem] = []
    rejects: list[BadLine] = []
    seen: set[str] = set()
    for number, line in _lines(data):
        try:
            item = _item(name, given, number, json.loads(line))
            if item.item in seen:
                raise ValueError(f"another line has the id {item.item!r}")
        except (ValueError, RecursionError) as error:
            rejects.append(BadLine(number, _short(error)))
            continue
        seen.add(item.item)
        items.append(item)
    return Read(items, rejects)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _item(name: str, given: UserProbe, number: int, row: Any) -> ProbeItem:
    """An item out of a line's content.

    Raises:
        ValueError: it is none, with the reason.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, found a {type(row).__name__}")
    if unknown := sorted(set(row) - FIELDS):
        raise ValueError(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(FIELDS))}")
    prompt, gold = _text(row, "prompt"), _text(row, "gold")
    wrong = row.get("wrong", [])
    if not isinstance(wrong, list) or not all(isinstance(one, str) and one.strip() for one in wrong):
        raise ValueError("`wrong` is a list of texts")
    if len({gold, *wrong}) != 1 + len(wrong):
        raise ValueError("an answer stands twice")
    if sum(map(len, (prompt, gold, *wrong))) > MOST_CHARACTERS:
        raise ValueError(f"an item has at most {MOST_CHARACTERS} characters")
    bare = prompt.rstrip()
    answers = [_joined(bare, prompt[len(bare) :], one) for one in (gold, *wrong)]
    control = str(row.get("control") or _shuffled(bare)).rstrip()
    if control == bare:
        raise ValueError("the prompt is too short to be shuffled: give it a `control`")
    item = str(row.get("id", f"line {number}"))
    template = str(row.get("template", item))
    return ProbeItem(item, name, given.family, template, bare, answers[0], tuple(answers[1:]), control)


def _text(row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{field}` is a text and not empty")
    value.encode()  # half of a surrogate pair is no text: UnicodeEncodeError is a ValueError
    return value


def _joined(prompt: str, space: str, answer: str) -> str:
    """An answer with the white space that divides it from the prompt."""
    if space:
        return space + answer.lstrip()
    return f" {answer}" if re.match(r"\w", answer) and re.search(r"[\w.:;,?!)]$", prompt) else answer


def _shuffled(prompt: str) -> str:
    """The words of a prompt in another order, which follows from the prompt alone."""
    words = prompt.split()
    mixed = draws.shuffled(hashlib.sha256(prompt.encode()).hexdigest(), words)
    return " ".join(mixed if mixed != words else reversed(words))


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200] if not isinstance(error, ValueError) else str(error)[:200]
