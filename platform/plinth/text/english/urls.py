"""Whether a chunk is a URL for spaCy (`URL_PATTERN` of `spacy/lang/tokenizer_exceptions.py`), and so one word.

The expression is `scheme? user? (address | host) port? path?`. A scheme and a user only set where the host may start:
at the chunk's start, behind `://`, or behind any `@`. Labels of a host have no period in them, so periods separate
them, and the last of them is all small letters up to the port, the path or the end. One pass over the chunk decides.
"""

from __future__ import annotations

from plinth.compiled import kernel
from plinth.text.english.tables import HOST, I32, LOWER, NAME, NUMBER, U16

_DOT, _AT, _COLON, _SLASH, _QUESTION, _HASH, _HYPHEN, _LINE = (ord(one) for one in ".@:/?#-_")


@kernel
def is_url(points: I32, low: int, high: int, flags: U16) -> bool:
    """Whether `points[low:high]` is one."""
    dots = False
    for at in range(low, high):
        dots |= points[at] == _DOT
    if not dots:
        return False
    if _from(points, low, high, flags):
        return True
    scheme = _scheme(points, low, high, flags)
    found = low < scheme < high and _from(points, scheme, high, flags)
    for at in range(low + 1, high - 1):
        found = found or (points[at] == _AT and _from(points, at + 1, high, flags))
    return found


@kernel
def _scheme(points: I32, low: int, high: int, flags: U16) -> int:
    """Where the chunk goes on behind `scheme://`; its start where there is none."""
    at = low
    while at < high and (flags[points[at]] & NAME or points[at] in (43, _HYPHEN, _DOT)):
        at += 1
    found = at - low > 1 and at + 2 < high and points[at] == _COLON
    return at + 3 if found and points[at + 1] == _SLASH and points[at + 2] == _SLASH else low


@kernel
def _from(points: I32, low: int, high: int, flags: U16) -> bool:
    """Whether an address or a host starts here, with nothing behind it but a port and a path."""
    if 49 <= points[low] <= 57 and _address(points, low, high, flags):
        return True
    begin, labels = low, 0
    while True:
        stop = begin
        while stop < high and (flags[points[stop]] & HOST or points[stop] in (_LINE, _HYPHEN)):
            stop += 1
        if labels and _top(points, begin, high, flags):
            return True
        size = stop - begin
        if stop == high or points[stop] != _DOT or size == 0 or size > 64:
            return False
        if not (flags[points[begin]] & HOST and flags[points[stop - 1]] & HOST):
            return False
        labels += 1
        begin = stop + 1


@kernel
def _top(points: I32, low: int, high: int, flags: U16) -> bool:
    """Whether the last label is here: 2 to 63 small letters, and what may stand behind a host."""
    at = low
    while at < high and flags[points[at]] & LOWER:
        at += 1
    return 2 <= at - low <= 63 and _rest(points, at, high, flags)


@kernel
def _rest(points: I32, at: int, high: int, flags: U16) -> bool:
    """A port, a path, both or neither, up to the end."""
    if at < high and points[at] == _COLON:
        start = at + 1
        at = start
        while at < high and flags[points[at]] & NUMBER:
            at += 1
        if not 2 <= at - start <= 5:
            return False
    return at == high or points[at] in (_SLASH, _QUESTION, _HASH)


@kernel
def _address(points: I32, low: int, high: int, flags: U16) -> bool:
    """Four numbers of a public network, as the expression has them."""
    at, first, second = low, 0, 0
    for part in range(4):
        start, value = at, 0
        while at < high and 48 <= points[at] <= 57 and at - start < 4:
            value = 10 * value + points[at] - 48
            at += 1
        size = at - start
        if size == 0 or size > 3 or (part < 3 and (at == high or points[at] != _DOT)):
            return False
        zeros = size > 1 and points[start] == 48
        if part in (0, 3):
            if value == 0 or zeros or value > (223 if part == 0 else 254):
                return False
        elif value > 255 or (size == 3 and zeros):
            return False
        first, second = value if part == 0 else first, value if part == 1 else second
        at += part < 3
    private = first in (10, 127) or (first == 169 and second == 254) or (first == 192 and second == 168)
    return not (private or (first == 172 and 16 <= second <= 31)) and _rest(points, at, high, flags)
