"""Counts behind Gopher's quality rules (Rae et al. 2021, table A1).

Words are what spaCy's blank English tokenizer splits, as in datatrove, or what white space separates, as in the
paper. Lines are those of `str.splitlines`. Words are found first and then looked at eight bytes at a time; lines end
between words that white space separates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import uint64

from plinth.compiled import kernel, njit
from plinth.text.english.columns import I32, NO_WORDS, ColumnWords, column_words
from plinth.text.unicode.characters import ALPHA, BREAK, PUNCTUATION, flags
from plinth.text.unicode.codepoints import decode, utf8
from plinth.text.words.chunks import read
from plinth.text.words.ngrams import I64, U8
from plinth.text.words.split import edge_buffer, split

#: Columns of `gopher_counts`.
(WORDS, PLAIN_WORDS, PLAIN_CHARACTERS, HASHES, ELLIPSES, LINES, BULLETS, ELLIPSIS_LINES, ALPHA_WORDS, STOP_WORDS) = (
    range(10)
)

HASH, HYPHEN, DOT = 0x23, 0x2D, 0x2E
#: U+2022 and U+2026 are these two bytes and a third one.
_GENERAL, _BULLET, _ELLIPSIS = (0xE2, 0x80), 0xA2, 0xA6

_STOP_WORDS = (b"the", b"be", b"to", b"of", b"and", b"that", b"have", b"with")
#: A factor that sends the eight words, as integers, to eight places (found by trial).
_SEND = np.uint64(0xC42DDDC22F41F7CD)
_STOPS = np.zeros(8, dtype=np.uint64)
for _word in _STOP_WORDS:
    _value = np.frombuffer(_word.ljust(8, b"\0"), dtype=np.uint64)[0]
    _STOPS[int(_value) * int(_SEND) % 2**64 >> 61] = _value
_EACH = 0x0101010101010101
_BLOCK = 256  # bytes searched at once for what is rare
_TOPS = np.uint64(0x80 * _EACH)
_LOWER = np.uint64(0x20 * _EACH)


def gopher_counts(texts: pa.Array, english: bool = False) -> I64:
    """Counts of each text, [documents, 10]: all words, words that are not only symbols and their characters,
    `#`, ellipses, lines, lines that start with a bullet, lines that end with an ellipsis, words with a
    letter, and how many of Gopher's eight stop words occur. `english`: words are spaCy's."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 10), dtype=np.int64)
    words = column_words(data, offsets) if english else NO_WORDS
    _gopher(data, offsets, flags(), words, edge_buffer(offsets, np.int32), out)
    return out


@kernel
def _gopher(data: U8, offsets: I64, table: U8, words: ColumnWords, edges: I32, out: I64) -> None:
    for doc in range(offsets.size - 1):
        text, size = data[offsets[doc] :], offsets[doc + 1] - offsets[doc]
        n = split(text, 0, size, table, edges)
        _symbols(text[:size], out[doc])
        _lines(text, 0, size, edges, n, table, out[doc])
        if words.first.size:
            first, last = words.first[doc], words.first[doc + 1]
            _words(text, words.edges[2 * first :], last - first, table, out[doc])
        else:
            _words(text, edges, n, table, out[doc])


@kernel
def _words(data: U8, edges: I32, n: int, table: U8, counts: I64) -> None:
    """Words, those with a letter, those that are not only symbols and their characters, and stop words."""
    stops, plain_words, plain_characters, alpha_words = uint64(0), 0, 0, 0
    for i in range(n):
        start, end = edges[2 * i], edges[2 * i + 1]
        length, letters, digits, wide = end - start, uint64(0), uint64(0), uint64(0)
        for at in range(start, end, 8):
            eight = read(data, at, min(8, end - at))
            wide |= eight & _TOPS
            letters |= _between(eight | _LOWER, 97, 122)
            digits |= _between(eight, 48, 57)
            slot = (eight * _SEND) >> uint64(61)
            stops |= uint64((_STOPS[slot] == eight) & (length <= 4)) << slot
        letter, plain = letters != 0, (letters | digits) != 0  # in ASCII, only symbols are neither
        if wide:
            length, letter, plain = _wide_word(data, start, end, table)
        alpha_words += letter
        plain_words += plain
        plain_characters += length * plain
    counts[WORDS], counts[ALPHA_WORDS] = n, alpha_words
    counts[PLAIN_WORDS], counts[PLAIN_CHARACTERS] = plain_words, plain_characters
    for k in range(_STOPS.size):
        counts[STOP_WORDS] += np.int64((stops >> uint64(k)) & uint64(1))


