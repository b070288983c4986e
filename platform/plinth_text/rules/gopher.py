"""Counts for Gopher's rules (Rae et al. 2021, table A1), as datatrove and Dolma count; Dolma's rule on repeated
tokens.

Words are those of spaCy's blank English tokenizer, as in datatrove, or are separated by white space, as in the paper.
Lines are those of `str.splitlines`. For speed, words are found first and then examined eight bytes at a time; line ends
are searched only between words that white space separates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from plinth_text.arrays import F64, I32, I64, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.english import NO_WORDS, column_words
from plinth_text.unicode import classes, flags, utf8
from plinth_text.words import edge_buffer, ngram_buffers, slot_count

#: Columns of `gopher_counts`.
(WORDS, PLAIN_WORDS, PLAIN_CHARACTERS, HASHES, ELLIPSES, LINES, BULLETS, ELLIPSIS_LINES, ALPHA_WORDS, STOP_WORDS) = (
    range(10)
)


def gopher_counts(texts: pa.Array, english: bool = False) -> I64:
    """Count words, symbols and lines for Gopher's rules, [documents, 10].

    The columns are: all words; words that are not only symbols, and their characters; `#` signs; ellipses; lines; lines
    that start with a bullet; lines that end with an ellipsis; words with a letter; and the number of Gopher's eight
    stop words that occur. If `english` is set, words are spaCy's.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 10), dtype=np.int64)
    words = column_words(data, offsets) if english else NO_WORDS
    gopher(data, offsets, flags(), *words, edge_buffer(offsets, np.int32), out)
    return out


@compiled
def gopher(data: U8, offsets: I64, table: U8, word_first: I64, word_edges: I32, edges: I32, out: I64) -> None:
    """Write the counts of all texts into `out`. `word_first` and `word_edges` are those of `ColumnWords`."""


# Repeated lines, paragraphs and word n-grams: Gopher's repetition rules.
#
# Counted as datatrove 0.10 counts: the first copy of a line is not a duplicate; the top n-gram counts all its
# copies, also when there is one; a repeated n-gram is skipped whole, so that its characters count once, and is
# compared without the spaces between its words. Words are spaCy's, as in datatrove, or what white space separates.
# Equality is that of 64-bit hashes.

#: Columns of `repetition_shares`.
REPETITION_COLUMNS = (
    "duplicate_lines", "duplicate_line_characters", "duplicate_paragraphs", "duplicate_paragraph_characters",
    "top_2_gram", "top_3_gram", "top_4_gram",
    "duplicate_5_grams", "duplicate_6_grams", "duplicate_7_grams", "duplicate_8_grams", "duplicate_9_grams",
    "duplicate_10_grams",
)  # fmt: skip


