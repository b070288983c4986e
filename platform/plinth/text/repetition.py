"""Repeated lines, paragraphs and word n-grams: Gopher's repetition rules (Rae et al. 2021, table A1).

Counted as datatrove 0.10 counts: the first copy of a line is no duplicate; the top n-gram counts all its
copies, also when there is one; a repeated n-gram is skipped whole, so that its characters count once, and is
compared without the spaces between its words. Words are what white space separates. Equality is that of 64-bit
hashes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from plinth.text.characters import SPACE, flags
from plinth.text.codepoints import decode, utf8
from plinth.text.ngrams import I64, U8, U64, mix
from plinth.text.sets import FNV, PRIME, room_for, seen, shift_for, slot_of, slots

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

#: Columns of `repetition_shares`.
COLUMNS = (
    "duplicate_lines", "duplicate_line_characters", "duplicate_paragraphs", "duplicate_paragraph_characters",
    "top_2_gram", "top_3_gram", "top_4_gram",
    "duplicate_5_grams", "duplicate_6_grams", "duplicate_7_grams", "duplicate_8_grams", "duplicate_9_grams",
    "duplicate_10_grams",
)  # fmt: skip

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
#: A value for each byte: sums of these times powers of the base tell byte strings apart.
_BYTE = np.array(
    [((byte + 1) * 0xD6E8FEB86659FD93 ^ (byte + 1) * 0x9FB21C651E98DF25 >> 29) % (1 << 64) for byte in range(256)],
    dtype=np.uint64,
)


def repetition_shares(texts: pa.Array) -> F64:
    """Shares of each text, [documents, 13] in the order of `COLUMNS`, of lines, paragraphs or characters."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(COLUMNS)), dtype=np.float64)
    most = _most(int(np.diff(offsets).max(initial=0)))
    keys = slots(most)
    counts, firsts = np.empty(keys.size, dtype=np.int32), np.empty(keys.size, dtype=np.int32)
    sums, inverses, hashes = (np.empty(most, dtype=np.uint64) for _ in range(3))
    characters = np.empty(most, dtype=np.int64)
    _repetition(data, offsets, flags(), sums, inverses, characters, hashes, keys, counts, firsts, out)
    return out


@njit(inline="always")
def _most(size: Any) -> Any:
    """A text of so many bytes has fewer words, and fewer pieces between line ends, than this."""
    return size // 2 + 3


@njit(nogil=True, cache=True)
def _repetition(
    data: U8, offsets: I64, table: U8, sums: U64, inverses: U64, characters: I64, hashes: U64,
    keys: U64, counts: I32, firsts: I32, out: F64,
) -> None:  # fmt: skip
    for doc in range(offsets.size - 1):
        start, end = offsets[doc], offsets[doc + 1]
        total, n, line_ends, left, right = _words(data, start, end, table, sums, inverses, characters)
        if total == 0:
            continue
        most = min(line_ends + 1, _most(end - start))
        pieces, copies, repeated = _pieces(data, start, end, 1, keys, most)
        out[doc, 0], out[doc, 1] = copies / pieces, repeated / total
        pieces, copies, repeated = _pieces(data, left, right, 2, keys, most)
        out[doc, 2], out[doc, 3] = copies / pieces, repeated / total
        for i in range(n):
            hashes[i] = mix((sums[i + 1] - sums[i]) * inverses[i])
        for size in range(2, 5):
            out[doc, 2 + size] = _top(hashes, characters, n, size, keys, counts, firsts) / total
        for size in range(5, 11):
            out[doc, 2 + size] = _repeated(sums, inverses, characters, n, size, keys) / total


@njit(nogil=True, cache=True)
def _words(
    data: U8, start: int, end: int, table: U8, sums: U64, inverses: U64, characters: I64
) -> tuple[int, int, int, int, int]:
    """The words of a text as prefix sums, so that the hash of any run of words is one subtraction.

    `sums[i]`, `characters[i]`: hash and characters of all words before word i, one after the other;
    `inverses[i]` takes the position of word i out of a difference of sums.

    Returns:
        Characters of the text, words, line ends, and where the text without white space at its ends starts and ends.
    """
    total, n, line_ends, inside = 0, 0, 0, 0
    left, right = start, start
    state, power, inverse, length = np.uint64(0), np.uint64(1), np.uint64(1), 0
    at = start
    while at < end:
        byte = data[at]
        point, size = np.int64(byte), 1
        if byte >= 128:
            point, size = decode(data, at, end)
        total += 1
        if table[point] & SPACE:
            line_ends += byte == 10
            inside = 0
            at += size
            continue
        if not inside:
            left = at if n == 0 else left
            sums[n], inverses[n], characters[n] = state, inverse, length
            n += 1
            inside = 1
        length += 1
        for _ in range(size):
            state += _BYTE[data[at]] * power
            power *= _BASE
            inverse *= _INVERSE
            at += 1
        right = at
    sums[n], characters[n] = state, length
    return total, n, line_ends, left, right


@njit(nogil=True, cache=True)
def _pieces(data: U8, start: int, end: int, breaks: int, keys: U64, most: int) -> tuple[int, int, int]:
    """Split at runs of at least `breaks` line ends: all pieces, the repeated ones, and their characters."""
    room = room_for(most)
    shift = shift_for(room)
    keys[:room] = 0
    pieces, copies, repeated = 0, 0, 0
    value, characters = FNV, 0
    at = start
    while True:
        run = 0
        while at + run < end and data[at + run] == 10:
            run += 1
        if run >= breaks or at == end:
            pieces += 1
            if seen(keys, room, shift, value):
                copies += 1
                repeated += characters
            if at == end:
                return pieces, copies, repeated
            value, characters = FNV, 0
            at += run
            continue
        for _ in range(max(run, 1)):
            value = (value ^ np.uint64(data[at])) * PRIME
            characters += (data[at] & 0xC0) != 0x80
            at += 1


@njit(nogil=True, cache=True)
def _top(hashes: U64, characters: I64, n: int, size: int, keys: U64, counts: I32, firsts: I32) -> int:
    """Characters in all copies of the most frequent n-gram, the earliest of several, words joined by one space."""
    if n < size:
        return 0
    room = room_for(n)
    shift = shift_for(room)
    keys[:room] = 0
    best, where = 0, 0
    for i in range(n - size + 1):
        gram = hashes[i]
        for k in range(i + 1, i + size):
            gram = gram * _BASE + hashes[k]
        gram |= np.uint64(gram == 0)
        slot = slot_of(keys, room, shift, gram)
        if keys[slot] == 0:
            keys[slot], counts[slot], firsts[slot] = gram, 0, i
        counts[slot] += 1
        if counts[slot] > best or (counts[slot] == best and firsts[slot] < where):
            best, where = counts[slot], firsts[slot]
    return int(characters[where + size] - characters[where] + size - 1) * best


@njit(nogil=True, cache=True)
def _repeated(sums: U64, inverses: U64, characters: I64, n: int, size: int, keys: U64) -> int:
    """Characters of n-grams that occurred before, each skipped whole."""
    room = room_for(n)
    shift = shift_for(room)
    keys[:room] = 0
    repeated, i = 0, 0
    while i <= n - size:
        if seen(keys, room, shift, (sums[i + size] - sums[i]) * inverses[i]):
            repeated += characters[i + size] - characters[i]
            i += size
        else:
            i += 1
    return repeated
