"""Exceptions that stand across words once a text is split: spaCy looks for them in the end and puts them together.

`foo():` splits to `foo ( ) :`, and `):` is an exception (an emoticon). An exception that splitting without exceptions
would cut into several words is looked for as that row of words; the longest wins, then the first, and what overlaps one
that was looked at is left alone (`Tokenizer._apply_special_cases`). Words with one space between them match too, and
then stay as they are: no exception has a space.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plinth_text.arrays import U8, U64
from plinth_text.compiled import compiled
from plinth_text.english.tables import run_hash
from plinth_text.words.hash_sets import slot as slot_of
from plinth_text.words.hash_sets import slots


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
        value = run_hash(row[0], 0, row[0].size)
        for word in row[1:]:
            value = longer(value, word, 0, word.size)
            slot = slot_of(rows, value)
            rows[slot] = value
        whole[slot] = 1
    return Merges(pairs, rows, whole, max(map(len, given), default=0))


@compiled
def longer(value: int, data: U8, start: int, end: int) -> int:
    """Return the hash, not 0, of a row of words with one more."""
