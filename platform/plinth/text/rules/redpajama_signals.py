"""RedPajama-v2's heuristic quality signals of a text (Weber et al. 2024, table 2; RedPajama-Data, `quality_signals`).

Two kinds of words: **raw** ones are runs of `\\w`, or of characters that are neither `\\w` nor white space;
**normalised** ones are separated by white space in the text without ASCII punctuation, in lower case and in Unicode's
form NFD, in which characters are counted. Lines end with `\\n`, which is part of them. Signals of lines are averaged
over the lines.

A code point is normalised by a table; a text with a capital sigma, or with combining marks that change places, is
normalised by Python instead.
"""

from __future__ import annotations

import string
import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.unicode.classes import NOT_UPPER, SPACE, UPPER, WORD, classes, expansions
from plinth.text.unicode.codepoints import decode, utf8
from plinth.text.words.hash_sets import FNV, PRIME
from plinth.text.words.ngrams import I64, U8, U64
from plinth.text.words.repeated_ngrams import covered, extend, ngram_buffers, repeated_words

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]

#: Columns of `signals`.
COLUMNS = (
    "word_count", "mean_word_characters", "unique_words", "unigram_entropy", "top_2_gram", "top_3_gram", "top_4_gram",
    "duplicate_5_grams", "duplicate_6_grams", "duplicate_7_grams", "duplicate_8_grams", "duplicate_9_grams",
    "duplicate_10_grams", "lorem_ipsum", "javascript_words", "line_words", "line_numerical_characters",
    "raw_words", "symbol_ratio", "no_letter_words", "upper_case_words", "stop_words", "curly_brackets", "sentences",
    "lines", "ellipsis_lines", "bullet_lines", "terminal_lines", "line_upper_case_characters",
)  # fmt: skip
(
    _WORDS, _MEAN, _UNIQUE, _ENTROPY, _TOP_2, _, _, _REPEATED_5, _, _, _, _, _, _LOREM, _JAVASCRIPT, _LINE_WORDS,
    _LINE_NUMERICAL, _RAW, _SYMBOLS, _NO_LETTER, _CAPITALS, _STOPS, _CURLY, _SENTENCES, _LINES, _ELLIPSES, _BULLETS,
    _TERMINALS, _LINE_UPPER,
) = range(len(COLUMNS))  # fmt: skip

_HASH, _DOT, _ELLIPSIS, _QUOTE, _SIGMA, _NEWLINE = 0x23, 0x2E, 0x2026, 0x201D, 0x3A3, 10
#: Characters that start a line as a list's item does.
_BULLET_POINTS = np.array(
    [0x2022, 0x2023, 0x25B6, 0x25C0, 0x25E6, 0x25A0, 0x25A1, 0x25AA, 0x25AB, 0x2013], dtype=np.int64
)
_DROPPED = np.array([chr(byte) in string.punctuation for byte in range(128)])
_LOWER = np.array([ord(chr(byte).lower()) for byte in range(128)], dtype=np.uint64)
_ASCII_LETTER = np.array([chr(byte).isalpha() for byte in range(128)])


def _packed(word: str) -> np.uint64:
    return np.uint64(int.from_bytes(word.encode(), "big"))


_LOREM_WORD, _IPSUM_WORD, _FIVE = _packed("lorem"), _packed("ipsum"), np.uint64((1 << 40) - 1)


def word_hash(word: str) -> int:
    """The hash of a word, for look-ups among stop words and for equality of normalised words."""
    value = int(FNV)
    for character in word:
        value = ((value ^ ord(character)) * int(PRIME)) & 0xFFFFFFFFFFFFFFFF
    return value


_JAVASCRIPT_HASH = np.uint64(word_hash("javascript"))


