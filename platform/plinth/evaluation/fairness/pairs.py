"""Counterfactual pairs: one text twice, in which only the group differs.

    {"attribute": "gender", "template": "loan", "favourable": true,
     "a": {"prompt": "He asked for a loan. The bank said", "continuation": " yes."},
     "b": {"prompt": "She asked for a loan. The bank said", "continuation": " yes."}}

`a` and `b` may be texts, too, which are then scored whole. `template` and `favourable` may be left out: a line is then
a template of its own, and its continuation is good. Where prompts name the groups and the continuation is the same, how
common the groups' names are plays no part; of whole texts it does.

The value of a pair is log2 p(a) - log2 p(b), with the sign turned where the continuation is bad: above 0, the model
gives the good to group a.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from plinth.errors import RejectRateError, SourceError
from plinth.evaluation.engine.records import Request

FIELDS = {"attribute", "template", "favourable", "a", "b"}
#: Characters of a side, at most.
MOST_CHARACTERS = 20_000


class Pair(NamedTuple):
    """One pair. `set` is `built_in` or the name that the recipe gives the file."""

    set: str
    item: str
    attribute: str
    template: str
    favourable: bool
    a: Request
    b: Request


class RejectedLine(NamedTuple):
    """A line that is no pair."""

    set: str
    line: int
    reason: str


def read(name: str, data: bytes, max_rejected: float) -> tuple[list[Pair], list[RejectedLine]]:
    """The pairs of a file, and its rejected lines.

    Raises:
        RejectRateError: too many lines are no pairs. SourceError: there is no pair.
    """
    pairs: list[Pair] = []
    rejects: list[RejectedLine] = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            pairs.append(_pair(name, number, json.loads(line)))
        except (ValueError, RecursionError) as error:
            rejects.append(RejectedLine(name, number, str(error)[:200]))
    if len(rejects) > max_rejected * (len(pairs) + len(rejects)):
        raise RejectRateError(
            f"evaluation.fairness.pairs.{name}: {len(rejects)} of {len(pairs) + len(rejects)} lines are no pairs",
            found="; ".join(f"line {one.line}: {one.reason}" for one in rejects[:5]),
            expected=f"at most a share of {max_rejected:g}",
            remedy="correct these lines",
        )
    if not pairs:
        raise SourceError(f"evaluation.fairness.pairs.{name} has no pair", expected="a JSON object a line")
    return pairs, rejects


def _pair(name: str, number: int, row: Any) -> Pair:
    """The pair of a line.

    Raises:
        ValueError: it is none, with the reason.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, found a {type(row).__name__}")
    if unknown := sorted(set(row) - FIELDS):
        raise ValueError(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(FIELDS))}")
    attribute, template = row.get("attribute"), row.get("template", f"line {number}")
    if not isinstance(attribute, str) or not attribute.strip() or not isinstance(template, str):
        raise ValueError("`attribute` and `template` are texts, and `attribute` is needed")
    favourable = row.get("favourable", True)
    if not isinstance(favourable, bool):
        raise ValueError("`favourable` is true or false")
    a, b = (_side(row.get(side), side) for side in ("a", "b"))
    if a == b:
        raise ValueError("`a` and `b` are the same")
    return Pair(name, f"line {number}", attribute, template, favourable, a, b)


def _side(given: Any, side: str) -> Request:
    prompt, continuation = ("", given) if isinstance(given, str) else (None, None)
    if isinstance(given, dict) and set(given) <= {"prompt", "continuation"}:
        prompt, continuation = given.get("prompt", ""), given.get("continuation")
    if not isinstance(prompt, str) or not isinstance(continuation, str) or not continuation.strip():
        raise ValueError(f"`{side}` is a text, or has `prompt` and a `continuation` that is not empty")
    (prompt + continuation).encode()  # half of a surrogate pair is no text: UnicodeEncodeError is a ValueError
    if len(prompt) + len(continuation) > MOST_CHARACTERS:
        raise ValueError(f"a side has at most {MOST_CHARACTERS} characters")
    return Request(prompt, continuation)


def requests(pairs: Sequence[Pair]) -> list[Request]:
    """Both sides of every pair, a before b."""
    return [side for pair in pairs for side in (pair.a, pair.b)]
