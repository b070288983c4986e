"""RefinedWeb's line rules (Penedo et al. 2023, table 5) as DCLM's code applies them, step by step over a page.

Lines end with `\\n`. In this order: a line goes when more than half of its characters are upper case; when all are
digits; when it is a counter ("3 likes"); when it is not empty and has fewer than two words; and from lines of at most
ten words "items in cart", a closing "read more" with three characters behind it, and an opening "sign-in" are taken
out. Between the steps the page loses the white space at its ends. Words that count are those of fastText's splitter,
which knows ASCII white space only, when they begin with a letter or digit.

The few pages with one of the three phrases are left to `refinedweb_reference`, which works on Python strings.

Letters: D texts, L lines.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.unicode.classes import ALNUM, DECIMAL, DIGIT, SPACE, UPPER, WORD, classes
from plinth.text.unicode.codepoints import decode, utf8
from plinth.text.words.ngrams import I64, U8

I32 = npt.NDArray[np.int32]
U16 = npt.NDArray[np.uint16]

#: Why a line is cut.
UPPER_CASE, NUMERIC, COUNTER, ONE_WORD, NAVIGATION = range(1, 6)
#: Above these shares of a line's characters it goes (DCLM, `dclm_baseline_refinedweb.yaml`).
MAX_UPPER, MAX_DIGITS = 0.5, 0.999999
#: Fewer words than this and a line goes; phrases are looked for in lines of at most so many.
MIN_WORDS, MAX_NAVIGATION_WORDS = 2, 10

#: Nouns of a counter.
COUNTED = (
    "likes", "shares", "comments", "retweets", "reposts", "quotes", "bookmarks", "upvotes", "downvotes", "downloads",
    "views", "followers",
)  # fmt: skip
_NAMES = np.frombuffer("".join(COUNTED).encode(), dtype=np.uint8)
_NAME_ENDS = np.cumsum([0, *map(len, COUNTED)]).astype(np.int64)
_CART, _MORE, _SIGN = (np.frombuffer(text, dtype=np.uint8) for text in (b"items in cart", b"read more", b"sign-in"))
#: What separates words for fastText: space, `\n`, `\r`, `\t`, `\v`, `\f`, NUL.
_SEPARATES = np.zeros(128, dtype=np.bool_)
_SEPARATES[[0, 9, 10, 11, 12, 13, 32]] = True


class LineCuts(NamedTuple):
    """The lines that the rules cut from a column of texts.

    Args:
        words, left: [D] words before and after.
        emptied: [D] whether a step left nothing.
        of, begin, end, why: [L] the lines that are cut: text, code points (half open, the line end inside), reason.
        hard: [D] texts that `refinedweb_reference` must judge; the other fields leave them out.
    """

    words: I64
    left: I64
    emptied: npt.NDArray[np.bool_]
    of: I64
    begin: I32
    end: I32
    why: U8
    hard: npt.NDArray[np.bool_]


def line_cuts(texts: pa.Array) -> LineCuts:
    """Apply the rules to every text."""
    data, offsets = utf8(texts)
    documents = offsets.size - 1
    most = int(np.count_nonzero(data[offsets[0] : offsets[-1]] == 10)) + documents
    per_text = np.zeros((2, documents), dtype=np.int64)
    emptied, hard = np.zeros(documents, dtype=np.bool_), np.zeros(documents, dtype=np.bool_)
    of, places = np.zeros(most, dtype=np.int64), np.zeros((2, most), dtype=np.int32)
    why = np.zeros(most, dtype=np.uint8)
    facts = np.zeros((_FACTS, most + 1), dtype=np.int32)
    n = _cuts(data, offsets, classes(), facts, per_text, emptied, hard, of, places, why)
    return LineCuts(per_text[0], per_text[1], emptied, of[:n], places[0, :n], places[1, :n], why[:n], hard)


#: Rows of a line's facts: first code point, one past the last with the line end, characters, upper-case ones, digits,
#: words, words that count, one more when white space in front is gone, white space in front and behind, first byte
#: and one past the last in the text, whether it can be a counter, whether it is cut.
(
    _BEGIN, _END, _SIZE, _UPPERS, _DIGITS, _WORDS, _COUNTS, _HIDDEN, _LEAD, _TRAIL, _FROM, _TO, _COUNTER, _CUT, _FACTS,
) = range(15)  # fmt: skip


@njit(nogil=True, cache=True)
def _cuts(
    data: U8, offsets: I64, table: U16, facts: I32, per_text: I64, emptied: Any, hard: Any, of: I64, places: I32,
    why: U8,
) -> int:  # fmt: skip
    found = 0
    for doc in range(offsets.size - 1):
        start, end = offsets[doc], offsets[doc + 1]
        n, hard[doc] = _measure(data, start, end, table, facts)
        if hard[doc]:
            continue
        words = 0
        for line in range(n):
            words += facts[_COUNTS, line]
        _apply(data, start, n, table, facts)
        left, something = 0, False
        for line in range(n):
            if facts[_CUT, line]:
                if facts[_CUT, line] < 100:
                    of[found], why[found] = doc, facts[_CUT, line]
                    places[0, found], places[1, found] = facts[_BEGIN, line], facts[_END, line]
                    found += 1
            else:
                left += facts[_COUNTS, line]
                something |= facts[_WORDS, line] > 0
        per_text[0, doc], per_text[1, doc], emptied[doc] = words, left, not something
    return found


@njit(nogil=True, cache=True)
def _apply(data: U8, start: int, n: int, table: U16, facts: I32) -> None:
    """Mark the lines that go, step by step; 100 marks blank lines that the page's ends lose."""
    for line in range(n):
        if facts[_SIZE, line] and facts[_UPPERS, line] / facts[_SIZE, line] > MAX_UPPER:
            facts[_CUT, line] = UPPER_CASE
    _strip(n, facts)
    for line in range(n):
        if not facts[_CUT, line] and facts[_SIZE, line] and facts[_DIGITS, line] / facts[_SIZE, line] > MAX_DIGITS:
            facts[_CUT, line] = NUMERIC
    _strip(n, facts)
    for line in range(n):
        if not facts[_CUT, line] and facts[_COUNTER, line]:
            first, last = start + facts[_FROM, line], start + facts[_TO, line]
            if _is_counter(data, first, last, table):
                facts[_CUT, line] = COUNTER
    _strip(n, facts)
    for line in range(n):
        if not facts[_CUT, line] and facts[_SIZE, line] and facts[_WORDS, line] < MIN_WORDS:
            facts[_CUT, line] = ONE_WORD
    _strip(n, facts)


