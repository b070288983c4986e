"""RefinedWeb's line rules on one Python string, phrases of navigation included: for the pages that the kernel leaves.

A page is a list of lines, each with its number, its characters and their positions in the text, so that the positions
survive steps that remove characters. The rules are those of `refinedweb_kernel`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from plinth_text.rules.refinedweb_kernel import (
    COUNTED,
    COUNTER,
    MAX_DIGITS,
    MAX_NAVIGATION_WORDS,
    MAX_UPPER,
    MIN_WORDS,
    NAVIGATION,
    NUMERIC,
    ONE_WORD,
    UPPER_CASE,
)

_SPLIT = re.compile(r"[ \n\r\t\v\f\0]+")
_COUNTER = re.compile(rf"\W*\d[,.\d]*[kmb]?\s+(?:{'|'.join(COUNTED)})\W*\Z")
#: In this order; case of ASCII letters does not count.
_PHRASES = tuple(
    re.compile(pattern, re.IGNORECASE) for pattern in (r"\s?items in cart", r"\s?read more...$", r"^sign-in\s?")
)


class _Line(NamedTuple):
    """A line: its number, its characters, and their places in the text."""

    number: int
    text: str
    places: tuple[int, ...]

    def part(self, chosen: list[int]) -> _Line:
        return _Line(self.number, "".join(self.text[i] for i in chosen), tuple(self.places[i] for i in chosen))


def judge(text: str) -> tuple[int, int, bool, list[tuple[int, int, int]]]:
    """Judge one text.

    Returns:
        Words before and after, whether a step left nothing, and the cuts: code points (half open) and reason.
    """
    page, begins = [], [0]
    for number, line in enumerate(text.split("\n")):
        page.append(_Line(number, line, tuple(range(begins[-1], begins[-1] + len(line)))))
        begins.append(min(begins[-1] + len(line) + 1, len(text)))
    whole: dict[int, int] = {}
    parts: dict[int, int] = {}
    for why in (UPPER_CASE, NUMERIC, COUNTER, ONE_WORD):
        whole |= {line.number: why for line in page if _goes(line.text, why)}
        page = [line for line in page if line.number not in whole]
        page = page if why == ONE_WORD else _stripped(page)
    for phrase in _PHRASES:
        page = _stripped([kept for line in page if (kept := _without(line, phrase, whole, parts)) is not None])
    left = sum(_words(line.text) for line in page)
    spans = [(begins[number], begins[number + 1], why) for number, why in whole.items()]
    spans += [(place, place + 1, why) for place, why in parts.items()]
    return _words(text), left, not any(line.text.strip() for line in page), sorted(spans)


def _goes(line: str, why: int) -> bool:
    if why == COUNTER:
        return _COUNTER.match(line.lower()) is not None
    if not line:
        return False
    if why == UPPER_CASE:
        return sum(map(str.isupper, line)) / len(line) > MAX_UPPER
    if why == NUMERIC:
        return sum(map(str.isdigit, line)) / len(line) > MAX_DIGITS
    return len(line.split()) < MIN_WORDS


def _words(text: str) -> int:
    return sum(word[:1].isalnum() for word in _SPLIT.split(text))


def _stripped(page: list[_Line]) -> list[_Line]:
    """The page without white space at its ends; it is not cut, only not counted."""
    full = [index for index, line in enumerate(page) if line.text.strip()]
    page = page[full[0] : full[-1] + 1] if full else []
    if page:
        front = len(page[0].text) - len(page[0].text.lstrip())
        page[0] = page[0].part(list(range(front, len(page[0].text))))
        page[-1] = page[-1].part(list(range(len(page[-1].text.rstrip()))))
    return page


def _without(line: _Line, phrase: re.Pattern[str], whole: dict[int, int], parts: dict[int, int]) -> _Line | None:
    """The line without the phrase; None, and the whole line is cut, when nothing else was there."""
    if not line.text or len(line.text.split()) > MAX_NAVIGATION_WORDS:
        return line
    gone = {index for match in phrase.finditer(line.text) for index in range(*match.span())}
    left = line.part([index for index in range(len(line.text)) if index not in gone])
    if not left.text.strip():
        whole[line.number] = NAVIGATION
        return None
    parts |= {line.places[index]: NAVIGATION for index in gone}
    return left
