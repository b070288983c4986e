"""Buffers for `repeated_ngrams.h`, which finds the repeated word n-grams of a text, length by length.

An (n+1)-gram occurs twice only if both n-grams inside it do. So words are counted once, and every greater length
reads only the places that are left, which in prose are few. An n-gram has the number of its slot in the table, and a
longer one is identified by the numbers of its two halves: equality is exact after that of the words.

Does not belong here: how a rule set uses the places.
"""

from __future__ import annotations

import numpy as np

from plinth_text.arrays import I32, I64, U64
from plinth_text.words.hash_sets import slot_count


def ngram_buffers(longest: int) -> tuple[U64, I32, I32, I32, U64, I64]:
    """Buffers for texts of up to `longest` bytes: keys, counts, spots, ids, word hashes, characters before a word."""
    most = longest // 2 + 3  # a word is a byte, and another one separates it
    slots = slot_count(most)
    spots, ids = (np.empty(most, dtype=np.int32) for _ in range(2))
    return (
        np.zeros(slots, dtype=np.uint64), np.empty(slots, dtype=np.int32), spots, ids,
        np.empty(most, dtype=np.uint64), np.empty(most + 1, dtype=np.int64),
    )  # fmt: skip
