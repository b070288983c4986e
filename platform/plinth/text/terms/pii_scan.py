"""Candidates for personal data: one pass over the bytes that stops only where a rule may match.

The pass walks over runs of letters, digits, `_` and `-`; only runs with digits, long runs, `@` and `:` are examined,
each over a bounded number of bytes, so the time is linear in any text. The candidates are a superset of the matches of
the `pii` annotator, whose rules decide. Numbers without a form of their own are reported only near words that give
their meaning (`pii_words`).

Does not belong here: check digits, registries of addresses, replacements.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.terms.pii_numbers import digits
from plinth.text.terms.pii_places import (
    AT,
    AT_SIGN,
    CLASSES,
    COLON,
    DIGIT,
    HEX,
    HEXES,
    LOWER,
    PEM,
    RUN,
    TOKEN,
    UPPER,
    WORD,
    PiiPlaces,
    put,
)
from plinth.text.terms.pii_words import context
from plinth.text.unicode.codepoints import utf8
from plinth.text.words.ngrams import I64, U8

MIN_RUN = 16
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


@njit(nogil=True, cache=True)
def _scan(data: U8, offsets: I64, found: I64) -> int:
    size = 0
    for doc in range(offsets.size - 1):
        first, end = offsets[doc], offsets[doc + 1]
        at = first
        while at < end:
            kind = CLASSES[data[at]]
            if kind & TOKEN:
                start, seen = at, 0
                while at < end and CLASSES[data[at]] & TOKEN:
                    seen |= CLASSES[data[at]]
                    at += 1
                if seen & DIGIT:
                    size = digits(data, first, start, at, end, doc, found, size)
                if at - start >= _BEGIN.size and data[start] == 45 and _is_begin(data, start, at):
                    size = put(found, size, doc, PEM, start - first, at - first, 0)
                elif at - start >= MIN_RUN and seen & (UPPER | LOWER):
                    size = _run(data, first, start, at, doc, found, size)
                continue
            if kind & AT_SIGN and _is_address(data, first, at, end):
                size = put(found, size, doc, AT, at - first, at + 1 - first, 0)
            elif kind & COLON:
                start, stop = _hexes(data, first, at, end)
                if stop:
                    size = put(found, size, doc, HEXES, start - first, stop - first, 0)
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
        kind = CLASSES[data[i]]
        if kind & (UPPER | LOWER) or data[i] >= 128:
            letters += 1
        elif data[i] == 46:
            if i == at + 1:
                return False
            dots, letters = dots + 1, 0
        elif kind & TOKEN:
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
    while start > first and at - start < 5 and CLASSES[data[start - 1]] & HEX:
        start -= 1
    before = data[start - 1] if start > first else np.uint8(32)
    if at - start > 4 or CLASSES[before] & WORD or before == 58 or before == 46:
        return 0, 0
    colons, doubles, group, stop = 0, 0, at - start, at
    while stop < end and stop - start < 48:
        byte = data[stop]
        if byte == 58:
            doubles += stop > start and data[stop - 1] == 58
            colons += 1
            group = 0
        elif CLASSES[byte] & HEX:
            group += 1
            if group > 4:
                return 0, 0
        else:
            break
        stop += 1
    after = data[stop] if stop < end else np.uint8(32)
    if CLASSES[after] & WORD or stop - start < 5 or not ((doubles == 1 and colons >= 2) or colons == 7):
        return 0, 0
    return start, stop


@njit(nogil=True, cache=True)
def _run(data: U8, first: int, start: int, end: int, doc: int, found: I64, size: int) -> int:
    """Note a long run that begins as keys do, or that changes between kinds of characters beside a word for keys."""
    if _FIRST[data[start]]:
        three = np.int64(data[start]) | np.int64(data[start + 1]) << 8 | np.int64(data[start + 2]) << 16
        for i in range(_PREFIXES.size):
            if _PREFIXES[i] == three:
                return int(put(found, size, doc, RUN, start - first, end - first, 0))
    changes, before = 0, 0
    for at in range(start, min(end, start + 256)):
        kind = CLASSES[data[at]] & (DIGIT | UPPER | LOWER)
        changes += kind != before and kind != 0 and before != 0
        before = kind
    if changes >= 4:
        meaning = context(data, max(first, start - 40), start, True)
        if meaning:
            return int(put(found, size, doc, RUN, start - first, end - first, meaning))
    return size
