"""spaCy's rules for blank English as tables, from `rules.json`."""

from __future__ import annotations

import json
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from plinth.compiled import kernel, njit
from plinth.text.unicode.characters import SPACE, flags
from plinth.text.unicode.classes import DECIMAL, WORD, classes
from plinth.text.words.chunks import read

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

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
_FACTOR, _SPREAD = np.uint64(0x9FB21C651E98DF25), np.uint64(0x9E3779B97F4A7C15)
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
        bit = int(ends_hash(whole, 0, whole.size))
        tables[ENDS + (bit >> 6)] |= np.uint64(1 << (bit & 63))
        slot = _add(tables, EXCEPTIONS, EXCEPTION_BITS, run_hash(whole, 0, whole.size))
        tables[slot + PIECES - EXCEPTIONS] = SIZES + len(sizes)
        sizes += [*map(len, parts), 0]
    return EnglishRules(_flags(), np.concatenate([tables, np.array(sizes, dtype=np.uint64)]))


def _add(tables: U64, base: int, bits: int, value: Any) -> int:
    """Put a hash into a set of `tables`; returns its slot."""
    slot = -1 - int(find(tables, base, bits, np.uint64(value)))
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


@kernel
def unit_hash(points: I32, low: int, high: int) -> Any:
    """64-bit hash, not 0, of code points."""
    value = np.uint64(high - low)
    for k in range(low, high):
        value = (value ^ np.uint64(points[k])) * _FACTOR
    return value | np.uint64(value == 0)


@kernel
def run_hash(data: U8, start: int, end: int) -> Any:
    """64-bit hash, not 0, of bytes."""
    value = np.uint64(end - start)
    for at in range(start, end, 8):
        value = (value ^ read(data, at, min(8, end - at))) * _FACTOR
        value ^= value >> np.uint64(32)
    return value | np.uint64(value == 0)


@kernel
def find(tables: U64, base: int, bits: int, value: Any) -> Any:
    """The slot of a hash in a set of `tables`, or -1 less the empty slot where it belongs."""
    slot = np.int64((value * _SPREAD) >> np.uint64(64 - bits))
    while tables[base + slot] != 0:
        if tables[base + slot] == value:
            return base + slot
        slot = (slot + 1) & ((1 << bits) - 1)
    return -1 - base - slot


@njit(inline="always")
def ends_hash(data: Any, start: Any, end: Any) -> Any:
    """A hash of `_ENDS_BITS` bits of the first byte, the last byte and the size."""
    ends = np.uint64(data[start]) << np.uint64(16) | np.uint64(data[end - 1]) << np.uint64(8) | np.uint64(end - start)
    return (ends * _SPREAD) >> np.uint64(64 - _ENDS_BITS)


@njit(inline="always")
def exception_at(data: Any, start: Any, end: Any, tables: Any) -> Any:
    """The slot of the exception that `data[start:end]` is; negative where it is none."""
    slot = np.int64(-1)
    if end - start <= LONGEST:
        bit = ends_hash(data, start, end)
        if (tables[ENDS + (bit >> np.uint64(6))] >> (bit & np.uint64(63))) & np.uint64(1):
            slot = np.int64(find(tables, EXCEPTIONS, EXCEPTION_BITS, run_hash(data, start, end)))
    return slot


@kernel
def put_pieces(slot: Any, start: Any, tables: U64, edges: I32, count: int) -> int:
    """Append the pieces of an exception that starts at a byte; returns how many words there are then."""
    at = np.int64(tables[slot + PIECES - EXCEPTIONS])
    while tables[at]:
        edges[2 * count], edges[2 * count + 1] = start, start + np.int64(tables[at])
        start += np.int64(tables[at])
        count += 1
        at += 1
    return count