def repetition_shares(texts: pa.Array, english: bool = False) -> F64:
    """Return the share of repeated lines, paragraphs and n-grams of each text, [documents, 13].

    The columns are `REPETITION_COLUMNS`. If `english` is set, words are spaCy's.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(REPETITION_COLUMNS)), dtype=np.float64)
    longest = int(np.diff(offsets).max(initial=0))
    buffers = copy_buffers(longest, longest if english else longest // 2)
    words, edges = column_words(data, offsets) if english else NO_WORDS, edge_buffer(offsets, np.int32)
    repetition(data, offsets, flags(), *words, edges, *buffers, out)  # type: ignore[arg-type]
    return out


@compiled
def repetition(
    data: U8, offsets: I64, table: U8, word_first: I64, word_edges: I32, edges: I32, packed: U8, places: I32,
    words: U64, grams: U64, buckets: I32, starts: I32, limits: I32, active: I32, counts: I32, keys: U64, tally: I32,
    firsts: I32, out: F64,
) -> None:  # fmt: skip
    """Write the shares of all texts into `out`.

    The arguments after `table` are those of `ColumnWords`, a buffer for edges, and `CopyBuffers`.
    """


# Buffers for `copies.h`, which finds the repeated n-grams of a text: the most frequent, and those that came before.
#
# pack_words       words of a text one after the other without the space between them, and where each starts
# top_ngrams       n-grams of 2 to 4 words, equal when their words are: only those whose parts repeat can repeat
# repeated_ngrams  n-grams of 5 to 10 words, equal when their characters are, however they are cut into words: two
#                  equal ones start with the same 16, 32 or 64 bytes, so only starts that repeat are examined

_PADDING = 128
_MOST = 2**29


class CopyBuffers(NamedTuple):
    """Scratch memory for the longest text of a column, with W words. Memory pages that are not used cost nothing.

    Args:
        packed: the text without white space, [bytes + padding].
        places: [W + 1] start of each word in `packed`.
        words: [W] hash of each word.
        grams, buckets, starts, limits: [W] values of the n-grams that may still repeat.
        counts: number of n-grams in each bucket.
        keys, tally, firsts: set of n-grams, with the count and the first position of each n-gram.
    """

    packed: U8
    places: I32
    words: U64
    grams: U64
    buckets: I32
    starts: I32
    limits: I32
    active: I32
    counts: I32
    keys: U64
    tally: I32
    firsts: I32


def copy_buffers(longest: int, most_words: int) -> CopyBuffers:
    """Return buffers for texts of up to `longest` bytes and `most_words` words.

    Raises:
        ValueError: texts have 512 MiB or more, so that the numbers of buckets do not fit into 32 bits.
    """
    if longest >= _MOST:
        raise ValueError(f"a text of {longest} bytes")
    words = most_words + 3
    slots = slot_count(words)
    whole = [np.empty(words, dtype=np.int32) for _ in range(5)]
    return CopyBuffers(
        np.empty(longest + _PADDING, dtype=np.uint8), whole[0], np.empty(words, dtype=np.uint64),
        np.empty(words, dtype=np.uint64), whole[1], whole[2], whole[3], whole[4], np.empty(2 * slots, dtype=np.int32),
        np.empty(slots, dtype=np.uint64), np.empty(slots, dtype=np.int32), np.empty(slots, dtype=np.int32),
    )  # fmt: skip


# Counts behind Gopher's rules as Dolma's tagger `gopher_v1` makes them (Soldaini et al. 2024; dolma 1.2).
#
# Words are separated by white space, lines by `\n`. Differences from the counts above: the
# median word length; a word with a symbol counts once; stop words count every time; **all** copies of a line that
# repeats are duplicates, blank lines too; n-grams are measured without spaces, against the characters of words (top
# n-gram) or of all n-grams, overlaps counted repeatedly (repeated n-grams).

#: Columns of `dolma_shares`.
DOLMA_COLUMNS = (
    "word_count", "median_word_characters", "symbol_words", "letter_words", "stop_words", "bullet_lines",
    "ellipsis_lines", "duplicate_lines", "duplicate_line_characters", "top_2_gram", "top_3_gram", "top_4_gram",
    "duplicate_5_grams", "duplicate_6_grams", "duplicate_7_grams", "duplicate_8_grams", "duplicate_9_grams",
    "duplicate_10_grams",
)  # fmt: skip


def dolma_shares(texts: pa.Array, join_blank_lines: bool = False) -> F64:
    """Return the values of Dolma's tagger `gopher_v1` for each text, [documents, 18]. For an empty text, they are 0.

    The columns are `DOLMA_COLUMNS`.

    Args:
        join_blank_lines: True if a run of line ends counts as one, as in the tagger `gopher_v2`.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(DOLMA_COLUMNS)), dtype=np.float64)
    scratch = ngram_buffers(int(np.diff(offsets).max(initial=0)))
    count_dolma(data, offsets, flags(), join_blank_lines, *scratch, out)
    return out


@compiled
def count_dolma(
    data: U8, offsets: I64, table: U8, join: bool, keys: U64, counts: I32, spots: I32, ids: I32, words: U64,
    characters: I64, out: F64,
) -> int:  # fmt: skip
    """Write the values of all texts into `out`. The arguments after `join` are those of `ngram_buffers`."""


# Sequences of a few tokens that repeat in a row: Dolma 1.6's rule against degenerate text.
#
# A token is a run of `\w`, or a run of characters that are neither `\w` nor white space. Dolma uses a BPE tokenizer,
# which is not part of this package. Repeats are sought at periods of 1 to 13 tokens, of at least three times.

#: Longest period sought, and the fewest times that count (dolma 1.2, taggers/repetitions).
MAX_PERIOD, MIN_TIMES = 13, 3
#: Columns of `periods`.
TOKENS, TIMES, LONGEST = range(3)


def periods(texts: pa.Array) -> I64:
    """Count repeats of short token sequences in each text, [documents, 3].

    The columns are the number of tokens, the largest number of times that a sequence occurs in a row (0 if below
    three), and the number of tokens in the longest repeated run.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 3), dtype=np.int64)
    tokens = np.empty(int(np.diff(offsets).max(initial=0)) + 1, dtype=np.uint64)
    find_periods(data, offsets, classes(), tokens, out)
    return out


@compiled
def find_periods(data: U8, offsets: I64, table: U16, tokens: U64, out: I64) -> None:
    """Write the counts of all texts into `out`."""
