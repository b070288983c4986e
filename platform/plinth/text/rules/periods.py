"""Sequences of a few tokens that repeat in a row: Dolma 1.6's rule against degenerate text.

A token is a run of `\\w`, or a run of characters that are neither `\\w` nor white space. Dolma uses a BPE tokenizer,
which is no part of this package. Repeats are sought at periods of 1 to 13 tokens, of at least three times.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.unicode.classes import SPACE, WORD, classes
from plinth.text.unicode.codepoints import decode, utf8
from plinth.text.words.hash_sets import FNV, PRIME
from plinth.text.words.ngrams import I64, U8, U64

U16 = npt.NDArray[np.uint16]

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
    _periods(data, offsets, classes(), tokens, out)
    return out


@njit(nogil=True, cache=True)
def _periods(data: U8, offsets: I64, table: U16, tokens: U64, out: I64) -> None:
    for doc in range(offsets.size - 1):
        n = _tokens(data, offsets[doc], offsets[doc + 1], table, tokens)
        out[doc, TOKENS] = n
        for period in range(1, min(MAX_PERIOD, n // MIN_TIMES) + 1):
            longest = _longest(tokens, n, period) + period
            if longest // period >= MIN_TIMES:
                out[doc, TIMES] = max(out[doc, TIMES], longest // period)
                out[doc, LONGEST] = max(out[doc, LONGEST], longest)


@njit(nogil=True, cache=True)
def _longest(tokens: U64, n: int, period: int) -> int:
    """Length of the longest run in which every token equals the one a period before."""
    run, longest = 0, 0
    for k in range(period, n):
        run = run + 1 if tokens[k] == tokens[k - period] else 0
        longest = max(longest, run)
    return longest


@njit(nogil=True, cache=True)
def _tokens(data: U8, start: int, end: int, table: U16, tokens: U64) -> int:
    n, kind, value, at = 0, 0, FNV, start
    while at < end:
        point, step = np.int64(data[at]), 1
        if point >= 128:
            point, step = decode(data, at, end)
        flag = table[point]
        now = 0 if flag & SPACE else (1 if flag & WORD else 2)
        if now != kind:
            tokens[n] = value
            n += kind > 0
            kind, value = now, FNV
        value = (value ^ np.uint64(point)) * PRIME
        at += step
    tokens[n] = value
    return n + (kind > 0)
