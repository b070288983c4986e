"""Counts behind Gopher's quality rules (Rae et al. 2021, table A1).

Words are what spaCy's blank English tokenizer splits, as in datatrove, or what white space separates, as in the
paper. Lines are those of `str.splitlines`. Words are found first and then looked at eight bytes at a time; lines end
between words that white space separates.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I32, I64, U8
from plinth_text.compiled import compiled
from plinth_text.english.columns import NO_WORDS, column_words
from plinth_text.unicode.characters import flags
from plinth_text.unicode.codepoints import utf8
from plinth_text.words.split import edge_buffer

#: Columns of `gopher_counts`.
(WORDS, PLAIN_WORDS, PLAIN_CHARACTERS, HASHES, ELLIPSES, LINES, BULLETS, ELLIPSIS_LINES, ALPHA_WORDS, STOP_WORDS) = (
    range(10)
)



def gopher_counts(texts: pa.Array, english: bool = False) -> I64:
    """Counts of each text, [documents, 10]: all words, words that are not only symbols and their characters,
    `#`, ellipses, lines, lines that start with a bullet, lines that end with an ellipsis, words with a
    letter, and how many of Gopher's eight stop words occur. `english`: words are spaCy's."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 10), dtype=np.int64)
    words = column_words(data, offsets) if english else NO_WORDS
    gopher(data, offsets, flags(), *words, edge_buffer(offsets, np.int32), out)
    return out


@compiled
def gopher(data: U8, offsets: I64, table: U8, word_first: I64, word_edges: I32, edges: I32, out: I64) -> None:
    """Fill in the counts of all texts. `word_first`, `word_edges`: `ColumnWords`."""
