"""Characters of a text by class, and the lengths of its lines."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I64, U8, U16
from plinth_text.compiled import compiled
from plinth_text.unicode.classes import classes
from plinth_text.unicode.codepoints import utf8

#: Columns of `tally`: characters by class, then lines (as `str.splitlines`), characters in lines, the longest line.
COLUMNS = (
    "characters", "letters", "upper_case", "digits", "alphanumeric", "white_space", "punctuation", "symbols", "control",
    "non_ascii", "lines", "line_characters", "longest_line",
)  # fmt: skip


def tally(texts: pa.Array) -> I64:
    """Counts of each text, [documents, 13] in the order of `COLUMNS`."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(COLUMNS)), dtype=np.int64)
    tally_all(data, offsets, classes(), out)
    return out


@compiled
def tally_all(data: U8, offsets: I64, table: U16, out: I64) -> None:
    """Fill in the counts of all texts."""
