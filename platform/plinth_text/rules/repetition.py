"""Repeated lines, paragraphs and word n-grams: Gopher's repetition rules (Rae et al. 2021, table A1).

Counted as datatrove 0.10 counts: the first copy of a line is no duplicate; the top n-gram counts all its
copies, also when there is one; a repeated n-gram is skipped whole, so that its characters count once, and is
compared without the spaces between its words. Words are spaCy's, as in datatrove, or what white space separates.
Equality is that of 64-bit hashes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import F64, I32, I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.english.columns import NO_WORDS, column_words
from plinth_text.rules import copies
from plinth_text.unicode.characters import flags
from plinth_text.unicode.codepoints import utf8
from plinth_text.words.split import edge_buffer

#: Columns of `repetition_shares`.
COLUMNS = (
    "duplicate_lines", "duplicate_line_characters", "duplicate_paragraphs", "duplicate_paragraph_characters",
    "top_2_gram", "top_3_gram", "top_4_gram",
    "duplicate_5_grams", "duplicate_6_grams", "duplicate_7_grams", "duplicate_8_grams", "duplicate_9_grams",
    "duplicate_10_grams",
)  # fmt: skip


def repetition_shares(texts: pa.Array, english: bool = False) -> F64:
    """Shares of each text, [documents, 13] in the order of `COLUMNS`, of lines, paragraphs or characters.

    `english`: words are spaCy's.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(COLUMNS)), dtype=np.float64)
    longest = int(np.diff(offsets).max(initial=0))
    buffers = copies.copy_buffers(longest, longest if english else longest // 2)
    words, edges = column_words(data, offsets) if english else NO_WORDS, edge_buffer(offsets, np.int32)
    repetition(data, offsets, flags(), *words, edges, *buffers, out)  # type: ignore[arg-type]
    return out


@compiled
def repetition(
    data: U8, offsets: I64, table: U8, word_first: I64, word_edges: I32, edges: I32, packed: U8, places: I32,
    words: U64, grams: U64, buckets: I32, starts: I32, limits: I32, active: I32, counts: I32, keys: U64, tally: I32,
    firsts: I32, out: F64,
) -> None:  # fmt: skip
    """Fill in the shares of all texts. After `table`: `ColumnWords`, a buffer for edges, and `CopyBuffers`."""
