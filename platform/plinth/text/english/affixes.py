"""What spaCy splits off at the ends of a chunk, and where it splits inside.

A chunk is code points `points[low:high]`, none of them white space. Each function is one regular expression of
`spacy/lang/punctuation.py` and `spacy/lang/en/punctuation.py`, with the order of its alternatives; what stands outside
the chunk does not count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plinth.compiled import kernel, njit
from plinth.text.english.tables import (
    BEFORE_PERIOD,
    I32,
    INFIX,
    LETTER,
    LONGEST_UNIT,
    LOWER,
    PREFIX,
    QUOTE,
    SUFFIX,
    U16,
    U64,
    UNIT_BITS,
    UNITS,
    UPPER,
    find,
    unit_hash,
)

_DOT, _PLUS, _HYPHEN, _COMMA, _DOLLAR, _TILDE, _QUOTE = (ord(one) for one in ".+-,$~'")
_ELLIPSIS, _CURLY, _DASH, _EN_DASH, _DEGREE = (ord(one) for one in "…’—–°")
_S, _SMALL_S, _U, _C, _A = (ord(one) for one in "SsUCA")


@njit(inline="always")
def _digit(point: Any) -> Any:
    return (point >= 48) & (point <= 57)


@njit(inline="always")
def prefix(points: Any, low: Any, high: Any, flags: Any) -> Any:
    """Characters of the prefix; 0 where there is none."""
    first, size = points[low], np.int64(0)
    if first in (_PLUS, _DOT, _U, _C, _A):
        size = np.int64(_rare_prefix(points, low, high))
    elif flags[first] & PREFIX:
        size = np.int64(1)
    return size


@kernel
def _rare_prefix(points: I32, low: int, high: int) -> int:
    """The prefix that starts with a plus, a dot or a letter."""
    first = points[low]
    if first == _PLUS:
        return int(low + 1 == high or not _digit(points[low + 1]))
    if first == _DOT:
        at = low + 1
        while at < high and points[at] == _DOT:
            at += 1
        return at - low if at - low > 1 else 0
    if first == _U:
        return 3 if high - low > 2 and points[low + 1] == _S and points[low + 2] == _DOLLAR else 0
    return 2 if first in (_C, _A) and high - low > 1 and points[low + 1] == _DOLLAR else 0


@njit(inline="always")
def suffix(points: Any, low: Any, high: Any, digits: Any, flags: Any, tables: Any) -> Any:
    """Characters of the longest suffix; 0 where there is none. `digits`: whether the chunk may have some."""
    size = np.int64(0)
    if low < high:
        last = points[high - 1]
        if digits or last in (_DOT, _SMALL_S, _S, _ELLIPSIS, _PLUS):
            size = np.int64(_rare_suffix(points, low, high, digits, flags, tables))
        elif flags[last] & SUFFIX:
            size = np.int64(1)
    return size


@kernel
def _rare_suffix(points: I32, low: int, high: int, digits: bool, flags: U16, tables: U64) -> int:
    """The suffix that what stands before its last character decides."""
    last, before = points[high - 1], points[high - 2] if high - low > 1 else -1
    if last == _DOT:
        return _period(points, low, high, flags)
    if last in (_SMALL_S, _S) and before in (_QUOTE, _CURLY):
        return 2
    if last == _ELLIPSIS and before == _ELLIPSIS:
        return 2
    if last == _PLUS:
        return int(before >= 0 and _digit(before))
    unit = _unit(points, low, high, tables) if digits else 0
    return max(unit, int((flags[last] & SUFFIX) != 0))


@kernel
def _period(points: I32, low: int, high: int, flags: U16) -> int:
    """The suffix of a chunk that ends with a period: a run of them, or the last, by what stands before it."""
    at = high - 1
    while at > low and points[at - 1] == _DOT:
        at -= 1
    if high - at > 1:
        return high - at
    if at == low:
        return 0
    before = points[at - 1]
    if flags[before] & BEFORE_PERIOD:
        return 1
    if at - low < 2:
        return 0
    second = points[at - 2]
    degrees = second == _DEGREE and (before | 32) in (99, 102, 107)
    return int(degrees or ((flags[before] & UPPER) != 0 and (flags[second] & UPPER) != 0))


@kernel
def _unit(points: I32, low: int, high: int, tables: U64) -> int:
    """Characters of the unit or currency behind the last digit; 0 where that is none."""
    at, least = high - 1, max(low, high - LONGEST_UNIT - 1)
    while at >= least and not _digit(points[at]):
        at -= 1
    if at < least or at == high - 1:
        return 0
    return high - 1 - at if find(tables, UNITS, UNIT_BITS, unit_hash(points, at + 1, high)) >= 0 else 0


@kernel
def infix(points: I32, low: int, high: int, at: int, flags: U16) -> int:
    """Characters of the infix that starts at `at`; 0 where none does."""
    point = points[at]
    if flags[point] & INFIX:
        return 1
    if point >= 128:
        if point != _DASH and point != _EN_DASH:
            return 0
    elif flags[point] & LETTER or _digit(point):
        return 0
    if point == _DOT:
        stop = at + 1
        while stop < high and points[stop] == _DOT:
            stop += 1
        if stop - at > 1:
            return stop - at
    if at == low:
        return 0
    before, after = flags[points[at - 1]], flags[points[at + 1]] if at + 1 < high else np.uint16(0)
    if point == _DOT:
        return int((before & (LOWER | QUOTE)) != 0 and (after & (UPPER | QUOTE)) != 0)
    if point == _COMMA:
        return int((before & LETTER) != 0 and (after & LETTER) != 0)
    number = _digit(points[at - 1])
    signed = at + 1 < high and (_digit(points[at + 1]) or points[at + 1] == _HYPHEN)
    if number and signed and point in (43, 45, 42, 94):  # + - * ^
        return 1
    if not (number or before & LETTER):
        return 0
    if point in (_HYPHEN, _DASH, _EN_DASH, _TILDE):
        return _hyphens(points, high, at, flags)
    return int(point in (58, 60, 62, 61, 47) and (after & LETTER) != 0)  # : < > = /


@kernel
def _hyphens(points: I32, high: int, at: int, flags: U16) -> int:
    """One to three hyphens, or one or two dashes, before a letter."""
    point = points[at]
    most = 3 if point == _HYPHEN else 2 if point == _DASH else 1
    for size in range(1, most + 1):
        stop = at + size
        if stop >= high:
            return 0
        if flags[points[stop]] & LETTER:
            return size
        if points[stop] != point:
            return 0
    return 0
