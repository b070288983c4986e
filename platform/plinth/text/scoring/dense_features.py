"""Surface features of a text: lengths, shares of character classes, lines, repetition.

Quantities like those of Gopher, C4 and FineWeb (Rae et al. 2021; Raffel et al. 2020; Penedo et al. 2024), and of a
page's layout. The rules themselves are in `text.rules`. One pass over the bytes for characters and lines,
one over the words.

Letters: D texts, N features.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.unicode.codepoints import LOWER, SEPARATOR, decode, kind, utf8
from plinth.text.words.hash_sets import FNV, PRIME, seen, shift_for, slot_count, slots
from plinth.text.words.ngrams import I64, U8, U64
from plinth.text.words.word_hashes import hash_words, scratch

#: Columns of counts.
(POINTS, LETTERS, UPPER, DIGITS, MARKS, BRACKETS, WIDE, BLANKS, SHOUTS, CHUNKS, LINES, ENDED, SHORT, BULLETS, COPIES,
 COPIED, WORDS, DISTINCT, PAIRS, COMMON, LONGEST) = range(21)  # fmt: skip

#: Names of the features, in the order of their columns.
NAMES = (
    "log_characters", "log_words", "characters_per_word", "words_per_chunk", "upper", "digits", "marks", "brackets",
    "wide", "blanks", "shouts_per_chunk", "lines_per_chunk", "characters_per_line", "ended_lines", "short_lines",
    "bullet_lines", "repeated_lines", "repeated_line_characters", "distinct_words", "distinct_pairs", "common_words",
    "longest_run",
)  # fmt: skip

SHORT_LINE = 30  # characters, as in FineWeb
#: Bits of an ASCII byte's class.
_LETTER, _UPPER, _DIGIT, _MARK, _BRACKET, _BLANK, _SHOUT, _END, _BULLET = (1 << bit for bit in range(9))

#: The commonest English words, which lists and keyword spam lack.
_COMMON = "the be to of and a in that have i it for not on with he as you do at is was are this but his by from they"
COMMON_WORDS = frozenset(_COMMON.split())


def _classes() -> npt.NDArray[np.uint16]:
    table = np.zeros(256, dtype=np.uint16)
    for byte in range(128):
        one = chr(byte)
        table[byte] |= _LETTER * one.isalpha() | _UPPER * one.isupper() | _DIGIT * one.isdigit()
        table[byte] |= _BLANK * (one.isspace()) | _MARK * (one.isprintable() and not one.isalnum() and one != " ")
    for characters, flag in (("{}[]()<>=;_/\\|", _BRACKET), ("!?", _SHOUT), (".!?\"')", _END), ("-*+", _BULLET)):
        table[[ord(one) for one in characters]] |= flag
    return table


_CLASSES = _classes()


def dense(texts: pa.Array) -> npt.NDArray[np.float32]:
    """Features of every text, [D, N], all finite; shares are 0 where there is nothing to divide by."""
    return from_counts(counts(texts))


def from_counts(counted: I64) -> npt.NDArray[np.float32]:
    """The same from counts, [D, 21]."""
    n = counted.astype(np.float64)

    def share(above: int, below: int) -> npt.NDArray[np.float64]:
        out: npt.NDArray[np.float64] = np.divide(n[:, above], n[:, below], out=np.zeros(len(n)), where=n[:, below] != 0)
        return out

    columns = [
        np.log1p(n[:, POINTS]), np.log1p(n[:, WORDS]), share(LETTERS, WORDS), share(WORDS, CHUNKS),
        share(UPPER, LETTERS), share(DIGITS, POINTS), share(MARKS, POINTS), share(BRACKETS, POINTS),
        share(WIDE, POINTS), share(BLANKS, POINTS), share(SHOUTS, CHUNKS), share(LINES, CHUNKS), share(POINTS, LINES),
        share(ENDED, LINES), share(SHORT, LINES), share(BULLETS, LINES), share(COPIES, LINES), share(COPIED, POINTS),
        share(DISTINCT, WORDS), share(PAIRS, WORDS), share(COMMON, WORDS), np.log1p(n[:, LONGEST]),
    ]  # fmt: skip
    return np.stack(columns, axis=1).astype(np.float32) if len(n) else np.zeros((0, len(NAMES)), np.float32)


def counts(texts: pa.Array) -> I64:
    """The counts behind the features, [D, 21]: code points; letters and digits (beyond ASCII: all that separates no
    words), upper-case letters, ASCII digits, ASCII marks, brackets and signs of programs, characters beyond ASCII,
    white space, `!` and `?`; chunks between white space; lines with anything in them, those that end a sentence, are
    short, start with a bullet, repeat an earlier one, and characters of those; words, distinct words and pairs of
    them, common English words; the longest run of one character that is no white space."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 21), dtype=np.int64)
    keys = slots(int(np.diff(offsets).max(initial=0)) // 2 + 2)
    _characters(data, offsets, _CLASSES, keys, out)
    _words(data, offsets, _common_hashes(), scratch(offsets), keys, out)
    return out


@lru_cache(maxsize=1)
def _common_hashes() -> U64:
    data, offsets = utf8(pa.array([_COMMON], pa.large_string()))
    words = scratch(offsets)
    return np.unique(words[: hash_words(data, offsets[0], offsets[1], words)])


@njit(nogil=True, cache=True)
def _characters(data: U8, offsets: I64, table: Any, keys: U64, out: I64) -> None:
    for doc in range(offsets.size - 1):
        n, at, end = out[doc], offsets[doc], offsets[doc + 1]
        slots_used = slot_count(min(_line_ends(data, at, end), (end - at) // 2) + 1)
        shift = shift_for(slots_used)
        keys[:slots_used] = 0
        size, value, in_chunk, run, before = 0, FNV, False, 0, np.int64(-1)
        first: Any = 0
        last: Any = 0
        while at <= end:
            point, length = np.int64(10), 1  # the text's end ends its last line
            if at < end:
                point = np.int64(data[at])
                if point >= 128:
                    point, length = decode(data, at, end)
                flag = np.int64(table[point]) if point < 128 else _wide(point)
                n[POINTS] += 1
                n[LETTERS] += (flag & (_LETTER | _DIGIT)) != 0
                n[UPPER] += (flag & _UPPER) != 0
                n[DIGITS] += (flag & _DIGIT) != 0
                n[MARKS] += (flag & _MARK) != 0
                n[BRACKETS] += (flag & _BRACKET) != 0
                n[WIDE] += point >= 128
                n[SHOUTS] += (flag & _SHOUT) != 0
                blank = (flag & _BLANK) != 0
                n[BLANKS] += blank
                n[CHUNKS] += not blank and not in_chunk
                in_chunk = not blank
                if not blank:
                    run = run + 1 if point == before else 1
                    n[LONGEST] = max(n[LONGEST], run)
                    first = flag if first == 0 else first
                    last = flag
                    size += 1
                    value = (value ^ np.uint64(point)) * PRIME
                before = point
            if point == 10:
                if size:
                    n[LINES] += 1
                    n[ENDED] += (last & _END) != 0
                    n[SHORT] += size <= SHORT_LINE
                    n[BULLETS] += (first & _BULLET) != 0
                    if seen(keys, slots_used, shift, value):
                        n[COPIES] += 1
                        n[COPIED] += size
                size, first, last, value = 0, 0, 0, FNV
            at += length


@njit(inline="always")
def _wide(point: Any) -> Any:
    """The class of a code point beyond ASCII; never 0, so that a line that starts with it has a first character."""
    flag = np.int64(_MARK) if kind(point) == SEPARATOR else np.int64(_LETTER)
    if point == 0xA0 or point == 0x3000 or 0x2000 <= point <= 0x200A or 0x2028 <= point <= 0x2029:
        flag = np.int64(_BLANK)
    if point < LOWER.size and LOWER[point] != point:
        flag |= _UPPER
    if point == 0x2022 or point == 0x25CF or point == 0x25AA:
        flag |= _BULLET
    if point == 0x2026 or point == 0x201D or point == 0x3002 or point == 0xFF01 or point == 0xFF1F:
        flag |= _END
    return flag


@njit(nogil=True, cache=True)
def _line_ends(data: U8, start: int, end: int) -> int:
    found = 0
    for at in range(start, end):
        found += data[at] == 10
    return found


@njit(nogil=True, cache=True)
def _words(data: U8, offsets: I64, common: U64, words: U64, keys: U64, out: I64) -> None:
    for doc in range(offsets.size - 1):
        n = out[doc]
        count = hash_words(data, offsets[doc], offsets[doc + 1], words)
        slots_used = slot_count(count)
        shift = shift_for(slots_used)
        keys[:slots_used] = 0
        n[WORDS] = count
        for i in range(count):
            n[DISTINCT] += not seen(keys, slots_used, shift, words[i])
            place = np.searchsorted(common, words[i])
            n[COMMON] += place < common.size and common[place] == words[i]
        keys[:slots_used] = 0
        for i in range(count - 1):
            n[PAIRS] += not seen(keys, slots_used, shift, words[i] * PRIME + words[i + 1])
