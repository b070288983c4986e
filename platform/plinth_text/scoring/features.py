"""Features of classifiers: hashed words and pairs of words with the scores of linear models, and surface features.

Words are those of `words.hashes`. Every word and every two successive words are one feature each; a feature's row is
the top bits of its hash (the hashing trick, Weinberger et al. 2009, as fastText uses it for word n-grams: Joulin et al.
2016). A text's margin is the mean of the rows of its features plus a bias. fastText's mean of word vectors times its
output matrix is such a table, of lower rank.

Letters: D texts, F features of all of them, R = 2^bits rows, K labels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth_text.arrays import F32, F64, I32, I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.unicode import utf8
from plinth_text.words.hashes import hash_words, scratch, slots


def rows(texts: pa.Array, bits: int, max_words: int) -> tuple[I64, I32]:
    """The rows of the features of every text, words first, then pairs; of the first `max_words` words.

    Returns:
        starts [D + 1] and rows [F]: text d has `rows[starts[d]:starts[d + 1]]`, none where it has no words.
    """
    data, offsets = utf8(texts)
    words = scratch(offsets)
    starts = np.zeros(offsets.size, dtype=np.int64)
    most = np.minimum(np.diff(offsets) // 2 + 2, max_words)
    out = np.empty(int(2 * most.sum()), dtype=np.int32)
    fill_rows(data, offsets, 64 - bits, max_words, words, starts, out)
    return starts, out[: starts[-1]].copy()


@compiled
def fill_rows(data: U8, offsets: I64, shift: int, max_words: int, words: U64, starts: I64, out: I32) -> None:
    """As `rows`; `words` is scratch memory."""


def margins(texts: pa.Array, table: F32, bias: F32, window: int = 0) -> F64:
    """The margin of every text for every label, [D, K]; the bias alone where a text has no words.

    Args:
        table: [R, K], R a power of two.
        bias: [K].
        window: words of a stretch; a text longer than that has the largest margin of its stretches, the last of
            which ends with the text, so that a short passage of a long text is not averaged away. 0: the whole text.
    """
    data, offsets = utf8(texts)
    out = np.empty((len(texts), table.shape[1]), dtype=np.float64)
    shift = 64 - (table.shape[0].bit_length() - 1)
    words = scratch(offsets)
    if table.shape[1] == 1:
        one_margin(data, offsets, table.reshape(-1), bias[0], shift, window, words, out.reshape(-1))
    else:
        every_margin(data, offsets, table, bias, shift, window, words, np.empty(bias.size), out)
    return out


@compiled
def one_margin(data: U8, offsets: I64, table: F32, bias: float, shift: int, window: int, words: U64, out: F64) -> None:
    """As `margins`, for one label; `words` is scratch memory."""


@compiled
def every_margin(
    data: U8, offsets: I64, table: F32, bias: F32, shift: int, window: int, words: U64, total: F64, out: F64
) -> None:
    """As `margins`; `words` and `total`, [K], are scratch memory."""


# Surface features of a text: lengths, shares of character classes, lines, repetition.
#
# Quantities like those of Gopher, C4 and FineWeb (Rae et al. 2021; Raffel et al. 2020; Penedo et al. 2024), and of a
# page's layout. The rules themselves are in `rules`. One pass over the bytes for characters and lines, one
# over the words.
#
# Letters: D texts, N features.

#: Columns of counts.
(POINTS, LETTERS, UPPER, DIGITS, MARKS, BRACKETS, WIDE, BLANKS, SHOUTS, CHUNKS, LINES, ENDED, SHORT, BULLETS, COPIES,
 COPIED, WORDS, DISTINCT, PAIRS, COMMON, LONGEST) = range(21)  # fmt: skip

#: Names of the features, in the order of their columns.
NAMES = (
    "log_characters", "log_words", "characters_per_word", "words_per_chunk", "upper", "digits", "marks", "brackets",
    "wide", "blanks", "shouts_per_chunk", "lines_per_chunk", "characters_per_line", "ended_lines", "short_lines",
    "bullet_lines", "repeated_lines", "repeated_line_characters", "distinct_words", "distinct_pairs", "common_words",
    "longest_run",
)  # fmt: skip

#: The commonest English words, which lists and keyword spam lack.
_COMMON = "the be to of and a in that have i it for not on with he as you do at is was are this but his by from they"
COMMON_WORDS = frozenset(_COMMON.split())


def dense(texts: pa.Array) -> npt.NDArray[np.float32]:
    """Features of every text, [D, N], all finite; shares are 0 where there is nothing to divide by."""
    return from_counts(counts(texts))


def from_counts(counted: I64) -> npt.NDArray[np.float32]:
    """The same from counts, [D, 21]."""
    n = counted.astype(np.float64)

    def share(above: int, below: int) -> npt.NDArray[np.float64]:
        out: npt.NDArray[np.float64] = np.divide(n[:, above], n[:, below], out=np.zeros(len(n)), where=n[:, below] != 0)
        return out

    columns = [
        np.log1p(n[:, POINTS]), np.log1p(n[:, WORDS]), share(LETTERS, WORDS), share(WORDS, CHUNKS),
        share(UPPER, LETTERS), share(DIGITS, POINTS), share(MARKS, POINTS), share(BRACKETS, POINTS),
        share(WIDE, POINTS), share(BLANKS, POINTS), share(SHOUTS, CHUNKS), share(LINES, CHUNKS), share(POINTS, LINES),
        share(ENDED, LINES), share(SHORT, LINES), share(BULLETS, LINES), share(COPIES, LINES), share(COPIED, POINTS),
        share(DISTINCT, WORDS), share(PAIRS, WORDS), share(COMMON, WORDS), np.log1p(n[:, LONGEST]),
    ]  # fmt: skip
    return np.stack(columns, axis=1).astype(np.float32) if len(n) else np.zeros((0, len(NAMES)), np.float32)


def counts(texts: pa.Array) -> I64:
    """The counts behind the features, [D, 21]: code points; letters and digits (beyond ASCII: all that separates no
    words), upper-case letters, ASCII digits, ASCII marks, brackets and signs of programs, characters beyond ASCII,
    white space, `!` and `?`; chunks between white space; lines with anything in them, those that end a sentence, are
    short, start with a bullet, repeat an earlier one, and characters of those; words, distinct words and pairs of
    them, common English words; the longest run of one character that is no white space."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 21), dtype=np.int64)
    keys = slots(int(np.diff(offsets).max(initial=0)) // 2 + 2)
    character_counts(data, offsets, keys, out)
    word_counts(data, offsets, _common_hashes(), scratch(offsets), keys, out)
    return out


@lru_cache(maxsize=1)
def _common_hashes() -> U64:
    data, offsets = utf8(pa.array([_COMMON], pa.large_string()))
    words = scratch(offsets)
    return np.unique(words[: hash_words(data, offsets[0], offsets[1], words)])


@compiled
def character_counts(data: U8, offsets: I64, keys: U64, out: I64) -> None:
    """Fill in the columns of characters and lines; `keys` is scratch memory."""


@compiled
def word_counts(data: U8, offsets: I64, common: U64, words: U64, keys: U64, out: I64) -> None:
    """Fill in the columns of words; `words` and `keys` are scratch memory."""