@njit(nogil=True, cache=True)
def _strip(n: int, facts: I32) -> None:
    """`str.strip` on the rest of the page."""
    first, last = 0, n - 1
    while first < n and (facts[_CUT, first] or not facts[_WORDS, first]):
        facts[_CUT, first] = facts[_CUT, first] or 100
        first += 1
    while last > first and (facts[_CUT, last] or not facts[_WORDS, last]):
        facts[_CUT, last] = facts[_CUT, last] or 100
        last -= 1
    if first < n:
        facts[_SIZE, first] -= facts[_LEAD, first]
        facts[_COUNTS, first] += facts[_HIDDEN, first]
        facts[_LEAD, first] = facts[_HIDDEN, first] = 0
        facts[_SIZE, last] -= facts[_TRAIL, last]
        facts[_TRAIL, last] = 0


@njit(nogil=True, cache=True)
def _measure(data: U8, start: int, end: int, table: U16, facts: I32) -> tuple[int, bool]:
    """The facts of every line, and whether a short one has a phrase of navigation."""
    n, at, cp, hard = 0, start, 0, False
    while True:
        facts[:, n] = 0
        facts[_BEGIN, n], facts[_FROM, n] = cp, at - start
        head, uppers, digits, words, counts, lead, trail = at, 0, 0, 0, 0, 0, 0
        in_word, in_token, signs, met_word, cart = False, False, 0, False, False
        while at < end and data[at] != 10:
            point, step = np.int64(data[at]), 1
            if point >= 128:
                point, step = decode(data, at, end)
            flag = table[point]
            if flag & SPACE:
                in_word = False
                trail += 1
                lead += words == 0
            else:
                if not in_word:
                    # a character that no ASCII white space separates from a space of another kind before it
                    facts[_HIDDEN, n] += words == 0 and in_token and (flag & ALNUM) != 0
                    words += 1
                in_word = True
                trail = 0
            separates = point < 128 and _SEPARATES[point]
            counts += not separates and not in_token and (flag & ALNUM) != 0
            in_token = not separates
            uppers += (flag & UPPER) != 0
            digits += (flag & DIGIT) != 0
            if not met_word and flag & WORD:
                met_word = True
                facts[_COUNTER, n] = (flag & DECIMAL) != 0
            cart |= (point == 73 or point == 105) and _same(data, at, end, _CART)
            signs += 1
            at += step
            cp += 1
        facts[_SIZE, n], facts[_UPPERS, n], facts[_DIGITS, n], facts[_WORDS, n] = signs, uppers, digits, words
        facts[_COUNTS, n], facts[_LEAD, n], facts[_TRAIL, n], facts[_TO, n] = counts, lead, trail, at - start
        if 0 < words <= MAX_NAVIGATION_WORDS:
            hard |= cart or _navigates(data, head, at, lead, trail)
        cp += at < end
        facts[_END, n] = cp
        n += 1
        at += 1
        if at > end:
            return n, hard


