"""Sequences of a few tokens that repeat in a row: Dolma 1.6's rule against degenerate text.

A token is a run of `\\w`, or a run of characters that are neither `\\w` nor white space. Dolma uses a BPE tokenizer,
which is no part of this package. Repeats are sought at periods of 1 to 13 tokens, of at least three times.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I64, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.unicode.classes import classes
from plinth_text.unicode.codepoints import utf8

#: Longest period sought, and the fewest times that count (dolma 1.2, taggers/repetitions).
MAX_PERIOD, MIN_TIMES = 13, 3
#: Columns of `periods`.
TOKENS, TIMES, LONGEST = range(3)


def periods(texts: pa.Array) -> I64:
    """Counts of each text, [documents, 3]: tokens, the most times that a sequence occurs in a row (0 below three), and
    the tokens of the longest repeated run."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 3), dtype=np.int64)
    tokens = np.empty(int(np.diff(offsets).max(initial=0)) + 1, dtype=np.uint64)
    find_periods(data, offsets, classes(), tokens, out)
    return out


@compiled
def find_periods(data: U8, offsets: I64, table: U16, tokens: U64, out: I64) -> None:
    """Fill in the counts of all texts."""
