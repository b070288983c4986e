"""Candidates for personal data: one pass over the bytes that stops only where a rule may match.

The pass walks over runs of letters, digits, `_` and `-`; only runs with digits, long runs, `@` and `:` are examined,
each over a bounded number of bytes, so the time is linear in any text. The candidates are a superset of the matches of
the `pii` annotator, whose rules decide. Numbers without a form of their own are reported only near words that give
their meaning (`pii_words`).

Does not belong here: check digits, registries of addresses, replacements.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.terms import pii_words
from plinth_text.terms.pii_places import PiiPlaces
from plinth_text.unicode.codepoints import utf8


def places(texts: pa.Array) -> PiiPlaces:
    """All candidates of a column of texts."""
    data, offsets = utf8(texts)
    capacity = 1024 + int(offsets[-1] - offsets[0]) // 128
    while True:
        found = np.empty((capacity, 5), np.int64)
        size = scan(data, offsets, *pii_words.table(), found)
        if size <= capacity:
            return PiiPlaces(*found[:size].T.copy())
        capacity = size


@compiled
def scan(data: U8, offsets: I64, words: U64, meanings: I64, found: I64) -> int:
    """Fill `found`, [P, 5], with candidates as far as it goes; returns how many there are."""