def signals(texts: pa.Array, stop_words: frozenset[str] = frozenset()) -> F64:
    """Signals of each text, [documents, 29] in the order of `COLUMNS`, not rounded; zeros for an empty one.

    Args:
        stop_words: raw words that count as such, in their case.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(COLUMNS)), dtype=np.float64)
    stops = np.sort(np.array([word_hash(word) for word in stop_words], dtype=np.uint64))
    _raw(data, offsets, classes(), stops, out)
    some = np.flatnonzero(_normalise(texts, False, out))
    if some.size:
        plain = pa.array([normalised(text) for text in texts.take(pa.array(some)).to_pylist()], pa.large_string())
        rows = np.zeros((some.size, len(COLUMNS)), dtype=np.float64)
        _normalise(plain, True, rows)
        out[some, :_RAW] = rows[:, :_RAW]
    return out


def _normalise(texts: pa.Array, plain: bool, out: F64) -> npt.NDArray[np.bool_]:
    """The signals of normalised words; returns which texts the table cannot normalise. `plain`: already normalised."""
    data, offsets = utf8(texts)
    hard = np.zeros(len(texts), dtype=np.bool_)
    keys, counts, spots, ids, words, characters = ngram_buffers(int(np.diff(offsets).max(initial=0)))
    form = expansions()
    _normal(
        data, offsets, classes(), form.starts, form.points, form.numeric, form.combines, plain, keys, counts, spots,
        ids, words, characters, out, hard,
    )  # fmt: skip
    return hard


def normalised(text: str) -> str:
    """Without ASCII punctuation, in lower case and in the form NFD; line ends stay."""
    kept = text.encode().translate(None, string.punctuation.encode()).decode()
    return unicodedata.normalize("NFD", kept.lower())


@njit(nogil=True, cache=True)
def _raw(data: U8, offsets: I64, table: U16, stops: U64, out: F64) -> None:
    """The signals of raw words, characters and lines."""
    for doc in range(offsets.size - 1):
        row = out[doc]
        at, end = offsets[doc], offsets[doc + 1]
        characters, symbols, curly, dots_in_text, worded = 0, 0, 0, 0, False
        kind, letter, upper, other, value = 0, False, False, False, FNV  # of the token that is open; 0 is none
        size, capitals, first, last, dots, previous = 0, 0, np.int64(-1), np.int64(-1), 0, np.int64(-1)  # of the line
        while at < end:
            point, step = np.int64(data[at]), 1
            if point >= 128:
                point, step = decode(data, at, end)
            at += step
            flag = table[point]
            now = 0 if flag & SPACE else (1 if flag & WORD else 2)
            if now != kind:
                if kind:
                    _end_token(row, kind, letter, upper and not other, value, stops)
                kind, letter, upper, other, value = now, False, False, False, FNV
            characters += 1
            size += 1
            capitals += (flag & UPPER) != 0
            if now:
                letter |= bool(point < 128 and _ASCII_LETTER[point])
                upper |= bool(flag & UPPER)
                other |= bool(flag & NOT_UPPER)
                value = (value ^ np.uint64(point)) * PRIME
                first = point if first < 0 else first
                last = point
                dots = (dots + 1 if previous == _DOT else 1) if point == _DOT else 0
                worded |= now == 1
                if now == 2:
                    symbols += (point == _HASH) | (point == _ELLIPSIS)
                    curly += (point == 0x7B) | (point == 0x7D)
                    if point == _DOT or point == 0x21 or point == 0x3F:
                        row[_SENTENCES] += worded
                        worded = False
            dots_in_text = dots_in_text + 1 if point == _DOT else 0
            if dots_in_text == 3:
                symbols += 1
                dots_in_text = 0
            previous = point
            if point == _NEWLINE:
                _end_line(row, size, capitals, first, last, dots)
                size, capitals, first, last, dots = 0, 0, np.int64(-1), np.int64(-1), 0
        if kind:
            _end_token(row, kind, letter, upper and not other, value, stops)
        if size:
            _end_line(row, size, capitals, first, last, dots)
        row[_SENTENCES] += worded
        row[_CURLY] = curly / max(characters, 1)
        raw, lines = max(row[_RAW], 1), max(row[_LINES], 1)
        row[_SYMBOLS] = symbols / raw
        row[_NO_LETTER] = 1 - row[_NO_LETTER] / raw if row[_RAW] else 0.0
        row[_CAPITALS] /= raw
        row[_STOPS] /= raw
        for column in range(_ELLIPSES, _LINE_UPPER + 1):
            row[column] /= lines


@njit(inline="always")
def _end_token(row: Any, kind: Any, letter: Any, upper: Any, value: Any, stops: Any) -> None:
    row[_RAW] += 1
    row[_NO_LETTER] += letter  # words with one; turned round at the end
    row[_CAPITALS] += upper
    if stops.size and kind == 1:
        place = np.searchsorted(stops, value)
        row[_STOPS] += place < stops.size and stops[place] == value


@njit(inline="always")
def _end_line(row: Any, size: Any, capitals: Any, first: Any, last: Any, dots: Any) -> None:
    row[_LINES] += 1
    row[_ELLIPSES] += dots >= 3 or last == _ELLIPSIS
    row[_TERMINALS] += last in (_DOT, 0x21, 0x3F, _QUOTE)
    row[_LINE_UPPER] += capitals / size
    if first >= 0x2013:
        for k in range(_BULLET_POINTS.size):
            row[_BULLETS] += _BULLET_POINTS[k] == first


@njit(nogil=True, cache=True)
def _normal(
    data: U8, offsets: I64, table: U16, starts: I32, points: U32, numeric: U8, combines: U8, plain: bool,
    keys: U64, counts: I32, spots: I32, ids: I32, words: U64, characters: I64, out: F64, hard: Any,
) -> None:  # fmt: skip
    """The signals of normalised words; `hard` are texts that the table does not normalise."""
    for doc in range(offsets.size - 1):
        row = out[doc]
        n, trouble = _words(
            data, offsets[doc], offsets[doc + 1], table, starts, points, numeric, combines, plain, words, characters,
            row,
        )  # fmt: skip
        hard[doc] = trouble
        if n == 0 or trouble:
            continue
        total = characters[n]
        row[_WORDS], row[_MEAN] = n, total / n
        row[_LOREM] /= total + n - 1
        found, slots = repeated_words(words, n, keys, counts, spots, ids)
        row[_UNIQUE], row[_ENTROPY] = _spread(keys, counts, slots, n)
        for size in range(2, 11):
            found, where, most = extend(spots, ids, found, keys, counts)
            if found and size < 5:
                row[_TOP_2 - 2 + size] = most * (characters[where + size] - characters[where]) / total
            elif found:
                row[_REPEATED_5 - 5 + size] = covered(spots, found, size, characters) / total


@njit(nogil=True, cache=True)
def _spread(keys: U64, counts: I32, slots: int, n: int) -> tuple[float, float]:
    """Share of different words, and the entropy of their distribution in nats."""
    different, entropy = 0, 0.0
    for slot in range(slots):
        if keys[slot]:
            different += 1
            share = counts[slot] / n
            entropy -= share * np.log(share)
    return different / n, entropy


@njit(nogil=True, cache=True)
def _words(
    data: U8, start: int, end: int, table: U16, starts: I32, points: U32, numeric: U8, combines: U8, plain: bool,
    words: U64, characters: I64, row: F64,
) -> tuple[int, bool]:  # fmt: skip
    """Hash and measure the normalised words; whether the table cannot normalise this text."""
    n, size, value, marked = 0, 0, FNV, False
    head, tail, lorem = np.uint64(0), np.uint64(0), False  # first and last five letters; whether a word ended so
    line_size, line_words, lines, shares, in_line = 0, 0, 0, 0.0, 0
    line_numeric: Any = 0
    characters[0] = 0
    at = start
    while at <= end:
        point, step = np.int64(_NEWLINE), 1
        if at < end:
            point = np.int64(data[at])
            if point >= 128:
                point, step = decode(data, at, end)
        flag = table[point]
        in_line += 1
        if flag & SPACE:
            if size:
                words[n] = value
                characters[n + 1] = characters[n] + size
                row[_LOREM] += lorem and head == _IPSUM_WORD
                row[_JAVASCRIPT] += size == 10 and value == _JAVASCRIPT_HASH
                lorem = tail == _LOREM_WORD
                n += 1
                line_words += 1
                line_size += size
                size, value, marked, head, tail = 0, FNV, False, np.uint64(0), np.uint64(0)
            if point == _NEWLINE and (at < end or in_line > 1):
                lines += 1
                if line_words:
                    shares += line_numeric / (line_size + line_words - 1)
                line_size, line_words, line_numeric, in_line = 0, 0, 0, 0
        elif point < 128:
            if plain or not _DROPPED[point]:
                letter = _LOWER[point]
                value = (value ^ letter) * PRIME
                size += 1
                line_numeric += 48 <= point <= 57
                head = head << np.uint64(8) | letter if size <= 5 else head
                tail = (tail << np.uint64(8) | letter) & _FIVE
                marked = False
        else:
            head = head << np.uint64(8) if size < 5 else head
            tail = np.uint64(0)
            if point >= numeric.size:
                value = (value ^ np.uint64(point)) * PRIME
                size += 1
                line_numeric += (flag & 32) != 0
                marked = False
            else:
                if not plain and (point == _SIGMA or (marked and combines[point] & 1)):
                    return 0, True
                marked = (combines[point] & 2) != 0
                line_numeric += np.int64(numeric[point])
                if plain:
                    value = (value ^ np.uint64(point)) * PRIME
                    size += 1
                else:
                    for k in range(starts[point], starts[point + 1]):
                        value = (value ^ np.uint64(points[k])) * PRIME
                        size += 1
        at += step
    row[_LINE_WORDS] = n / max(lines, 1)
    row[_LINE_NUMERICAL] = shares / max(lines, 1)
    return n, False
