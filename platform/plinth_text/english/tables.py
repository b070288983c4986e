"""spaCy's rules for blank English as tables for kernels (`tables.h` has the same flags and places)."""

from __future__ import annotations

import json
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plinth_text.arrays import I32, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.unicode.characters import SPACE, flags
from plinth_text.unicode.classes import DECIMAL, WORD, classes

#: Flags of a code point. BLANK: white space. INERT: takes part in no rule but that for whole exceptions.
BLANK, INERT, PREFIX, SUFFIX, INFIX, LETTER, LOWER, UPPER, QUOTE, BEFORE_PERIOD = (1 << k for k in range(10))
#: Parts of URLs: host names, schemes, numbers. END ends a sentence, MARK is punctuation for Unicode, JOINT may split.
HOST, NAME, NUMBER, END, MARK, JOINT = (1 << k for k in range(10, 16))

#: An exception is at most so many bytes, a unit so many characters.
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
    """The tables, two arrays for all: kernels are called for every chunk, and each argument costs time.

    Args:
        flags: by code point, [0x110000].
        tables: from `UNITS` on hashes of what is split off behind a digit, as a set; from `ENDS` on a bit by hash of
            first byte, last byte and size, set where an exception has it; from `EXCEPTIONS` on their hashes,
            as a set; from `PIECES` on by slot of that set where their pieces start: sizes in bytes, 0 behind the last.
    """

    flags: U16
    tables: U64


@lru_cache(maxsize=1)
def source() -> dict[str, Any]:
    """The content of `rules.json`."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("rules.json").read_text("utf-8"))
    return found


@lru_cache(maxsize=1)
def rules() -> EnglishRules:
    """All tables."""
    return with_exceptions(source()["exceptions"])


def with_exceptions(given: list[str]) -> EnglishRules:
    """The tables with these exceptions, each as its pieces with a space between them."""
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
    """Put a hash into a set of `tables`; returns its slot."""
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
    table[(python & WORD) != 0] |= np.uint16(NAME)
    table[(python & DECIMAL) != 0] |= np.uint16(NUMBER)
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
    """Return a 64-bit hash, not 0, of code points."""


@compiled
def run_hash(data: U8, start: int, end: int) -> int:
    """Return a 64-bit hash, not 0, of bytes."""


@compiled
def ends_hash(data: U8, start: int, end: int) -> int:
    """Return a hash of `_ENDS_BITS` bits of the first byte, the last byte and the size."""


@compiled
def find(tables: U64, base: int, bits: int, value: int) -> int:
    """Return the slot of a hash in a set of `tables`, or -1 less the empty slot where it belongs."""
