"""Candidates for personal data: one pass over the bytes that stops only where a rule may match.

The pass walks over runs of letters, digits, `_` and `-`; only runs with digits, long runs, `@` and `:` are examined,
each over a bounded number of bytes, so the time is linear in any text. The candidates are a superset of the matches of
the `pii` annotator, whose rules decide. Numbers without a form of their own are reported only near words that give
their meaning (`pii_words`).

Does not belong here: check digits, registries of addresses, replacements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import uint64

from plinth.compiled import njit
from plinth.text.terms.pii_words import HASHES, OTHER, SIZE, WORD_MEANINGS
from plinth.text.unicode.codepoints import utf8
from plinth.text.words.ngrams import I64, U8

#: Kinds of candidates: an `@`, dotted numbers, hexadecimal groups, a number, letters and a number, a long run, a PEM
#: line.
AT, DOTTED, HEXES, NUMBER, LETTERED, RUN, PEM = range(7)
#: Bytes before and after a number in which words are looked for.
BEFORE, AFTER = 64, 32
#: Bytes and digits that a number may have.
MAX_NUMBER, MAX_DIGITS, MIN_DIGITS = 48, 24, 6
MIN_RUN = 16

_TOKEN, _DIGIT, _UPPER, _LOWER, _AT, _COLON, _HEX, _WORD = 1, 2, 4, 8, 16, 32, 64, 128


def _classes() -> npt.NDArray[np.uint8]:
    table = np.zeros(256, dtype=np.uint8)
    digits, upper, lower = b"0123456789", bytes(range(65, 91)), bytes(range(97, 123))
    for characters, flag in (
        (digits + upper + lower + b"_-", _TOKEN), (digits, _DIGIT), (upper, _UPPER), (lower, _LOWER), (b"@", _AT),
        (b":", _COLON), (b"0123456789abcdefABCDEF", _HEX), (digits + upper + lower + b"_", _WORD),
    ):  # fmt: skip
        table[list(characters)] |= flag
    return table


_CLASSES = _classes()
#: Prefixes of keys; three bytes are compared here, the rest by the rules.
PREFIXES = (
    b"AKIA", b"ASIA", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"gith", b"glpa", b"xoxa", b"xoxb", b"xoxe", b"xoxo",
    b"xoxp", b"xoxr", b"xoxs", b"xapp", b"sk_l", b"rk_l", b"AIza", b"npm_", b"pypi", b"sk-", b"hf_", b"eyJ", b"dop_",
    b"shpa",
)  # fmt: skip
_PREFIXES = np.array([int.from_bytes(prefix[:3], "little") for prefix in PREFIXES], dtype=np.int64)
_FIRST = np.zeros(256, dtype=np.bool_)
_FIRST[[prefix[0] for prefix in PREFIXES]] = True
_BEGIN = np.frombuffer(b"-----BEGIN", dtype=np.uint8)


@dataclass(frozen=True)
class PiiPlaces:
    """Candidates in the order of the texts, [P].

    Args:
        doc: row of the text.
        kind: one of `AT`, …, `PEM`.
        start, end: bytes from the beginning of the text; a rule may read further than `end`.
        meaning: bits of `pii_words` of the words near it.
    """

    doc: I64
    kind: I64
    start: I64
    end: I64
    meaning: I64


def places(texts: pa.Array) -> PiiPlaces:
    """All candidates of a column of texts."""
    data, offsets = utf8(texts)
    capacity = 1024 + int(offsets[-1] - offsets[0]) // 128
    while True:
        found = np.empty((capacity, 5), np.int64)
        size = _scan(data, offsets, found)
        if size <= capacity:
            return PiiPlaces(*found[:size].T.copy())
        capacity = size


@njit(inline="always")
def _put(found: I64, size: Any, doc: Any, kind: Any, start: Any, end: Any, meaning: Any) -> Any:
    """Note a candidate, or count it only once `found` is full."""
    if size < found.shape[0]:
        found[size, 0], found[size, 1], found[size, 2], found[size, 3] = doc, kind, start, end
        found[size, 4] = meaning
    return size + 1


@njit(nogil=True, cache=True)
def _scan(data: U8, offsets: I64, found: I64) -> int:
    size = 0
    for doc in range(offsets.size - 1):
        first, end = offsets[doc], offsets[doc + 1]
        at = first
        while at < end:
            kind = _CLASSES[data[at]]
            if kind & _TOKEN:
                start, seen = at, 0
                while at < end and _CLASSES[data[at]] & _TOKEN:
                    seen |= _CLASSES[data[at]]
                    at += 1
                if seen & _DIGIT:
                    size = _digits(data, first, start, at, end, doc, found, size)
                if at - start >= _BEGIN.size and data[start] == 45 and _is_begin(data, start, at):
                    size = _put(found, size, doc, PEM, start - first, at - first, 0)
                elif at - start >= MIN_RUN and seen & (_UPPER | _LOWER):
                    size = _run(data, first, start, at, doc, found, size)
                continue
            if kind & _AT and _is_address(data, first, at, end):
                size = _put(found, size, doc, AT, at - first, at + 1 - first, 0)
            elif kind & _COLON:
                start, stop = _hexes(data, first, at, end)
                if stop:
                    size = _put(found, size, doc, HEXES, start - first, stop - first, 0)
            at += 1
    return size


@njit(nogil=True, cache=True)
def _is_begin(data: U8, start: int, end: int) -> bool:
    same = True
    for i in range(_BEGIN.size):
        same &= data[start + i] == _BEGIN[i]
    return same


@njit(nogil=True, cache=True)
def _is_address(data: U8, first: int, at: int, end: int) -> bool:
    """Whether an `@` has a name or a password before it, and a label, a dot and two letters after it."""
    if at == first or data[at - 1] <= 32:
        return False
    letters, dots = 0, 0
    for i in range(at + 1, min(end, at + 256)):
        kind = _CLASSES[data[i]]
        if kind & (_UPPER | _LOWER) or data[i] >= 128:
            letters += 1
        elif data[i] == 46:
            if i == at + 1:
                return False
            dots, letters = dots + 1, 0
        elif kind & _TOKEN:
            letters = 0
        else:
            break
        if dots and letters >= 2:
            return True
    return False


@njit(nogil=True, cache=True)
def _hexes(data: U8, first: int, at: int, end: int) -> tuple[int, int]:
    """The run around the first colon of hexadecimal groups if it has the form of an IPv6 address, else (0, 0)."""
    start = at
    while start > first and at - start < 5 and _CLASSES[data[start - 1]] & _HEX:
        start -= 1
    before = data[start - 1] if start > first else np.uint8(32)
    if at - start > 4 or _CLASSES[before] & _WORD or before == 58 or before == 46:
        return 0, 0
    colons, doubles, group, stop = 0, 0, at - start, at
    while stop < end and stop - start < 48:
        byte = data[stop]
        if byte == 58:
            doubles += stop > start and data[stop - 1] == 58
            colons += 1
            group = 0
        elif _CLASSES[byte] & _HEX:
            group += 1
            if group > 4:
                return 0, 0
        else:
            break
        stop += 1
    after = data[stop] if stop < end else np.uint8(32)
    if _CLASSES[after] & _WORD or stop - start < 5 or not ((doubles == 1 and colons >= 2) or colons == 7):
        return 0, 0
    return start, stop


@njit(nogil=True, cache=True)
def _run(data: U8, first: int, start: int, end: int, doc: int, found: I64, size: int) -> int:
    """Note a long run that begins as keys do, or that changes between kinds of characters beside a word for keys."""
    if _FIRST[data[start]]:
        three = np.int64(data[start]) | np.int64(data[start + 1]) << 8 | np.int64(data[start + 2]) << 16
        for i in range(_PREFIXES.size):
            if _PREFIXES[i] == three:
                return int(_put(found, size, doc, RUN, start - first, end - first, 0))
    changes, before = 0, 0
    for at in range(start, min(end, start + 256)):
        kind = _CLASSES[data[at]] & (_DIGIT | _UPPER | _LOWER)
        changes += kind != before and kind != 0 and before != 0
        before = kind
    if changes >= 4:
        meaning = context(data, max(first, start - 40), start, True)
        if meaning:
            return int(_put(found, size, doc, RUN, start - first, end - first, meaning))
    return size


@njit(nogil=True, cache=True)
def context(data: U8, start: int, end: int, backwards: bool) -> int:
    """Bits of all words in `data[start:end]`, nearest first, up to one that means something else."""
    meaning, passed = 0, 0
    while start < end:
        at = end - 1 if backwards else start
        if not _is_letter(data[at]):
            if backwards:
                end -= 1
            else:
                start += 1
            continue
        if backwards:
            at = end
            while at > start and _is_letter(data[at - 1]):
                at -= 1
            found, end = _look_up(data, at, end), at
        else:
            while at < end and _is_letter(data[at]):
                at += 1
            found, start = _look_up(data, start, at), at
        if found & OTHER and not meaning:
            return 0
        meaning |= found
        passed += 1
    return meaning & ~OTHER


@njit(inline="always")
def _is_letter(byte: Any) -> Any:
    return byte >= 128 or _CLASSES[byte] & (_UPPER | _LOWER) != 0


@njit(nogil=True, cache=True)
def _look_up(data: U8, start: int, end: int) -> int:
    hashed = uint64(0xCBF29CE484222325)
    for at in range(start, end):
        byte = data[at]
        hashed = (hashed ^ uint64(byte + 32 if 65 <= byte <= 90 else byte)) * uint64(0x100000001B3)
    slot = np.int64(hashed & uint64(SIZE - 1))
    while HASHES[slot]:
        if HASHES[slot] == hashed:
            return int(WORD_MEANINGS[slot])
        slot = (slot + 1) & (SIZE - 1)
    return 0


@njit(nogil=True, cache=True)
def _digits(data: U8, first: int, start: int, stop: int, end: int, doc: int, found: I64, size: int) -> int:
    """Note the numbers that begin in `data[start:stop]`."""
    for at in range(start, stop):
        if not _CLASSES[data[at]] & _DIGIT or (at > first and _CLASSES[data[at - 1]] & _DIGIT):
            continue
        before = data[at - 1] if at > first else np.uint8(32)
        kind = _CLASSES[before]
        if kind & (_UPPER | _LOWER):
            size = _lettered(data, first, at, end, doc, found, size)
        elif not (kind & _TOKEN):
            inside = at - 1 > first and _CLASSES[data[at - 2]] & _DIGIT
            if inside and (before == 46 or before == 47 or before == 44 or before == 58):
                continue  # `.`, `/`, `,`, `:` between digits: the number began before
            size = _number(data, first, at, end, doc, found, size)
    return size


@njit(nogil=True, cache=True)
def _lettered(data: U8, first: int, at: int, end: int, doc: int, found: I64, size: int) -> int:
    """Note one, two or six capitals and then digits: Spanish NIE, IBAN and British, Italian numbers."""
    start = at
    while start > first and at - start < 7 and _CLASSES[data[start - 1]] & _UPPER:
        start -= 1
    letters = at - start
    if letters not in (1, 2, 6) or (start > first and _CLASSES[data[start - 1]] & (_WORD | _TOKEN)):
        return size
    digits, stop = 0, at
    while stop < end and stop - at < 42:
        kind = _CLASSES[data[stop]]
        if not kind & (_DIGIT | _UPPER) and not (data[stop] == 32 and data[stop - 1] != 32):
            break
        digits += (kind & _DIGIT) != 0
        stop += 1
    if digits < 6:
        return size
    meaning = context(data, max(first, start - BEFORE), start, True)
    return int(_put(found, size, doc, LETTERED, start - first, stop - first, meaning))


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
        if _CLASSES[data[stop]] & _DIGIT:
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
        size = _put(found, size, doc, DOTTED, at - first, stop - first, 0)
    if digits < MIN_DIGITS:
        return size
    start = at - 1 if before == 43 or before == 40 else at
    meaning = context(data, max(first, start - BEFORE), start, True)
    meaning |= context(data, stop, min(end, stop + AFTER), False) & ~(1 | 8)  # not of the next phone, the next key
    strong = _strong(form, between, groups, digits, before) or _born(data, at, form)
    if meaning or strong or (trunk and digits >= 9 and _area(form, between, before)):
        return int(_put(found, size, doc, NUMBER, at - first, stop - first, meaning))
    return size


@njit(inline="always")
def _joint(data: U8, at: Any, end: Any) -> Any:
    """Bytes between two groups of one number: one of ` -./`, or up to three with a bracket or a hard space; else 0."""
    byte = data[at]
    following = data[at + 1] if at + 1 < end else np.uint8(0)
    third = data[at + 2] if at + 2 < end else np.uint8(0)
    plain = byte == 32 or byte == 45 or byte == 46 or byte == 47
    if plain and _CLASSES[following] & _DIGIT:
        return 1
    if byte == 41 and _CLASSES[following] & _DIGIT:
        return 1
    closed = byte == 41 and (following == 32 or following == 45 or following == 47)
    if ((plain and following == 40) or closed) and _CLASSES[third] & _DIGIT:
        return 2
    if byte == 0xC2 and following == 0xA0 and _CLASSES[third] & _DIGIT:
        return 2
    return 0


@njit(inline="always")
def _slash(data: U8, at: Any, end: Any) -> Any:
    """Bytes of a slash between spaces, perhaps after a bracket, before a digit; else 0."""
    start = at + 1 if data[at] == 41 else at
    if start + 3 < end and data[start] == 32 and data[start + 1] == 47 and data[start + 2] == 32:
        return start + 3 - at if _CLASSES[data[start + 3]] & _DIGIT else 0
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
        while at < end and length < 4 and _CLASSES[data[at]] & _DIGIT:
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
    more = data[at] == 46 and at + 1 < end and _CLASSES[data[at + 1]] & _DIGIT
    return not more and not _CLASSES[data[at]] & _TOKEN


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
