"""Counts behind FineWeb's line rules (Penedo et al. 2024, section 3.4).

Lines are separated by `\\n`, as in datatrove; words are spaCy's, or what white space separates. FineWeb's own order has
C4 before these rules, which counts what C4 leaves of a text: `c4_pages.kept_lines`.
"""

from __future__ import annotations

import numpy as np

from plinth_text.arrays import I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.english.columns import column_words
from plinth_text.unicode.characters import flags
from plinth_text.words.hash_sets import slots
from plinth_text.words.split import edge_buffer

#: Columns of `fineweb_counts`.
(FULL_LINES, ENDED, SHORT, DUPLICATE_CHARACTERS, CHARACTERS, NEWLINES, WORDS) = range(7)


def fineweb_counts(
    data: U8, offsets: I64, short_line: int, english: bool = False, words: I64 | None = None
) -> I64:
    """Counts of each text, [documents, 7]: lines with a character that is not white space, of those the ones
    that end a sentence and the ones of at most `short_line` characters, characters in repeated lines,
    characters without line ends, line ends, and words.

    Args:
        data, offsets: the texts, as `codepoints.utf8` and `c4_pages.kept_lines` give them.
        english: words are spaCy's.
        words: how many each text has, where that is known.
    """
    out = np.zeros((offsets.size - 1, 7), dtype=np.int64)
    keys = slots(int(np.diff(offsets).max(initial=0)) // 2 + 1)  # a full line is a character and a line end
    if words is None:
        words = np.diff(column_words(data, offsets).first) if english else np.zeros(0, dtype=np.int64)
    fineweb(data, offsets, flags(), short_line, words, edge_buffer(offsets), keys, out)
    return out


@compiled
def fineweb(
    data: U8, offsets: I64, table: U8, short_line: int, words: I64, ends: I64, keys: U64, out: I64
) -> None:
    """Fill in the counts of all texts."""