@njit(inline="always")
def _between(eight: Any, low: int, high: int) -> Any:
    """The top bits of those of eight ASCII bytes that are from `low` to `high`."""
    return ((eight + uint64((128 - low) * _EACH)) ^ (eight + uint64((127 - high) * _EACH))) & _TOPS


@kernel
def _wide_word(data: U8, start: int, end: int, table: U8) -> tuple[int, bool, bool]:
    """Characters of a word, whether one is a letter, and whether one is no symbol."""
    length, letter, plain, at = 0, False, False, start
    while at < end:
        point, size = np.int64(data[at]), 1
        if point >= 128:
            point, size = decode(data, at, end)
        letter |= (table[point] & ALPHA) != 0
        plain |= (table[point] & PUNCTUATION) == 0
        length += 1
        at += size
    return length, letter, plain


@kernel
def _symbols(text: U8, counts: I64) -> None:
    """`#`, and ellipses: three dots, each dot in one of them alone, or U+2026."""
    hashes, after = 0, 3
    for byte in text:
        hashes += byte == HASH
    counts[HASHES] = hashes
    for low in range(0, text.size, _BLOCK):
        high = min(text.size, low + _BLOCK)
        if _any_ellipsis(text[max(0, low - 2) : high]):
            after = max(after, low + 1)
            while after <= high:
                found = _ellipsis(text, after)
                counts[ELLIPSES] += found
                after += 3 if found else 1


@njit(inline="always")
def _any_ellipsis(text: Any) -> Any:
    """Whether there may be one: the loop vectorises."""
    found = False
    first, second, third = text[:-2], text[1:-1], text[2:]
    for at in range(third.size):
        found |= (first[at] == second[at]) & (second[at] == third[at]) & (third[at] == DOT)
        found |= (first[at] == _GENERAL[0]) & (third[at] == _ELLIPSIS)
    return found


@njit(inline="always")
def _ellipsis(data: Any, end: Any) -> Any:
    """Whether three dots or U+2026 end here."""
    first, second, third = data[end - 3], data[end - 2], data[end - 1]
    wide = first == _GENERAL[0] and second == _GENERAL[1] and third == _ELLIPSIS
    return wide or (first == DOT and second == DOT and third == DOT)


@kernel
def _lines(data: U8, start: int, end: int, edges: I32, n: int, table: U8, counts: I64) -> None:
    """Lines, those that start with a bullet and those that end with an ellipsis. All line ends are white space."""
    first, unended = 0, False  # first word of this line; whether it has characters
    for i in range(n + 1):  # the white space before word i
        at, stop = edges[2 * i - 1] if i else start, edges[2 * i] if i < n else end
        unended |= i > 0
        if stop == at + 1 and data[at] == 32:
            unended = True
            continue
        previous = np.int64(-1)
        while at < stop:
            point, size = np.int64(data[at]), 1
            if point >= 128:
                point, size = decode(data, at, end)
            if table[point] & BREAK:
                if not (point == 10 and previous == 13):  # \r\n is one line end
                    _count_line(data, edges, first, i, counts)
                first, unended = i, False
            else:
                unended = True
            previous = point
            at += size
    if unended:
        _count_line(data, edges, first, n, counts)


@njit(inline="always")
def _count_line(data: Any, edges: Any, first: Any, after: Any, counts: Any) -> None:
    """Count a line of the words from `first` to before `after`."""
    counts[LINES] += 1
    if first < after:
        at, last, end = edges[2 * first], edges[2 * after - 2], edges[2 * after - 1]
        wide = data[at] == _GENERAL[0] and data[at + 1] == _GENERAL[1] and data[at + 2] == _BULLET
        counts[BULLETS] += wide or data[at] == HYPHEN
        counts[ELLIPSIS_LINES] += end - last >= 3 and _ellipsis(data, end)
