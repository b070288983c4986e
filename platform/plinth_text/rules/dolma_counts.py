"""Counts behind Gopher's rules as Dolma's tagger `gopher_v1` makes them (Soldaini et al. 2024; dolma 1.2).

Words are separated by white space, lines by `\\n`. Differences from `gopher_quality` and `repetition`: the
median word length; a word with a symbol counts once; stop words count every time; **all** copies of a line that
repeats are duplicates, blank lines too; n-grams are measured without spaces, against the characters of words (top
n-gram) or of all n-grams, overlaps counted again (repeated n-grams).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import F64, I32, I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.unicode.characters import flags
from plinth_text.unicode.codepoints import utf8
from plinth_text.words.repeated_ngrams import ngram_buffers

#: Columns of `shares`.
COLUMNS = (
    "word_count", "median_word_characters", "symbol_words", "letter_words", "stop_words", "bullet_lines",
    "ellipsis_lines", "duplicate_lines", "duplicate_line_characters", "top_2_gram", "top_3_gram", "top_4_gram",
    "duplicate_5_grams", "duplicate_6_grams", "duplicate_7_grams", "duplicate_8_grams", "duplicate_9_grams",
    "duplicate_10_grams",
)  # fmt: skip


def shares(texts: pa.Array, join_blank_lines: bool = False) -> F64:
    """Numbers of each text, [documents, 18] in the order of `COLUMNS`; zeros for an empty one.

    Args:
        join_blank_lines: a run of line ends is one, as in the tagger `gopher_v2`.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(COLUMNS)), dtype=np.float64)
    scratch = ngram_buffers(int(np.diff(offsets).max(initial=0)))
    dolma_shares(data, offsets, flags(), join_blank_lines, *scratch, out)
    return out


@compiled
def dolma_shares(
    data: U8, offsets: I64, table: U8, join: bool, keys: U64, counts: I32, spots: I32, ids: I32, words: U64,
    characters: I64, out: F64,
) -> int:  # fmt: skip
    """Fill in the numbers of all texts. After `join`: `ngram_buffers`."""
