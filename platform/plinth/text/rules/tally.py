"""Characters of a text by class, and the lengths of its lines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.unicode.classes import (
    ALNUM,
    BREAK,
    CONTROL,
    DIGIT,
    LETTER,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    UPPER,
    classes,
)
from plinth.text.unicode.codepoints import decode, utf8
from plinth.text.words.ngrams import I64, U8

U16 = npt.NDArray[np.uint16]

#: Columns of `tally`: characters by class, then lines (as `str.splitlines`), characters in lines, the longest line.
COLUMNS = (
    "characters", "letters", "upper_case", "digits", "alphanumeric", "white_space", "punctuation", "symbols", "control",
    "non_ascii", "lines", "line_characters", "longest_line",
)  # fmt: skip
_CLASSES = np.array([LETTER, UPPER, DIGIT, ALNUM, SPACE, PUNCTUATION, SYMBOL, CONTROL], dtype=np.uint16)
_NON_ASCII, _LINES, _IN_LINES, _LONGEST = 9, 10, 11, 12


def tally(texts: pa.Array) -> I64:
    """Counts of each text, [documents, 13] in the order of `COLUMNS`."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(COLUMNS)), dtype=np.int64)
    _tally(data, offsets, classes(), out)
    return out


@njit(nogil=True, cache=True)
def _tally(data: U8, offsets: I64, table: U16, out: I64) -> None:
    ascii_counts = np.zeros(128, dtype=np.int64)  # of ASCII only how often each occurs: classes are added up once
    for doc in range(offsets.size - 1):
        row = out[doc]
        ascii_counts[:] = 0
        at, end, size, previous = offsets[doc], offsets[doc + 1], 0, np.int64(-1)
        while at < end:
            point, step = np.int64(data[at]), 1
            if point < 128:
                ascii_counts[point] += 1
            else:
                point, step = decode(data, at, end)
                row[0] += 1
                row[_NON_ASCII] += 1
                for k in range(_CLASSES.size):
                    row[1 + k] += (table[point] & _CLASSES[k]) != 0
            if table[point] & BREAK:
                if not (point == 10 and previous == 13):  # \r\n is one line end
                    row[_LINES] += 1
                    row[_IN_LINES] += size
                    row[_LONGEST] = max(row[_LONGEST], size)
                size = 0
            else:
                size += 1
            previous = point
            at += step
        if size:
            row[_LINES] += 1
            row[_IN_LINES] += size
            row[_LONGEST] = max(row[_LONGEST], size)
        for byte in range(128):
            row[0] += ascii_counts[byte]
            for k in range(_CLASSES.size):
                row[1 + k] += ascii_counts[byte] * ((table[byte] & _CLASSES[k]) != 0)
