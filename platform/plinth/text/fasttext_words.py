"""What fastText makes of a token: its own row if it is known, and the rows of its character n-grams.

Hashes are 32-bit FNV-1a over *signed* bytes, as fastText 0.9.2 has them; n-grams are of code points and are taken from
the token between `<` and `>`. Does not belong here: where tokens begin and end (`fasttext`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types, uint32, uint64
from numba.extending import intrinsic

from plinth.text.fasttext_file import F32, I32, LABEL_PREFIX, LANES, Model
from plinth.text.ngrams import I64, U8, U64

#: Rows of one token that are noted before they are added, at least; more than `maxn`.
ROOM = 4096
_NONE = np.int32(-1)
_PREFIX = np.frombuffer(LABEL_PREFIX.encode(), dtype=np.uint8)


def word_table(model: Model) -> tuple[npt.NDArray[np.uint32], I32]:
    """Open addressing by fastText's hash: hashes and word numbers (-1: free); at most half are taken."""
    size = 1 << (2 * model.word_ends.size).bit_length()
    table, slots = np.zeros(size, np.uint32), np.full(size, _NONE)
    _fill(model.words, model.word_ends, table, slots)
    return table, slots


@njit(inline="always")
def fnv(hashed: Any, byte: Any) -> Any:
    """One step of fastText's hash: a byte above 127 is a negative number, its upper bits all ones."""
    wide = uint32(byte) | (uint32(0xFFFFFF00) if byte >= 128 else uint32(0))
    return uint32((hashed ^ wide) * uint32(16777619))


@njit(nogil=True, cache=True)
def _fill(words: U8, ends: I64, table: Any, slots: I32) -> None:
    start = 0
    for word in range(ends.size):
        hashed = uint32(2166136261)
        for at in range(start, ends[word]):
            hashed = fnv(hashed, words[at])
        slot = np.int64(hashed) & (table.size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (table.size - 1)
        table[slot], slots[slot] = hashed, word
        start = ends[word]


@njit(nogil=True, cache=True)
def known(data: U8, start: int, end: int, words: U8, ends: I64, table: Any, slots: I32) -> int:
    """Number of the word `data[start:end]` in the dictionary, or -1."""
    hashed = uint32(2166136261)
    for at in range(start, end):
        hashed = fnv(hashed, data[at])
    slot = np.int64(hashed) & (table.size - 1)
    while slots[slot] >= 0:
        if table[slot] == hashed:
            word = slots[slot]
            first = ends[word - 1] if word else 0
            if ends[word] - first == end - start:
                same = True
                for i in range(end - start):
                    same &= words[first + i] == data[start + i]
                if same:
                    return int(word)
        slot = (slot + 1) & (table.size - 1)
    return -1


@njit(inline="always")
def add(out: Any, row: Any) -> None:
    for lane in range(0, out.size, LANES):
        for i in range(LANES):
            out[lane + i] += row[lane + i]


@intrinsic
def _ones(context: Any, value: Any) -> Any:
    """Number of bits that are set in a uint64."""

    def make(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), make


@njit(inline="always")
def _push(hashed: Any, kept: U64, numbers: U64, found: I64, count: int) -> Any:
    """Note the row of an n-gram if it has one; returns how many are noted. No branch: half of them have none."""
    # hashed % bucket, without a division
    wide, bucket = uint64(hashed), numbers[3]
    rest = wide - ((wide * numbers[4]) >> numbers[5]) * bucket
    rest = rest - bucket if rest >= bucket else rest
    cell, bit = kept[np.int64(rest >> uint64(5))], rest & uint64(31)
    below = cell & ((uint64(1) << bit) - uint64(1))
    found[count] = np.int64(numbers[0] + (cell >> uint64(32)) + _ones(below))  # type: ignore[call-arg]
    return count + np.int64(cell >> bit & uint64(1))


@njit(nogil=True, cache=True)
def features(
    data: U8, start: int, end: int, rows: F32, kept: U64, words: U8, ends: I64, table: Any, slots: I32, numbers: U64,
    room: U8, found: I64, out: F32,
) -> int:  # fmt: skip
    """Put the sum of one token's rows into `out`; returns how many there were.

    `found` has room for `ROOM` rows, `room` for three bytes more than the token.
    """
    out[:] = 0.0
    word = known(data, start, end, words, ends, table, slots)
    label = word < 0 and end - start >= _PREFIX.size
    for i in range(_PREFIX.size if label else 0):
        label &= data[start + i] == _PREFIX[i]
    if label or word >= np.int64(numbers[0]):
        return 0  # labels are no features
    count, total = 0, 0
    if word >= 0:
        found[0] = word
        count = 1
    minn, maxn = np.int64(numbers[1]), np.int64(numbers[2])
    size = end - start + 2
    room[0], room[size - 1], room[size] = 60, 62, 0  # `<token>`, and no continuation after it
    for i in range(size - 2):
        room[1 + i] = data[start + i]
    for first in range(size if maxn else 0):
        if room[first] & 0xC0 == 0x80:
            continue
        hashed, at = uint32(2166136261), first
        for n in range(1, maxn + 1):
            if at >= size:
                break
            hashed = fnv(hashed, room[at])
            at += 1
            while room[at] & 0xC0 == 0x80:
                hashed = fnv(hashed, room[at])
                at += 1
            if n >= minn and not (n == 1 and (first == 0 or at == size)):
                count = _push(hashed, kept, numbers, found, count)
        if count > ROOM - maxn - 1:
            for i in range(count):
                add(out, rows[found[i]])
            total, count = total + count, 0
    for i in range(count):
        add(out, rows[found[i]])
    return total + count
