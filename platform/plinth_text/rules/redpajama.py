r"""RedPajama-v2's heuristic quality signals of a text (Weber et al. 2024, table 2; RedPajama-Data, `quality_signals`).

There are two kinds of words. **Raw** words are runs of `\w`, or runs of characters that are neither `\w` nor white
space. **Normalized** words are separated by white space, after the text is lower-cased, stripped of ASCII punctuation
and converted to NFD; their characters are counted in this form. Lines end with `\n`, which is part of them. Line
signals are averaged over the lines.

A table normalizes each code point. Texts with a capital sigma, or with combining marks that change places, are
normalized by Python instead.
"""

from __future__ import annotations

import string
import unicodedata

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth_text.arrays import F64, I32, I64, U8, U16, U32, U64
from plinth_text.compiled import compiled
from plinth_text.unicode import classes, expansions, utf8
from plinth_text.words import FNV, PRIME, ngram_buffers

#: Columns of `signals`.
COLUMNS = (
    "word_count", "mean_word_characters", "unique_words", "unigram_entropy", "top_2_gram", "top_3_gram", "top_4_gram",
    "duplicate_5_grams", "duplicate_6_grams", "duplicate_7_grams", "duplicate_8_grams", "duplicate_9_grams",
    "duplicate_10_grams", "lorem_ipsum", "javascript_words", "line_words", "line_numerical_characters",
    "raw_words", "symbol_ratio", "no_letter_words", "upper_case_words", "stop_words", "curly_brackets", "sentences",
    "lines", "ellipsis_lines", "bullet_lines", "terminal_lines", "line_upper_case_characters",
)  # fmt: skip
#: The first column of `raw`; those before it are filled by `normal`.
_RAW = COLUMNS.index("raw_words")


def word_hash(word: str) -> int:
    """Return the hash of a word, for look-up among stop words and comparison of normalized words."""
    value = FNV
    for character in word:
        value = ((value ^ ord(character)) * PRIME) & 0xFFFFFFFFFFFFFFFF
    return value



def signals(texts: pa.Array, stop_words: frozenset[str] = frozenset()) -> F64:
    """Return the signals of each text, [documents, 29], not rounded. For an empty text, all signals are 0.

    The columns are `COLUMNS`.

    Args:
        stop_words: raw words that count as stop words; case matters.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(COLUMNS)), dtype=np.float64)
    stops = np.sort(np.array([word_hash(word) for word in stop_words], dtype=np.uint64))
    raw(data, offsets, classes(), stops, out)
    some = np.flatnonzero(_normalise(texts, False, out))
    if some.size:
        plain = pa.array([normalised(text) for text in texts.take(pa.array(some)).to_pylist()], pa.large_string())
        rows = np.zeros((some.size, len(COLUMNS)), dtype=np.float64)
        _normalise(plain, True, rows)
        out[some, :_RAW] = rows[:, :_RAW]
    return out


def _normalise(texts: pa.Array, plain: bool, out: F64) -> npt.NDArray[np.bool_]:
    """Write the signals of normalized words into `out`, and return a mask of the texts that the table cannot normalize.

    `plain` is True if the texts are normalized already.
    """
    data, offsets = utf8(texts)
    hard = np.zeros(len(texts), dtype=np.bool_)
    keys, counts, spots, ids, words, characters = ngram_buffers(int(np.diff(offsets).max(initial=0)))
    form = expansions()
    normal(
        data, offsets, classes(), form.starts, form.points, form.numeric, form.combines, plain, keys, counts, spots,
        ids, words, characters, out, hard,
    )  # fmt: skip
    return hard


def normalised(text: str) -> str:
    """Return the text without ASCII punctuation, in lower case and in NFD. Line ends are kept."""
    kept = text.encode().translate(None, string.punctuation.encode()).decode()
    return unicodedata.normalize("NFD", kept.lower())


@compiled
def raw(data: U8, offsets: I64, table: U16, stops: U64, out: F64) -> None:
    """Write the signals of raw words, characters and lines into `out`. `stops` has the sorted hashes of stop words."""


@compiled
def normal(
    data: U8, offsets: I64, table: U16, starts: I32, points: U32, numeric: U8, combines: U8, plain: bool, keys: U64,
    counts: I32, spots: I32, ids: I32, words: U64, characters: I64, out: F64, hard: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Write the signals of normalized words into `out`. `hard` marks the texts that the table cannot normalize."""

#: Columns of `tally`: characters by class, then lines (as `str.splitlines`), characters in lines, the longest line.
TALLY_COLUMNS = (
    "characters", "letters", "upper_case", "digits", "alphanumeric", "white_space", "punctuation", "symbols", "control",
    "non_ascii", "lines", "line_characters", "longest_line",
)  # fmt: skip


def tally(texts: pa.Array) -> I64:
    """Count characters by class, and lines, of each text, [documents, 13]. The columns are `TALLY_COLUMNS`."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(TALLY_COLUMNS)), dtype=np.int64)
    tally_all(data, offsets, classes(), out)
    return out


@compiled
def tally_all(data: U8, offsets: I64, table: U16, out: I64) -> None:
    """Write the counts of all texts into `out`."""
