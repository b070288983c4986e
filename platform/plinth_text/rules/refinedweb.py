r"""RefinedWeb's line rules (Penedo et al. 2023, table 5) as DCLM's code applies them, step by step over a page.

Lines end with `\n`. The steps remove, in this order: lines in which more than half of the characters are upper case;
lines of digits; counters ("3 likes"); lines that are not empty and have fewer than two words. From lines of at most ten
words, a last step removes "items in cart", a closing "read more" with three characters after it, and an opening
"sign-in". Between the steps, the page loses the white space at its ends. Words are counted with fastText's splitter,
which knows only ASCII white space, if they begin with a letter or digit.

The few pages with one of the three phrases are left to `judge`, which works on Python strings.

Letters: D texts, L lines.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I32, I64, U8, U16, Bools
from plinth_text.compiled import compiled
from plinth_text.unicode import classes, utf8

#: Why a line is cut.
UPPER_CASE, NUMERIC, COUNTER, ONE_WORD, NAVIGATION = range(1, 6)
#: Above these shares of a line's characters it goes (DCLM, `dclm_baseline_refinedweb.yaml`).
MAX_UPPER, MAX_DIGITS = 0.5, 0.999999
#: Minimum words of a line to keep it, and maximum words of a line to search for phrases.
MIN_WORDS, MAX_NAVIGATION_WORDS = 2, 10

#: Nouns of a counter.
COUNTED = (
    "likes", "shares", "comments", "retweets", "reposts", "quotes", "bookmarks", "upvotes", "downvotes", "downloads",
    "views", "followers",
)  # fmt: skip
#: Facts of a line (`Facts` in `refinedweb_kernel.c`).
_FACTS = 14


class LineCuts(NamedTuple):
    """Lines that the rules remove from the texts of a column.

    Args:
        words, left: [D] number of words before and after the removal.
        emptied: [D] True if no text is left.
        of, begin, end, why: [L] the removed lines: text, code points (half open, including the line end), reason.
        hard: [D] True for texts that need `judge`; the other fields have no values for these texts.
    """

    words: I64
    left: I64
    emptied: Bools
    of: I64
    begin: I32
    end: I32
    why: U8
    hard: Bools


def line_cuts(texts: pa.Array) -> LineCuts:
    """Return the lines that the rules remove from each text."""
    data, offsets = utf8(texts)
    documents = offsets.size - 1
    most = int(np.count_nonzero(data[offsets[0] : offsets[-1]] == 10)) + documents
    per_text = np.zeros((2, documents), dtype=np.int64)
    emptied, hard = np.zeros(documents, dtype=np.bool_), np.zeros(documents, dtype=np.bool_)
    of, places = np.zeros(most, dtype=np.int64), np.zeros((2, most), dtype=np.int32)
    why = np.zeros(most, dtype=np.uint8)
    facts = np.zeros((_FACTS, most + 1), dtype=np.int32)
    n = cuts(data, offsets, classes(), facts, per_text, emptied, hard, of, places, why)
    return LineCuts(per_text[0], per_text[1], emptied, of[:n], places[0, :n], places[1, :n], why[:n], hard)


@compiled
def cuts(
    data: U8, offsets: I64, table: U16, facts: I32, per_text: I64, emptied: Bools, hard: Bools, of: I64, places: I32,
    why: U8,
) -> int:  # fmt: skip
    """Write the arrays of `LineCuts`, and return the number of removed lines.

    `facts` is scratch memory, [`_FACTS`, lines of a text].
    """


# RefinedWeb's line rules on one Python string, phrases of navigation included: for the pages that the kernel leaves.
#
# A page is a list of lines, each with its number, its characters and their positions in the text, so that the positions
# survive steps that remove characters. The rules are the same.

_SPLIT = re.compile(r"[ \n\r\t\v\f\0]+")
_COUNTER = re.compile(rf"\W*\d[,.\d]*[kmb]?\s+(?:{'|'.join(COUNTED)})\W*\Z")
#: In this order; case of ASCII letters does not count.
_PHRASES = tuple(
    re.compile(pattern, re.IGNORECASE) for pattern in (r"\s?items in cart", r"\s?read more...$", r"^sign-in\s?")
)


class _Line(NamedTuple):
    """Line of a page: its number, its characters, and their positions in the text."""

    number: int
    text: str
    places: tuple[int, ...]

    def part(self, chosen: list[int]) -> _Line:
        return _Line(self.number, "".join(self.text[i] for i in chosen), tuple(self.places[i] for i in chosen))


def judge(text: str) -> tuple[int, int, bool, list[tuple[int, int, int]]]:
    """Apply the rules to one text.

    Returns:
        the number of words before and after the removal, True if no text is left, and the removed spans: code points
        (half open) and reason.
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
    """Return the page without white space at its ends. This white space is not counted, but it is not cut from the
    text."""
    full = [index for index, line in enumerate(page) if line.text.strip()]
    page = page[full[0] : full[-1] + 1] if full else []
    if page:
        front = len(page[0].text) - len(page[0].text.lstrip())
        page[0] = page[0].part(list(range(front, len(page[0].text))))
        page[-1] = page[-1].part(list(range(len(page[-1].text.rstrip()))))
    return page


def _without(line: _Line, phrase: re.Pattern[str], whole: dict[int, int], parts: dict[int, int]) -> _Line | None:
    """Return the line without the phrase. If nothing else is left, return None and cut the whole line."""
    if not line.text or len(line.text.split()) > MAX_NAVIGATION_WORDS:
        return line
    gone = {index for match in phrase.finditer(line.text) for index in range(*match.span())}
    left = line.part([index for index in range(len(line.text)) if index not in gone])
    if not left.text.strip():
        whole[line.number] = NAVIGATION
        return None
    parts |= {line.places[index]: NAVIGATION for index in gone}
    return left