@njit(nogil=True, cache=True)
def _navigates(data: U8, head: int, end: int, lead: int, trail: int) -> bool:
    """Whether a line may begin with `sign-in`, or end with `read more` and three characters, white space aside."""
    if _anywhere(data, head, min(end, head + 4 * lead + 8), _SIGN):
        return True
    return _anywhere(data, max(head, end - 4 * trail - 24), end, _MORE)


@njit(nogil=True, cache=True)
def _anywhere(data: U8, start: int, end: int, phrase: U8) -> bool:
    found = False
    for at in range(start, end):
        found |= _same(data, at, end, phrase)
    return found


@njit(nogil=True, cache=True)
def _same(data: U8, at: int, end: int, phrase: U8) -> bool:
    """Whether the phrase, in any case of ASCII, starts here."""
    same, k = at + phrase.size <= end, 0
    while same and k < phrase.size:
        byte = data[at + k]
        same = phrase[k] == (byte + 32 if 65 <= byte <= 90 else byte)
        k += 1
    return same


@njit(nogil=True, cache=True)
def _is_counter(data: U8, start: int, end: int, table: U16) -> bool:
    """Whether a line is a number, a thousand's letter perhaps, and what is counted, with signs around it."""
    at, number, spaces = start, 0, 0
    while at < end:  # signs
        point, step = _point(data, at, end)
        if table[point] & WORD:
            break
        at += step
    while at < end:  # the number
        point, step = _point(data, at, end)
        if not (table[point] & DECIMAL or (number and (point == 44 or point == 46))):
            break
        number += 1
        at += step
    if not number:
        return False
    if at < end and data[at] in (75, 77, 66, 107, 109, 98):
        at += 1
    while at < end:
        point, step = _point(data, at, end)
        if not table[point] & SPACE:
            break
        spaces += 1
        at += step
    if not spaces:
        return False
    name = 0
    while name < _NAME_ENDS.size - 1 and not _same(data, at, end, _NAMES[_NAME_ENDS[name] : _NAME_ENDS[name + 1]]):
        name += 1
    if name == _NAME_ENDS.size - 1:
        return False
    at += _NAME_ENDS[name + 1] - _NAME_ENDS[name]
    while at < end:
        point, step = _point(data, at, end)
        if table[point] & WORD:
            return False
        at += step
    return True


@njit(inline="always")
def _point(data: Any, at: Any, end: Any) -> Any:
    point, step = np.int64(data[at]), 1
    if point >= 128:
        point, step = decode(data, at, end)
    return point, step
