"""Buffers for `copies.h`, which finds the repeated n-grams of a text: the most frequent, and those that came before.

    pack_words       words of a text one after the other without the space between them, and where each starts
    top_ngrams       n-grams of 2 to 4 words, equal when their words are: only those whose parts repeat can repeat
    repeated_ngrams  n-grams of 5 to 10 words, equal when their characters are, however they are cut into words: two
                     equal ones start with the same 16, 32 or 64 bytes, so only starts that repeat are examined
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plinth_text.arrays import I32, U8, U64
from plinth_text.words.hash_sets import slot_count

_PADDING = 128
_MOST = 2**29


class CopyBuffers(NamedTuple):
    """Scratch memory for the longest text of a column, W words; untouched pages cost nothing.

    Args:
        packed: the text without white space, [bytes + padding].
        places: where each word starts in it, [W + 1].
        words: hash of each word, [W].
        grams, buckets, starts, limits: of the n-grams that are left, [W].
        counts: n-grams in each bucket.
        keys, tally, firsts: a set of n-grams, how often each came, and where first.
    """

    packed: U8
    places: I32
    words: U64
    grams: U64
    buckets: I32
    starts: I32
    limits: I32
    active: I32
    counts: I32
    keys: U64
    tally: I32
    firsts: I32


def copy_buffers(longest: int, most_words: int) -> CopyBuffers:
    """Buffers for texts of up to `longest` bytes and so many words.

    Raises:
        ValueError: from 512 MiB on, where the numbers of buckets no longer fit 32 bits.
    """
    if longest >= _MOST:
        raise ValueError(f"a text of {longest} bytes")
    words = most_words + 3
    slots = slot_count(words)
    whole = [np.empty(words, dtype=np.int32) for _ in range(5)]
    return CopyBuffers(
        np.empty(longest + _PADDING, dtype=np.uint8), whole[0], np.empty(words, dtype=np.uint64),
        np.empty(words, dtype=np.uint64), whole[1], whole[2], whole[3], whole[4], np.empty(2 * slots, dtype=np.int32),
        np.empty(slots, dtype=np.uint64), np.empty(slots, dtype=np.int32), np.empty(slots, dtype=np.int32),
    )  # fmt: skip
