"""Passages of n words: anchors that rule out repetition, hashes, and positions of words in the text.

Words are those of `ngrams`. A **window** is n successive words of one text; a text of fewer has none. A window's
**anchor** is the smallest hash of the k-grams in it, of equal ones the last (winnowing: Schleimer, Wilkerson
and Aiken 2003). Equal windows have equal anchors, wherever they are; successive windows mostly share one. So
the anchors, one in about (n - k) / 2 words, show which windows cannot be repeated; most windows are never hashed.

Letters: D texts of a column, W words of all of them, N windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import uint64

from plinth.compiled import njit
from plinth.text.unicode.codepoints import LOWER, SEPARATOR, SINGLE, decode, kind, utf8
from plinth.text.words.ngrams import I64, U8, U64, hash_ngrams, ngram_hashes
from plinth.text.words.word_hashes import mix

Bools = npt.NDArray[np.bool_]

_HIGH, _LOW = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)

#: By ASCII byte: the lower-cased byte of a word character, else 0.
_ASCII = np.array([ord(chr(b).lower()) if chr(b).isalnum() or b == 95 else 0 for b in range(128)], dtype=np.uint8)


@dataclass(frozen=True)
class Windows:
    """The windows of a column.

    Args:
        words: [W] hashes of all words; word_starts: [D + 1] text d has `words[word_starts[d]:word_starts[d + 1]]`.
        starts: [D + 1] text d has windows `starts[d]:starts[d + 1]`, window i from its word i on.
        anchors: [N]; fresh: [N] whether a window's anchor lies elsewhere than that of the window before.
    """

    words: U64
    word_starts: I64
    starts: I64
    anchors: U64
    fresh: Bools


def windows(texts: pa.Array, n: int) -> Windows:
    """The windows of `n` words of every text, with anchors among k-grams of n // 2 words."""
    word_starts, words = ngram_hashes(texts, 1)
    counts = np.maximum(np.diff(word_starts) - n + 1, 0)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    anchors, fresh = np.empty(starts[-1], dtype=np.uint64), np.zeros(starts[-1], dtype=np.bool_)
    grams = np.empty(int(np.diff(word_starts).max(initial=0)), dtype=np.uint64)
    _anchors(words, word_starts, starts, n, max(1, n // 2), grams, anchors, fresh)
    return Windows(words, word_starts, starts, anchors, fresh)


@njit(nogil=True, cache=True)
def _anchors(words: U64, word_starts: I64, starts: I64, n: int, k: int, grams: U64, anchors: U64, fresh: Bools) -> None:
    span = n - k + 1
    for doc in range(starts.size - 1):
        count = starts[doc + 1] - starts[doc]
        if count == 0:
            continue
        hash_ngrams(words[word_starts[doc] :], word_starts[doc + 1] - word_starts[doc], k, grams)
        best, last = -1, -1
        for i in range(count):
            newest = i + span - 1
            if best < i:
                best = i
                for j in range(i + 1, newest + 1):
                    best = j if grams[j] <= grams[best] else best
            elif grams[newest] <= grams[best]:
                best = newest
            anchors[starts[doc] + i] = grams[best]
            fresh[starts[doc] + i] = best != last
            last = best


def window_keys(found: Windows, n: int, wanted: Bools) -> tuple[U64, U64]:
    """128-bit keys, as halves, of the wanted windows, in order: equal words give equal keys."""
    high, low = (np.empty(int(np.count_nonzero(wanted)), dtype=np.uint64) for _ in range(2))
    _keys(found.words, found.word_starts, found.starts, n, wanted, high, low)
    return high, low


@njit(nogil=True, cache=True)
def _keys(words: U64, word_starts: I64, starts: I64, n: int, wanted: Bools, high: U64, low: U64) -> None:
    """Two rolling polynomials modulo 2^64, over words and over words mixed again."""
    top_a, top_b = uint64(1), uint64(1)
    for _ in range(n):
        top_a, top_b = top_a * _HIGH, top_b * _LOW
    count = 0
    for doc in range(starts.size - 1):
        a, b, rolled = uint64(0), uint64(0), -1  # the window that a and b are of
        for i in range(starts[doc + 1] - starts[doc]):
            if not wanted[starts[doc] + i]:
                continue
            base = word_starts[doc] + i
            if rolled >= 0 and rolled == i - 1:
                gone, new = words[base - 1], words[base + n - 1]
                a = a * _HIGH + new - gone * top_a
                b = b * _LOW + mix(new ^ _LOW) - mix(gone ^ _LOW) * top_b
            else:
                a, b = uint64(0), uint64(0)
                for j in range(base, base + n):
                    a = a * _HIGH + words[j]
                    b = b * _LOW + mix(words[j] ^ _LOW)
            rolled = i
            high[count], low[count] = mix(a), mix(b)
            count += 1


@dataclass(frozen=True)
class WordPositions:
    """The V words of one text: their positions, and their folded form.

    Args:
        start_cp, end_cp: [V] code points; start_byte, end_byte: [V] bytes of its UTF-8; half open.
        folded: words in lower case, each followed by a space; ends: [V + 1] where word i begins in it, and the end.
    """

    start_cp: I64
    end_cp: I64
    start_byte: I64
    end_byte: I64
    folded: bytes
    ends: I64

    def passage(self, first: int, count: int) -> bytes:
        """`count` folded words from word `first` on."""
        return self.folded[self.ends[first] : self.ends[first + count]]


def word_positions(text: str) -> WordPositions:
    """Positions of the words of a text: the same words, in number and order, as `ngrams` hashes."""
    data, offsets = utf8(pa.array([text], pa.large_string()))
    size = int(offsets[1])
    places, ends = np.zeros((4, size // 2 + 2), dtype=np.int64), np.zeros(size // 2 + 3, dtype=np.int64)
    folded = np.empty(2 * size + 2, dtype=np.uint8)
    count = _place(data, size, places, ends, folded)
    start_cp, end_cp, start_byte, end_byte = (row[:count] for row in places)
    return WordPositions(start_cp, end_cp, start_byte, end_byte, folded[: ends[count]].tobytes(), ends[: count + 1])


@njit(nogil=True, cache=True)
def _place(data: U8, end: int, places: npt.NDArray[np.int64], ends: I64, folded: U8) -> int:
    count, at, cp, out, inside = 0, 0, 0, 0, False
    while at < end:
        length, what = 1, np.uint8(SEPARATOR)
        point = uint64(data[at])
        if data[at] < 128:
            if _ASCII[data[at]]:
                what, point = np.uint8(0), uint64(_ASCII[data[at]])
        else:
            code, length = decode(data, at, end)
            what = kind(code)
            point = uint64(LOWER[code] if code < LOWER.size else code)
        if inside and what != 0:
            places[1, count], places[3, count] = cp, at
            count, out = _close(count, out, folded, ends)
            inside = False
        if what != SEPARATOR:
            if not inside:
                places[0, count], places[2, count] = cp, at
            out = _encode(point, folded, out)
            inside = what != SINGLE
        at += length
        cp += 1
        if what == SINGLE:
            places[1, count], places[3, count] = cp, at
            count, out = _close(count, out, folded, ends)
    if inside:
        places[1, count], places[3, count] = cp, at
        count, out = _close(count, out, folded, ends)
    return count


@njit(nogil=True, cache=True)
def _close(count: int, out: int, folded: U8, ends: I64) -> tuple[int, int]:
    folded[out] = 32
    ends[count + 1] = out + 1
    return count + 1, out + 1


@njit(nogil=True, cache=True)
def _encode(point: int, out: U8, at: int) -> int:
    """A code point as UTF-8 into `out`; returns the position after it."""
    if point < 0x80:
        out[at] = point
        return at + 1
    if point < 0x800:
        out[at], out[at + 1] = 0xC0 | (point >> 6), 0x80 | (point & 0x3F)
        return at + 2
    if point < 0x10000:
        out[at], out[at + 1] = 0xE0 | (point >> 12), 0x80 | ((point >> 6) & 0x3F)
        out[at + 2] = 0x80 | (point & 0x3F)
        return at + 3
    out[at], out[at + 1] = 0xF0 | (point >> 18), 0x80 | ((point >> 12) & 0x3F)
    out[at + 2], out[at + 3] = 0x80 | ((point >> 6) & 0x3F), 0x80 | (point & 0x3F)
    return at + 4
