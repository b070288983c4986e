"""Surface features of a text: lengths, shares of character classes, lines, repetition.

Quantities like those of Gopher, C4 and FineWeb (Rae et al. 2021; Raffel et al. 2020; Penedo et al. 2024), and of a
page's layout. The rules themselves are in `text.rules`. One pass over the bytes for characters and lines,
one over the words.

Letters: D texts, N features.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth_text.arrays import I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.unicode.codepoints import utf8
from plinth_text.words.hash_sets import slots
from plinth_text.words.word_hashes import hash_words, scratch

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
