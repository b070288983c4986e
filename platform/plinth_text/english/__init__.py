"""Words and sentences of English text as in spaCy's blank pipeline; datatrove's filters count these words.

A word is a spaCy token that is not white space. A chunk is the text between white space. Prefixes and suffixes are
split off the chunk's ends until none is left or an exception remains. If the rest is an exception, it is divided into
its pieces; if it is a URL, it is one word; otherwise, it is split at infixes (`spacy/tokenizer.pyx`). Most chunks
consist of letters and are one word.

    rules.json  the data: classes of characters, exceptions, units (written by tests/agreement/english_rules.py)
    affixes.h   the prefixes, suffixes and infixes at which a chunk is split
    urls.h      test whether a chunk is a URL, and therefore one word

Any difference from spaCy is a defect. Tests compare this package with spaCy on documents of the test machine, on the
exceptions and on random text.
"""

from __future__ import annotations

import json
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from plinth_text import shared
from plinth_text.arrays import I32, I64, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.unicode import C_DECIMAL, C_WORD, SPACE, classes, flags
from plinth_text.words import slot as slot_of
from plinth_text.words import slots

#: Flags of a code point. BLANK: white space. INERT: takes part in no rule but that for whole exceptions.
BLANK, INERT, PREFIX, SUFFIX, INFIX, LETTER, LOWER, UPPER, QUOTE, BEFORE_PERIOD = (1 << k for k in range(10))
#: Parts of URLs: host names, schemes, numbers. END ends a sentence, MARK is punctuation for Unicode, JOINT may split.
HOST, NAME, NUMBER, END, MARK, JOINT = (1 << k for k in range(10, 16))

#: Maximum bytes of an exception, and maximum characters of a unit.
LONGEST, LONGEST_UNIT = 63, 8
_CLASSES = {
    "prefix": PREFIX, "suffix": SUFFIX, "infix": INFIX, "letter": LETTER, "lower": LOWER, "upper": UPPER,
    "quote": QUOTE, "before_period": BEFORE_PERIOD,
}  # fmt: skip
#: Places in `EnglishRules.tables`, and the size of its two sets.
UNIT_BITS, EXCEPTION_BITS = 9, 12
UNITS, ENDS = 0, 1 << UNIT_BITS
#: Bits of the hash of an exception's first byte, last byte and size; one chunk in twenty passes by chance.
_ENDS_BITS = 15
EXCEPTIONS = ENDS + (1 << _ENDS_BITS) // 64
PIECES = EXCEPTIONS + (1 << EXCEPTION_BITS)
SIZES = PIECES + (1 << EXCEPTION_BITS)


class EnglishRules(NamedTuple):
    """Tables of the rules, in two arrays: kernels are called for every chunk, and each argument costs time.

    Args:
        flags: flags of each code point, [0x110000].
        tables: four tables in one array.
            From `UNITS`: hash set of the units that are split off after a digit.
            From `ENDS`: bits by the hash of first byte, last byte and size; a bit is set if an exception has this hash.
            From `EXCEPTIONS`: hash set of the exceptions.
            From `PIECES`: for each slot of that set, the sizes of the exception's pieces in bytes, up to a 0.
    """

    flags: U16
    tables: U64


