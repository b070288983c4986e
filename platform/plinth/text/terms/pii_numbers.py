"""Numbers that may be personal data, by their form or by words near them.

A number is up to 24 digits in groups. Its form is the lengths of its first eight groups, four bits each, and the
characters between them, eight bits each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plinth.compiled import njit
from plinth.text.terms.pii_places import CLASSES, DIGIT, DOTTED, LETTERED, LOWER, NUMBER, TOKEN, UPPER, WORD, put
from plinth.text.terms.pii_words import context
from plinth.text.words.ngrams import I64, U8

#: Bytes before and after a number in which words are looked for.
BEFORE, AFTER = 64, 32
#: Bytes and digits that a number may have.
MAX_NUMBER, MAX_DIGITS, MIN_DIGITS = 48, 24, 6


@njit(nogil=True, cache=True)
def digits(data: U8, first: int, start: int, stop: int, end: int, doc: int, found: I64, size: int) -> int:
    """Note the numbers that begin in `data[start:stop]`."""
    for at in range(start, stop):
        if not CLASSES[data[at]] & DIGIT or (at > first and CLASSES[data[at - 1]] & DIGIT):
            continue
        before = data[at - 1] if at > first else np.uint8(32)
        kind = CLASSES[before]
        if kind & (UPPER | LOWER):
            size = _lettered(data, first, at, end, doc, found, size)
        elif not (kind & TOKEN):
            inside = at - 1 > first and CLASSES[data[at - 2]] & DIGIT
            if inside and (before == 46 or before == 47 or before == 44 or before == 58):
                continue  # `.`, `/`, `,`, `:` between digits: the number began before
            size = _number(data, first, at, end, doc, found, size)
    return size


@njit(nogil=True, cache=True)
def _lettered(data: U8, first: int, at: int, end: int, doc: int, found: I64, size: int) -> int:
    """Note one, two or six capitals and then digits: Spanish NIE, IBAN and British, Italian numbers."""
    start = at
    while start > first and at - start < 7 and CLASSES[data[start - 1]] & UPPER:
        start -= 1
    letters = at - start
    if letters not in (1, 2, 6) or (start > first and CLASSES[data[start - 1]] & (WORD | TOKEN)):
        return size
    digits, stop = 0, at
    while stop < end and stop - at < 42:
        kind = CLASSES[data[stop]]
        if not kind & (DIGIT | UPPER) and not (data[stop] == 32 and data[stop - 1] != 32):
            break
        digits += (kind & DIGIT) != 0
        stop += 1
    if digits < 6:
        return size
    meaning = context(data, max(first, start - BEFORE), start, True)
    return int(put(found, size, doc, LETTERED, start - first, stop - first, meaning))


@njit(nogil=True, cache=True)
def _number(data: U8, first: int, at: int, end: int, doc: int, found: I64, size: int) -> int:
    """Note a number by its form (see `_strong`), or because words near it give its meaning."""
    before = data[at - 1] if at > first else np.uint8(32)
    if before == 36 or before == 37:  # money, escapes
        return size
    trunk = data[at] == 48 and at + 1 < end and data[at + 1] != 48
    groups, digits, dots, stop = 0, 0, 0, at
    form = np.int64(0)  # lengths of the first eight groups, four bits each, and what stands between them
    between = np.int64(0)
    length = 0
    while stop < end and stop - at < MAX_NUMBER and digits < MAX_DIGITS:
        if CLASSES[data[stop]] & DIGIT:
            length += 1
            digits += 1
            stop += 1
            continue
        skip = _joint(data, stop, end)
        if not skip and digits <= 6 and (trunk or before == 43):
            skip = _slash(data, stop, end)
        if not skip:
            break
        if groups < 8:
            form |= min(length, 15) << (4 * groups)
            sign = np.int64(data[stop]) if skip < 3 else np.int64(47)
            between |= sign << (8 * groups) if groups < 7 else np.int64(0)
        dots += data[stop] == 46 and skip == 1
        groups, length = groups + 1, 0
        stop += skip
    if groups < 8:
        form |= min(length, 15) << (4 * groups)
    groups += 1
    # four numbers with dots are tried as an address even beside words
    if dots >= 3 and before != 46 and _dotted(data, at, end):
        size = put(found, size, doc, DOTTED, at - first, stop - first, 0)
    if digits < MIN_DIGITS:
        return size
    start = at - 1 if before == 43 or before == 40 else at
    meaning = context(data, max(first, start - BEFORE), start, True)
    meaning |= context(data, stop, min(end, stop + AFTER), False) & ~(1 | 8)  # not of the next phone, the next key
    strong = _strong(form, between, groups, digits, before) or _born(data, at, form)
    if meaning or strong or (trunk and digits >= 9 and _area(form, between, before)):
        return int(put(found, size, doc, NUMBER, at - first, stop - first, meaning))
    return size


@njit(inline="always")
def _joint(data: U8, at: Any, end: Any) -> Any:
    """Bytes between two groups of one number: one of ` -./`, or up to three with a bracket or a hard space; else 0."""
    byte = data[at]
    following = data[at + 1] if at + 1 < end else np.uint8(0)
    third = data[at + 2] if at + 2 < end else np.uint8(0)
    plain = byte == 32 or byte == 45 or byte == 46 or byte == 47
    if plain and CLASSES[following] & DIGIT:
        return 1
    if byte == 41 and CLASSES[following] & DIGIT:
        return 1
    closed = byte == 41 and (following == 32 or following == 45 or following == 47)
    if ((plain and following == 40) or closed) and CLASSES[third] & DIGIT:
        return 2
    if byte == 0xC2 and following == 0xA0 and CLASSES[third] & DIGIT:
        return 2
    return 0


@njit(inline="always")
def _slash(data: U8, at: Any, end: Any) -> Any:
    """Bytes of a slash between spaces, perhaps after a bracket, before a digit; else 0."""
    start = at + 1 if data[at] == 41 else at
    if start + 3 < end and data[start] == 32 and data[start + 1] == 47 and data[start + 2] == 32:
        return start + 3 - at if CLASSES[data[start + 3]] & DIGIT else 0
    return 0


@njit(inline="always")
def _area(form: Any, between: Any, before: Any) -> Any:
    """An area code of three to five digits in brackets, or before a slash."""
    length, sign = form & 0xF, between & 0xFF
    return 3 <= length <= 5 and (sign == 47 or (before == 40 and sign == 41))


@njit(inline="always")
def _born(data: U8, at: Any, form: Any) -> Any:
    """Chinese resident numbers: fifteen digits and more with 19 or 20 after the sixth, or six, eight, three or four."""
    three = form & 0xFFF
    if three == 0x386 or three == 0x486:
        return True
    if form & 0xF != 15:
        return False
    century, decade = data[at + 6], data[at + 7]
    return (century == 49 and decade == 57) or (century == 50 and decade == 48)


@njit(nogil=True, cache=True)
def _dotted(data: U8, at: int, end: int) -> bool:
    """Whether four numbers up to 255 with dots stand here, and no fifth."""
    for part in range(4):
        value, length = 0, 0
        while at < end and length < 4 and CLASSES[data[at]] & DIGIT:
            value = 10 * value + data[at] - 48
            length += 1
            at += 1
        if length == 0 or length > 3 or value > 255:
            return False
        if part < 3:
            if at >= end or data[at] != 46:
                return False
            at += 1
    if at >= end:
        return True
    more = data[at] == 46 and at + 1 < end and CLASSES[data[at + 1]] & DIGIT
    return not more and not CLASSES[data[at]] & TOKEN


@njit(inline="always")
def _strong(form: Any, between: Any, groups: Any, digits: Any, before: Any) -> Any:
    """Forms that need no words: +…, (ddd) ddd-dddd, ddd-ddd-dddd, ddd-dd-dddd, cards in groups, and a few more."""
    three = form & 0xFFF
    hyphens = between & 0xFFFF == 0x2D2D
    four = form & 0xFFFF
    return (
        (before == 43 and digits >= 8)
        or (groups >= 3 and three == 0x433 and (hyphens or before == 40))
        or (groups >= 3 and three == 0x423 and hyphens)  # United States
        or (groups >= 4 and four == 0x4331 and between & 0xFFFFFF == 0x2D2D2D)  # 1-ddd-ddd-dddd
        or (groups >= 4 and four == 0x4444)
        or (groups >= 3 and (three == 0x564 or three == 0x464))  # American Express, Diners
        or (groups >= 4 and four == 0x2333)  # Brazil
        or (groups >= 4 and four == 0x2443)  # Switzerland
        or (groups >= 6 and form & 0xFFFFFF == 0x332221)  # France
    )
