"""Counts behind Gopher's quality rules (Rae et al. 2021, table A1) and FineWeb's (Penedo et al. 2024).

Words are what white space separates. Lines of the Gopher counts are those of `str.splitlines`, lines of the
FineWeb counts are separated by `\\n`, as in datatrove. One pass over the bytes each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from plinth.text.characters import ALPHA, BREAK, PUNCTUATION, SPACE, TERMINAL, flags
from plinth.text.codepoints import decode, utf8
from plinth.text.ngrams import I64, U8, U64
from plinth.text.sets import FNV, PRIME, room_for, seen, shift_for, slots

#: Columns of `gopher_counts`.
(WORDS, PLAIN_WORDS, PLAIN_CHARACTERS, HASHES, ELLIPSES, LINES, BULLETS, ELLIPSIS_LINES, ALPHA_WORDS, STOP_WORDS) = (
    range(10)
)
#: Columns of `fineweb_counts`.
(FULL_LINES, ENDED, SHORT, DUPLICATE_CHARACTERS, CHARACTERS, NEWLINES, ALL_WORDS) = range(7)

HASH, HYPHEN, DOT, BULLET, ELLIPSIS = 0x23, 0x2D, 0x2E, 0x2022, 0x2026

_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


def _fnv(text: str) -> int:
    value = int(FNV)
    for byte in text.encode():
        value = ((value ^ byte) * int(PRIME)) & 0xFFFFFFFFFFFFFFFF
    return value


_STOP_HASHES = np.array([_fnv(word) for word in _STOP_WORDS], dtype=np.uint64)


def gopher_counts(texts: pa.Array) -> I64:
    """Counts of each text, [documents, 10]: all words, words that are not only symbols and their characters,
    `#`, ellipses, lines, lines that start with a bullet, lines that end with an ellipsis, words with a
    letter, and how many of Gopher's eight stop words occur."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 10), dtype=np.int64)
    _gopher(data, offsets, flags(), _STOP_HASHES, out)
    return out


def fineweb_counts(texts: pa.Array, short_line: int) -> I64:
    """Counts of each text, [documents, 7]: lines with a character that is not white space, of those the ones
    that end a sentence and the ones of at most `short_line` characters, characters in repeated lines,
    characters without line ends, line ends, and words."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 7), dtype=np.int64)
    keys = slots(int(np.diff(offsets).max(initial=0)) // 2 + 1)  # a full line is a character and a line end
    _fineweb(data, offsets, flags(), short_line, keys, out)
    return out


@njit(nogil=True, cache=True)
def _gopher(data: U8, offsets: I64, table: U8, stop_hashes: U64, out: I64) -> None:
    for doc in range(offsets.size - 1):
        counts, found = out[doc], np.int64(0)  # bits: stop words found
        size_of_word, plain, alpha, value = 0, False, False, FNV
        first, last = np.int64(-1), np.int64(-1)  # first and last character of the line that is no white space
        in_line, dots, dots_in_text, previous = 0, 0, 0, np.int64(-1)
        at, end = offsets[doc], offsets[doc + 1]
        while at <= end:
            point, size = np.int64(10), 1  # the text's end ends its last word and line
            if at < end:
                point = np.int64(data[at])
            if point >= 128:
                point, size = decode(data, at, end)
            flag = table[point]
            if flag & SPACE:
                if size_of_word:
                    _count_word(counts, size_of_word, plain, alpha)
                    for k in range(stop_hashes.size):
                        found |= np.int64(stop_hashes[k] == value) << k
                    size_of_word, plain, alpha, value = 0, False, False, FNV
            else:
                size_of_word += 1
                plain |= (flag & PUNCTUATION) == 0
                alpha |= (flag & ALPHA) != 0
                for k in range(at, at + size):
                    value = (value ^ np.uint64(data[k])) * PRIME
            dots_in_text = dots_in_text + 1 if point == DOT else 0
            if dots_in_text == 3:
                counts[ELLIPSES] += 1
                dots_in_text = 0
            counts[ELLIPSES] += point == ELLIPSIS
            counts[HASHES] += point == HASH
            if flag & BREAK:
                if in_line or (at < end and not (point == 10 and previous == 13)):  # \r\n is one line end
                    counts[LINES] += 1
                    counts[BULLETS] += first in (BULLET, HYPHEN)
                    counts[ELLIPSIS_LINES] += dots >= 3 or last == ELLIPSIS
                first, last, in_line, dots = np.int64(-1), np.int64(-1), 0, 0
            else:
                in_line = 1
                if not flag & SPACE:
                    dots = (dots + 1 if previous == DOT else 1) if point == DOT else 0
                    first = point if first < 0 else first
                    last = point
            previous = point
            at += size
        for k in range(stop_hashes.size):
            counts[STOP_WORDS] += (found >> k) & 1


@njit(inline="always")
def _count_word(counts: Any, size: Any, plain: Any, alpha: Any) -> None:
    counts[WORDS] += 1
    counts[ALPHA_WORDS] += alpha
    counts[PLAIN_WORDS] += plain
    counts[PLAIN_CHARACTERS] += size if plain else 0


@njit(nogil=True, cache=True)
def _fineweb(data: U8, offsets: I64, table: U8, short_line: int, keys: U64, out: I64) -> None:
    for doc in range(offsets.size - 1):
        counts = out[doc]
        at, end = offsets[doc], offsets[doc + 1]
        room = room_for(min(_line_ends(data, at, end), (end - at) // 2) + 1)
        shift = shift_for(room)
        keys[:room] = 0
        characters, blank, in_word, flag, value = 0, True, False, np.uint8(0), FNV
        while at <= end:
            if at == end or data[at] == 10:
                if not blank:
                    counts[FULL_LINES] += 1
                    counts[ENDED] += (flag & TERMINAL) != 0
                    counts[SHORT] += characters <= short_line
                    if seen(keys, room, shift, value):
                        counts[DUPLICATE_CHARACTERS] += characters
                counts[CHARACTERS] += characters
                counts[NEWLINES] += at < end
                characters, blank, in_word, flag, value = 0, True, False, np.uint8(0), FNV
                at += 1
                continue
            point, size = np.int64(data[at]), 1
            if point >= 128:
                point, size = decode(data, at, end)
            flag = table[point]
            if flag & SPACE:
                in_word = False
            else:
                counts[ALL_WORDS] += not in_word
                in_word, blank = True, False
            for k in range(at, at + size):
                value = (value ^ np.uint64(data[k])) * PRIME
            characters += 1
            at += size


@njit(nogil=True, cache=True)
def _line_ends(data: U8, start: int, end: int) -> int:
    found = 0
    for at in range(start, end):
        found += data[at] == 10
    return found
