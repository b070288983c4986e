"""Exceptions that stand across words once a text is split: spaCy looks for them in the end and puts them together.

`foo():` splits to `foo ( ) :`, and `):` is an exception (an emoticon). An exception that splitting without exceptions
would cut into several words is looked for as that row of words; the longest wins, then the first, and what overlaps one
that was looked at is left alone (`Tokenizer._apply_special_cases`). Words with one space between them match too, and
then stay as they are: no exception has a space.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from plinth.compiled import kernel, njit
from plinth.text.english.tables import I32, U8, U64, exception_at, put_pieces, run_hash
from plinth.text.words.hash_sets import shift_for, slot_of, slots

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Merges(NamedTuple):
    """Rows of words that are exceptions.

    Args:
        pairs: bit 256 * a + b is set where a row starts with words whose first bytes are a and b.
        rows: hashes of the rows' beginnings, from two words on, as a set.
        whole: by slot of `rows`: whether that is a whole row.
        most: words of the longest row.
    """

    pairs: U64
    rows: U64
    whole: U8
    most: int


def merges_of(given: list[list[U8]]) -> Merges:
    """The tables for these rows of words."""
    pairs, rows = np.zeros(1024, dtype=np.uint64), slots(sum(map(len, given)) + 1)
    whole = np.zeros(rows.size, dtype=np.uint8)
    for row in given:
        bit = 256 * int(row[0][0]) + int(row[1][0])
        pairs[bit >> 6] |= np.uint64(1 << (bit & 63))
        value = np.uint64(run_hash(row[0], 0, row[0].size))
        for word in row[1:]:
            value = np.uint64(longer(value, word, 0, word.size))
            slot = int(slot_of(rows, rows.size, np.uint64(shift_for(rows.size)), value))
            rows[slot] = value
        whole[slot] = 1
    return Merges(pairs, rows, whole, max(map(len, given), default=0))


@kernel
def longer(value: Any, data: U8, start: int, end: int) -> Any:
    """Hash, not 0, of a row of words with one more."""
    value = np.uint64(value) * _FACTOR + run_hash(data, start, end)
    value ^= value >> np.uint64(29)
    return value | np.uint64(value == 0)


@kernel
def merged(data: U8, count: int, by: Any, edges: I32) -> int:
    """Put exceptions across words together; returns how many words there are then."""
    found = 0
    for i in range(count - 1):
        bit = np.uint64(data[edges[2 * i]]) << np.uint64(8) | np.uint64(data[edges[2 * i + 2]])
        if (by.merges.pairs[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1):
            found = _matches(data, i, count, found, by, edges)
    return _rewritten(data, count, _chosen(found, by), by, edges) if found else count


@njit(inline="always")
def apart(data: Any, end: Any, start: Any) -> Any:
    """Whether spaCy has a word of white space between a word's end and the next one's start: not for one space."""
    return start > end and not (start == end + 1 and data[end] == 32)


@kernel
def _matches(data: U8, first: int, count: int, found: int, by: Any, edges: I32) -> int:
    """Note the rows that start with a word; returns how many words have been noted."""
    value, lengths = run_hash(data, edges[2 * first], edges[2 * first + 1]), np.uint64(0)
    rows = by.merges.rows
    for i in range(first + 1, min(count, first + by.merges.most)):
        if apart(data, edges[2 * i - 1], edges[2 * i]):
            break
        value = longer(value, data, edges[2 * i], edges[2 * i + 1])
        slot = slot_of(rows, rows.size, shift_for(rows.size), value)
        if rows[slot] != value:
            break
        if by.merges.whole[slot]:
            lengths |= np.uint64(1) << np.uint64(i + 1 - first)
    if lengths:
        by.starts[found], by.matched[found] = first, lengths
        for i in range(first, min(count, first + by.merges.most)):
            by.taken[i] = 0
        found += 1
    return found


@kernel
def _chosen(found: int, by: Any) -> int:
    """Leave of each noted word the row that stands, if one does; returns how many were noted."""
    for size in range(by.merges.most, 1, -1):
        bit = np.uint64(1) << np.uint64(size)
        for k in range(found):
            first = by.starts[k]
            if by.matched[k] & bit:
                free = not (by.taken[first] or by.taken[first + size - 1])
                for i in range(first, first + size):
                    by.taken[i] = 1
                if free:
                    by.matched[k] = bit
                else:
                    by.matched[k] ^= bit
    return found


@kernel
def _rewritten(data: U8, count: int, found: int, by: Any, edges: I32) -> int:
    """Write the words again, with the chosen rows as the pieces of their exceptions."""
    for i in range(2 * count):
        by.copy[i] = edges[i]
    made, at, k = 0, 0, 0
    while at < count:
        start, size = by.copy[2 * at], 1
        while k < found and by.starts[k] < at:
            k += 1
        slot = np.int64(-1)
        if k < found and by.starts[k] == at and by.matched[k]:
            while by.matched[k] >> np.uint64(size) != np.uint64(1):
                size += 1
            slot = exception_at(data, start, by.copy[2 * (at + size) - 1], by.rules.tables)
        if slot >= 0:
            made = put_pieces(slot, start, by.rules.tables, edges, made)
        else:
            for i in range(at, at + size):
                edges[2 * made], edges[2 * made + 1] = by.copy[2 * i], by.copy[2 * i + 1]
                made += 1
        at += size
    return made
