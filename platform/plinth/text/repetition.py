"""Repeated lines, paragraphs and word n-grams: Gopher's repetition rules (Rae et al. 2021, table A1).

Counted as datatrove counts: the first copy of a line is no duplicate; the top n-gram counts all its copies,
also when there is one; a repeated n-gram is skipped whole, so that its characters count once. Words are what
white space separates. Equality is that of 64-bit hashes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from plinth.text.characters import SPACE, flags
from plinth.text.codepoints import decode, utf8
from plinth.text.sets import FNV, PRIME, capacity, mask_for, seen

#: Columns of `repetition_shares`.
COLUMNS = (
    "duplicate_lines", "duplicate_line_characters", "duplicate_paragraphs", "duplicate_paragraph_characters",
    "top_2_gram", "top_3_gram", "top_4_gram",
    "duplicate_5_grams", "duplicate_6_grams", "duplicate_7_grams", "duplicate_8_grams", "duplicate_9_grams",
    "duplicate_10_grams",
)  # fmt: skip

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd: powers never vanish


def repetition_shares(texts: pa.Array) -> npt.NDArray[np.float64]:
    """Shares of each text, [documents, 13] in the order of `COLUMNS`, of lines, paragraphs or characters."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(COLUMNS)), dtype=np.float64)
    longest = int(np.max(np.diff(offsets))) if len(texts) else 0
    words = np.zeros(longest // 2 + 2, dtype=np.uint64)
    lengths = np.zeros(longest // 2 + 2, dtype=np.int64)
    room = capacity(longest + 1)
    keys = np.zeros(room, dtype=np.uint64)
    stamps = np.zeros(room, dtype=np.int64)
    counts = np.zeros(room, dtype=np.int32)
    firsts = np.zeros(room, dtype=np.int32)
    _repetition(data, offsets, flags(), words, lengths, keys, stamps, counts, firsts, out)
    return out


@njit(nogil=True, cache=True)
def _repetition(data, offsets, table, words, lengths, keys, stamps, counts, firsts, out):  # type: ignore[no-untyped-def]
    stamp = 0
    for doc in range(len(offsets) - 1):
        start, end = offsets[doc], offsets[doc + 1]
        total, n = _words(data, start, end, table, words, lengths)
        if total == 0:
            continue
        mask = mask_for(end - start, len(keys))
        stamp += 1
        copies, characters, all_lines = _lines(data, start, end, 1, keys, stamps, stamp, mask)
        out[doc, 0], out[doc, 1] = copies / all_lines, characters / total
        stamp += 1
        left, right = _stripped(data, start, end, table)
        copies, characters, paragraphs = _lines(data, left, right, 2, keys, stamps, stamp, mask)
        out[doc, 2], out[doc, 3] = copies / paragraphs, characters / total
        mask = mask_for(n + 1, len(keys))
        for size in range(2, 5):
            stamp += 1
            out[doc, 2 + size] = _top(words, lengths, n, size, keys, stamps, counts, firsts, stamp, mask) / total
        for size in range(5, 11):
            stamp += 1
            out[doc, 2 + size] = _repeated(words, lengths, n, size, keys, stamps, stamp, mask) / total


@njit(nogil=True, cache=True)
def _words(data, start, end, table, words, lengths):  # type: ignore[no-untyped-def]
    """Hashes and lengths of the words; returns the characters of the text and the number of words."""
    characters, n, length = 0, 0, 0
    value = FNV
    at = start
    while at < end:
        byte = data[at]
        if byte < 128:
            point, size = np.int64(byte), 1
        else:
            point, size = decode(data, at, end)
        characters += 1
        if table[point] & SPACE:
            if length:
                words[n], lengths[n] = value, length
                n += 1
            length = 0
            value = FNV
        else:
            length += 1
            for k in range(size):
                value = (value ^ np.uint64(data[at + k])) * PRIME
        at += size
    if length:
        words[n], lengths[n] = value, length
        n += 1
    return characters, n


@njit(nogil=True, cache=True)
def _stripped(data, start, end, table):  # type: ignore[no-untyped-def]
    """The text without white space at its ends, as `str.strip` leaves it."""
    left, right = start, start
    at, found = start, False
    while at < end:
        byte = data[at]
        if byte < 128:
            point, size = np.int64(byte), 1
        else:
            point, size = decode(data, at, end)
        if not (table[point] & SPACE):
            if not found:
                left, found = at, True
            right = at + size
        at += size
    return left, right


@njit(nogil=True, cache=True)
def _lines(data, start, end, breaks, keys, stamps, stamp, mask):  # type: ignore[no-untyped-def]
    """Split at runs of at least `breaks` line ends; returns repeated pieces, their characters, and all pieces."""
    copies, repeated, pieces = 0, 0, 0
    value, characters = FNV, 0
    at = start
    while at <= end:
        run = 0
        while at + run < end and data[at + run] == 10:
            run += 1
        if at == end or run >= breaks:
            pieces += 1
            if seen(keys, stamps, stamp, mask, value):
                copies += 1
                repeated += characters
            value, characters = FNV, 0
            at += run if run else 1
            if run and at == end:  # a text that ends with line ends has an empty last piece
                continue
            if at > end:
                break
            continue
        stop = at + run if run else at + 1
        while at < stop:
            value = (value ^ np.uint64(data[at])) * PRIME
            characters += (data[at] & 0xC0) != 0x80
            at += 1
    return copies, repeated, pieces


@njit(nogil=True, cache=True)
def _top(words, lengths, n, size, keys, stamps, counts, firsts, stamp, mask):  # type: ignore[no-untyped-def]
    """Characters in all copies of the most frequent n-gram, the earliest of several, words joined by one space."""
    if n < size:
        return 0
    gram, high = np.uint64(0), np.uint64(1)
    for _ in range(size - 1):
        high *= _BASE
    best, where = 0, 0
    for i in range(n):
        if i >= size:
            gram -= words[i - size] * high
        gram = gram * _BASE + words[i]
        if i < size - 1:
            continue
        first = i - size + 1
        slot = (gram ^ (gram >> np.uint64(31))) & mask
        while stamps[slot] == stamp and keys[slot] != gram:
            slot = (slot + np.uint64(1)) & mask
        if stamps[slot] != stamp:
            stamps[slot], keys[slot], counts[slot], firsts[slot] = stamp, gram, 0, first
        counts[slot] += 1
        if counts[slot] > best or (counts[slot] == best and firsts[slot] < where):
            best, where = counts[slot], firsts[slot]
    characters = size - 1
    for k in range(size):
        characters += lengths[where + k]
    return characters * best


@njit(nogil=True, cache=True)
def _repeated(words, lengths, n, size, keys, stamps, stamp, mask):  # type: ignore[no-untyped-def]
    """Characters of n-grams that occurred before, each skipped whole."""
    if n < size:
        return 0
    high = np.uint64(1)
    for _ in range(size - 1):
        high *= _BASE
    repeated, i = 0, 0
    gram, fresh = np.uint64(0), True
    while i < n - size + 1:
        if fresh:
            gram = np.uint64(0)
            for k in range(size):
                gram = gram * _BASE + words[i + k]
            fresh = False
        if seen(keys, stamps, stamp, mask, gram):
            for k in range(size):
                repeated += lengths[i + k]
            i += size
            fresh = True
        else:
            if i + size < n:
                gram = (gram - words[i] * high) * _BASE + words[i + size]
            i += 1
    return repeated