@lru_cache(maxsize=1)
def source() -> dict[str, Any]:
    """Return the content of `rules.json`."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("rules.json").read_text("utf-8"))
    return found


@lru_cache(maxsize=1)
def rules() -> EnglishRules:
    """Return the tables of all rules."""
    return with_exceptions(source()["exceptions"])


def with_exceptions(given: list[str]) -> EnglishRules:
    """Return the tables of the rules for a list of exceptions.

    Each exception in the list is written as its pieces, separated by spaces.
    """
    tables, sizes = np.zeros(SIZES, dtype=np.uint64), [0]
    for unit in source()["after_digit"]:
        points = np.array([ord(one) for one in unit], dtype=np.int32)
        _add(tables, UNITS, UNIT_BITS, unit_hash(points, 0, points.size))
    for spaced in given:
        parts = [part.encode() for part in spaced.split(" ")]
        whole = np.frombuffer(b"".join(parts), dtype=np.uint8)
        bit = ends_hash(whole, 0, whole.size)
        tables[ENDS + (bit >> 6)] |= np.uint64(1 << (bit & 63))
        slot = _add(tables, EXCEPTIONS, EXCEPTION_BITS, run_hash(whole, 0, whole.size))
        tables[slot + PIECES - EXCEPTIONS] = SIZES + len(sizes)
        sizes += [*map(len, parts), 0]
    return EnglishRules(_flags(), np.concatenate([tables, np.array(sizes, dtype=np.uint64)]))


def _add(tables: U64, base: int, bits: int, value: int) -> int:
    """Add a hash to a set in `tables`, and return its slot."""
    slot = -1 - find(tables, base, bits, value)
    tables[slot] = value
    return slot


@lru_cache(maxsize=1)
def _flags() -> U16:
    table = np.zeros(0x110000, dtype=np.uint16)
    for name, flag in _CLASSES.items():
        for low, high in _ranges(source()[name]):
            table[low : high + 1] |= np.uint16(flag)
    for low, high in ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), (0xA1, 0xFFFF)):
        table[low : high + 1] |= np.uint16(HOST)
    table[[ord(one) for one in source()["sentence_ends"]]] |= np.uint16(END)
    python = classes()
    table[(python & C_WORD) != 0] |= np.uint16(NAME)
    table[(python & C_DECIMAL) != 0] |= np.uint16(NUMBER)
    table[[p for p in range(0x20000) if unicodedata.category(chr(p)).startswith("P")]] |= np.uint16(MARK)
    table[[ord(one) for one in ".,-–—~:<>=/+*^"]] |= np.uint16(JOINT)
    table[(table & INFIX) != 0] |= np.uint16(JOINT)
    blank = (flags() & SPACE) != 0
    table[blank] |= np.uint16(BLANK)
    table[(~blank & ((table & (PREFIX | SUFFIX | INFIX)) == 0)).nonzero()[0]] |= np.uint16(INERT)
    table[[p for p in range(128) if not chr(p).isalpha()]] &= np.uint16(0xFFFF ^ INERT)
    return table


def _ranges(spelled: str) -> list[tuple[int, int]]:
    pairs = [one.partition("-") for one in spelled.split(" ")]
    return [(int(low, 16), int(high or low, 16)) for low, _, high in pairs]


@compiled
def unit_hash(points: I32, low: int, high: int) -> int:
    """Return a 64-bit hash of code points, which is never 0."""


@compiled
def run_hash(data: U8, start: int, end: int) -> int:
    """Return a 64-bit hash of bytes, which is never 0."""


@compiled
def ends_hash(data: U8, start: int, end: int) -> int:
    """Return a hash of `_ENDS_BITS` bits, computed from the first byte, the last byte and the size."""


@compiled
def find(tables: U64, base: int, bits: int, value: int) -> int:
    """Return the slot of a hash in a set of `tables`. If the hash is absent, return -1 minus the empty slot for it."""


# Exceptions that stand across words once a text is split: spaCy looks for them in the end and puts them together.
#
# `foo():` splits to `foo ( ) :`, and `):` is an exception (an emoticon). An exception that splitting without exceptions
# would cut into several words is looked for as that row of words; the longest wins, then the first, and what overlaps
# one that was looked at is left alone (`Tokenizer._apply_special_cases`). Words with one space between them match too,
# and then stay as they are: no exception has a space.


class Merges(NamedTuple):
    """Exceptions that a splitter without exceptions would cut into several words. A row has the words of one exception.

    Args:
        pairs: bit 256 * a + b is set if a row starts with words whose first bytes are a and b.
        rows: hash set of all beginnings of rows that have at least two words.
        whole: 1 for each slot of `rows` that is a whole row, else 0.
        most: number of words in the longest row.
    """

    pairs: U64
    rows: U64
    whole: U8
    most: int


def merges_of(given: list[list[U8]]) -> Merges:
    """Return the `Merges` tables for exceptions that are given as rows of words."""
    pairs, rows = np.zeros(1024, dtype=np.uint64), slots(sum(map(len, given)) + 1)
    whole = np.zeros(rows.size, dtype=np.uint8)
    for row in given:
        bit = 256 * int(row[0][0]) + int(row[1][0])
        pairs[bit >> 6] |= np.uint64(1 << (bit & 63))
        value = run_hash(row[0], 0, row[0].size)
        for word in row[1:]:
            value = longer(value, word, 0, word.size)
            slot = slot_of(rows, value)
            rows[slot] = value
        whole[slot] = 1
    return Merges(pairs, rows, whole, max(map(len, given), default=0))


@compiled
def longer(value: int, data: U8, start: int, end: int) -> int:
    """Return the hash of a row of words after one more word is appended. The hash is never 0."""


class Splitter(NamedTuple):
    """Tables, and scratch memory for the longest text of a column.

    Args:
        rules, merges: the tables.
        points: code points of a chunk.
        places: start of each code point; the second half has the starts of the chunk's suffixes, from the last.
        matched: for each word, bit n is set if an exception of n words starts there.
        starts, taken, copy: buffers for exceptions across words.
    """

    rules: EnglishRules
    merges: Merges
    points: I32
    places: I32
    matched: npt.NDArray[np.uint64]
    starts: I64
    taken: U8
    copy: I32

    def arguments(self) -> tuple[Any, ...]:
        """Return the arrays in the order of the kernels' arguments (`ENGLISH_SPLITTER` in `tables.h`)."""
        rules, merges, *buffers = self
        return *rules, *merges, *buffers


