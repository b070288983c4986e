"""Lines of Arrow `large_string` columns: positions, sizes and two hashes of each, in one pass.

A line ends with U+000A and includes it. Its hashes are over its text folded as in `fold`: lower-cased, runs of
white space one space, none at the ends; so lines that differ in case or white space alone are equal. A line
without a letter or digit is **blank** when it has only white space, else **structural** (rules, brackets).
A **paragraph** is a maximal run of lines that are not blank; its hashes are over those of its lines.

Letters: L lines of all texts of a column, P paragraphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import uint64

from plinth.compiled import njit
from plinth.text.unicode.codepoints import LETTER, LOWER, SEPARATOR, WIDE_SPACES, decode, kind, utf8
from plinth.text.words.ngrams import I64, U8, U64
from plinth.text.words.word_hashes import mix

I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

#: Odd factors of the two hashes: from the digits of the golden ratio and of the square root of 2.
_HIGH, _LOW = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x6A09E667F3BCC909)
_SPACE, _WORD, _OTHER = 1, 2, 0


def _ascii() -> tuple[U8, U8]:
    classes, folded = np.zeros(128, dtype=np.uint8), np.zeros(128, dtype=np.uint8)
    for byte in range(128):
        space = byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31
        classes[byte] = _SPACE if space else _WORD if chr(byte).isalnum() else _OTHER
        folded[byte] = ord(chr(byte).lower())
    return classes, folded


_ASCII_CLASS, _ASCII_LOWER = _ascii()


@dataclass(frozen=True)
class HashedLines:
    """The lines of a column of texts.

    Args:
        starts: [D + 1] text d has lines `starts[d]:starts[d + 1]`.
        byte: [L + 1] first byte of each line in the column's buffer, and the end of the last one.
        start_cp, end_cp: [L] code points in the text, half open; the line end is inside.
        high, low: [L] hashes; both 0 for a blank line.
        size: [L] characters that are no white space.
        words: [L] words, as `ngrams` counts them but for those that a line end splits.
        alphanumeric: [L] whether the line has a letter or digit.
    """

    starts: I64
    byte: I64
    start_cp: I32
    end_cp: I32
    high: U64
    low: U64
    size: I32
    words: I32
    alphanumeric: Bools


@dataclass(frozen=True)
class Paragraphs:
    """Paragraphs of a column: first and one past the last line [P], hashes [P], characters [P]."""

    first: I64
    last: I64
    high: U64
    low: U64
    size: I64
    alphanumeric: Bools


def lines(texts: pa.Array) -> HashedLines:
    """Find and hash the lines of every text. A text of no characters has no lines."""
    data, offsets = utf8(texts)
    count = int(np.count_nonzero(data[offsets[0] : offsets[-1]] == 10)) + offsets.size - 1
    starts, byte = np.zeros(offsets.size, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    cp, numbers = np.zeros((2, count), dtype=np.int32), np.zeros((2, count), dtype=np.int32)
    hashes, alphanumeric = np.zeros((2, count), dtype=np.uint64), np.zeros(count, dtype=np.bool_)
    found = _scan(data, offsets, starts, byte, cp, hashes, numbers, alphanumeric)
    byte[found] = offsets[-1]
    return HashedLines(
        starts, byte[: found + 1], cp[0, :found], cp[1, :found], hashes[0, :found], hashes[1, :found],
        numbers[0, :found], numbers[1, :found], alphanumeric[:found],
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _scan(
    data: U8, offsets: I64, starts: I64, byte: I64, cp: Any, hashes: U64, numbers: Any, alphanumeric: Bools
) -> int:
    count = 0
    for doc in range(offsets.size - 1):
        at, end, point = offsets[doc], offsets[doc + 1], 0
        while at < end:
            byte[count], cp[0, count] = at, point
            at, point = _line(data, at, end, point, count, hashes, numbers, alphanumeric)
            cp[1, count] = point
            count += 1
        starts[doc + 1] = count
    return count


@njit(inline="always")
def _line(data: Any, at: Any, end: Any, cp: Any, line: Any, hashes: Any, numbers: Any, alphanumeric: Any) -> Any:
    """One line from `data[at]` on; returns where the next begins, in bytes and code points."""
    high, low = uint64(0), uint64(0)
    size, words, inside, pending, has_alphanumeric = 0, 0, False, False, False
    while at < end:
        first = data[at]
        if first < 128:
            what, point, length = _ASCII_CLASS[first], np.uint32(_ASCII_LOWER[first]), 1
            word, joins = what == _WORD or first == 95, True
        else:
            code, length = decode(data, at, end)
            group = kind(code)
            what = _SPACE if _wide_space(code) else _OTHER if group == SEPARATOR else _WORD
            word = what == _WORD
            point = LOWER[code] if code < LOWER.size else np.uint32(code)
            joins = group == LETTER  # a character of a script without spaces is a word of its own
        at += length
        cp += 1
        if what == _SPACE:
            pending = True
        else:
            if pending and size:
                high, low = (high ^ uint64(32)) * _HIGH, (low + uint64(32)) * _LOW
            high, low = (high ^ uint64(point)) * _HIGH, (low + uint64(point)) * _LOW
            high ^= high >> uint64(29)
            pending = False
            size += 1
            has_alphanumeric |= what == _WORD
        words += word and not (inside and joins)
        inside = word and joins
        if first == 10:
            break
    hashes[0, line], hashes[1, line] = (mix(high), mix(low)) if size else (uint64(0), uint64(0))
    numbers[0, line], numbers[1, line] = size, words
    alphanumeric[line] = has_alphanumeric
    return at, cp


@njit(inline="always")
def _wide_space(point: Any) -> Any:
    found = False
    for i in range(WIDE_SPACES.size):
        found |= WIDE_SPACES[i] == point
    return found


def paragraphs(found: HashedLines) -> Paragraphs:
    """The paragraphs of every text, in order."""
    most = found.high.size
    spans, hashes = np.zeros((3, most), dtype=np.int64), np.zeros((2, most), dtype=np.uint64)
    alphanumeric = np.zeros(most, dtype=np.bool_)
    count = _blocks(found.starts, found.high, found.low, found.size, found.alphanumeric, spans, hashes, alphanumeric)
    return Paragraphs(
        spans[0, :count], spans[1, :count], hashes[0, :count], hashes[1, :count], spans[2, :count], alphanumeric[:count]
    )


@njit(nogil=True, cache=True)
def _blocks(
    starts: I64, high: U64, low: U64, size: I32, by_line: Bools, spans: I64, hashes: U64, alphanumeric: Bools
) -> int:
    count = -1
    for doc in range(starts.size - 1):
        within = False
        for line in range(starts[doc], starts[doc + 1]):
            if size[line] and not within:
                count += 1
                spans[0, count] = line
            within = size[line] > 0
            if within:
                spans[1, count] = line + 1
                spans[2, count] += size[line]
                hashes[0, count] = mix((hashes[0, count] ^ high[line]) * _HIGH + uint64(1))
                hashes[1, count] = mix((hashes[1, count] ^ low[line]) * _LOW + uint64(1))
                alphanumeric[count] |= by_line[line]
    return count + 1


def edges(found: HashedLines, count: int) -> Bools:
    """[L] whether a line is among the first or last `count` lines of its text, blank lines not counted."""
    out = np.zeros(found.high.size, dtype=np.bool_)
    _edges(found.starts, found.size, count, out)
    return out


@njit(nogil=True, cache=True)
def _edges(starts: I64, size: I32, count: int, out: Bools) -> None:
    for doc in range(starts.size - 1):
        seen = 0
        for line in range(starts[doc], starts[doc + 1]):
            if size[line] and seen < count:
                out[line] = True
                seen += 1
        seen = 0
        for line in range(starts[doc + 1] - 1, starts[doc] - 1, -1):
            if size[line] and seen < count:
                out[line] = True
                seen += 1


@njit(nogil=True, cache=True)
def close_gaps(starts: I64, size: I32, cut: npt.NDArray[np.uint8]) -> None:
    """Cut blank lines that cut lines leave behind, in place: between two lines that stay, one blank run stays.

    Args:
        starts, size: of `HashedLines`.
        cut: [L] 0, or why a line is cut; a blank line takes the reason of the cut line before it.
    """
    for doc in range(starts.size - 1):
        why, blank_before, blank_now = np.uint8(0), True, False  # the start of a text needs no blank line
        for line in range(starts[doc], starts[doc + 1]):
            if size[line] == 0:
                if why and (blank_before and not blank_now):
                    cut[line] = why
                else:
                    blank_now = True
            elif cut[line]:
                why = cut[line]
                blank_before, blank_now = blank_before or blank_now, False
            else:
                why, blank_before, blank_now = np.uint8(0), False, False