def splitter(longest: int) -> Splitter:
    """Return a splitter for texts of up to `longest` bytes. Memory pages that are not used cost nothing."""
    return _splitter(rules(), _merges(), longest)


def edge_buffer(longest: int) -> I32:
    """Return a buffer for the word edges of a text of `longest` bytes, in which every character may be a word."""
    return np.empty(2 * longest + 4, dtype=np.int32)


def _splitter(tables: EnglishRules, merges: Merges, longest: int) -> Splitter:
    return Splitter(
        tables, merges, np.empty(longest + 1, dtype=np.int32), np.empty(2 * longest + 2, dtype=np.int32),
        np.empty(longest + 1, dtype=np.uint64), np.empty(longest + 1, dtype=np.int64),
        np.empty(longest + 1, dtype=np.uint8), edge_buffer(longest),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _merges() -> Merges:
    """Return the exceptions that consist of several words when they are split without exceptions."""
    bare, found = _splitter(with_exceptions([]), merges_of([]), 256), []
    for spaced in source()["exceptions"]:
        text = np.frombuffer(spaced.replace(" ", "").encode(), dtype=np.uint8)
        edges = edge_buffer(text.size)
        count = split(text, 0, text.size, *bare.arguments(), edges)  # type: ignore[call-arg]
        if count > 1:
            found.append([text[edges[2 * i] : edges[2 * i + 1]].copy() for i in range(count)])
    return merges_of(found)


@compiled
def split(
    data: U8, start: int, end: int, flags: U16, tables: U64, pairs: U64, rows: U64, whole: U8, most: int,
    points: I32, places: I32, matched: U64, starts: I64, taken: U8, copy: I32, edges: I32,
) -> int:  # fmt: skip
    """Split `data[start:end]` into words and return their number; word i is `data[edges[2 * i] : edges[2 * i + 1]]`.

    The arguments between `end` and `edges` are those of `Splitter.arguments()`.
    """


# The words of a column of texts, split once for all that count them.

_MOST = 2**31 - 1


class ColumnWords(NamedTuple):
    """All W words of the texts of a column. Both arrays are empty if no words are needed.

    Args:
        first: [texts + 1] text d has the words `first[d]:first[d + 1]`.
        edges: [2 * W] word i is `text[edges[2 * i] : edges[2 * i + 1]]`, in bytes from the start of its text.
    """

    first: I64
    edges: I32


NO_WORDS = ColumnWords(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))


def column_words(data: U8, offsets: I64) -> ColumnWords:
    """Return the words of a column of texts. `data` and `offsets` are those that `unicode.utf8` returns."""
    words: ColumnWords = shared.of_column(data, offsets, "words", _column_words)
    return words


def _column_words(data: U8, offsets: I64) -> ColumnWords:
    longest = int(np.diff(offsets).max(initial=0))
    if longest > _MOST:
        raise ValueError(f"a text of {longest} bytes")
    first = np.zeros(offsets.size, dtype=np.int64)
    edges = np.empty(2 * int(offsets[-1] - offsets[0]) + 2, dtype=np.int32)  # untouched pages cost nothing
    split_all(data, offsets, *splitter(longest).arguments(), first, edges)  # type: ignore[call-arg]
    return ColumnWords(first, edges)


@compiled
def split_all(
    data: U8, offsets: I64, flags: U16, tables: U64, pairs: U64, rows: U64, whole: U8, most: int, points: I32,
    places: I32, matched: U64, starts: I64, taken: U8, copy: I32, first: I64, edges: I32,
) -> None:  # fmt: skip
    """Split all texts into words, and write the arrays of `ColumnWords`.

    The arguments between `offsets` and `first` are those of `Splitter.arguments()`.
    """


# How many sentences a text has for spaCy's rule-based splitter (`spacy/pipeline/sentencizer.pyx`).
#
# A sentence starts with the first word behind an end of a sentence that is neither an end nor punctuation. White space
# counts as a word unless it is one space between words.


@compiled
def sentences(
    data: U8, start: int, end: int, flags: U16, tables: U64, pairs: U64, rows: U64, whole: U8, most: int,
    points: I32, places: I32, matched: U64, starts: I64, taken: U8, copy: I32, edges: I32,
) -> int:  # fmt: skip
    """Return the number of sentences in `data[start:end]`, at least one. The parameters are those of `split`."""
