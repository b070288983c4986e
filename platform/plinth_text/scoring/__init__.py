"""Features of classifiers, and scores of texts under n-gram language models."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth_text.arrays import F32, F64, I32, I64, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.libm import log1p
from plinth_text.unicode import LOWER_SIZE, lower, utf8
from plinth_text.words import hash_words, scratch, slots

# Features of classifiers: hashed words and pairs of words with the scores of linear models, and surface features.
#
# Words are those of `plinth_text.words`. Every word and every two successive words are one feature each; a feature's
# row is the top bits of its hash (the hashing trick, Weinberger et al. 2009, as fastText uses it for word n-grams:
# Joulin et al. 2016). A text's margin is the mean of the rows of its features plus a bias. fastText's mean of word
# vectors times its output matrix is such a table, of lower rank.
#
# Letters: D texts, F features of all of them, R = 2^bits rows, K labels.

def rows(texts: pa.Array, bits: int, max_words: int) -> tuple[I64, I32]:
    """Return the feature rows of every text, words first, then pairs; of the first `max_words` words.

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
    """Do the same as `rows`; `words` is scratch memory."""


def margins(texts: pa.Array, table: F32, bias: F32, window: int = 0) -> F64:
    """Return the margin of every text for every label, [D, K]; only the bias if a text has no words.

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
    """Do the same as `margins`, for one label; `words` is scratch memory."""


@compiled
def every_margin(
    data: U8, offsets: I64, table: F32, bias: F32, shift: int, window: int, words: U64, total: F64, out: F64
) -> None:
    """Do the same as `margins`; `words` and `total`, [K], are scratch memory."""


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
    """Return the features of every text, [D, N], all finite; shares are 0 if the divisor is 0."""
    return from_counts(counts(texts))


def from_counts(counted: I64) -> npt.NDArray[np.float32]:
    """Return the features from counts, [D, 21]."""
    n = counted.astype(np.float64)

    def share(above: int, below: int) -> npt.NDArray[np.float64]:
        out: npt.NDArray[np.float64] = np.divide(n[:, above], n[:, below], out=np.zeros(len(n)), where=n[:, below] != 0)
        return out

    columns = [
        log1p(n[:, POINTS]), log1p(n[:, WORDS]), share(LETTERS, WORDS), share(WORDS, CHUNKS),
        share(UPPER, LETTERS), share(DIGITS, POINTS), share(MARKS, POINTS), share(BRACKETS, POINTS),
        share(WIDE, POINTS), share(BLANKS, POINTS), share(SHOUTS, CHUNKS), share(LINES, CHUNKS), share(POINTS, LINES),
        share(ENDED, LINES), share(SHORT, LINES), share(BULLETS, LINES), share(COPIES, LINES), share(COPIED, POINTS),
        share(DISTINCT, WORDS), share(PAIRS, WORDS), share(COMMON, WORDS), log1p(n[:, LONGEST]),
    ]  # fmt: skip
    return np.stack(columns, axis=1).astype(np.float32) if len(n) else np.zeros((0, len(NAMES)), np.float32)


def counts(texts: pa.Array) -> I64:
    """Return the counts behind the features, [D, 21]: code points; letters and digits (beyond ASCII: all that separates
    no words), upper-case letters, ASCII digits, ASCII marks, brackets and signs of programs, characters beyond ASCII,
    white space, `!` and `?`; chunks between white space; lines with anything in them, those that end a sentence, are
    short, start with a bullet, repeat an earlier one, and characters of those; words, distinct words and pairs of
    them, common English words; the longest run of one character other than white space."""
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


# Texts as sentences of tokens, and their scores under a back-off n-gram model.
#
# A line is a sentence, a word or a mark is a token. Letters are lower-cased and digits become `0`, as CCNet (Wenzek et
# al. 2020) does before its language models; unlike there, words stay words and every mark of punctuation is a token of
# its own. Tokens are 64-bit hashes, and `BOUNDARY` ends a sentence; a line without tokens is none.

#: Ends a sentence in the stream of hashes.
BOUNDARY = np.uint64(0)


def tokens(texts: pa.Array) -> tuple[U64, I64, I64]:
    """Return all tokens of all texts, sentence by sentence.

    Returns:
        hashes: [tokens and boundaries]; never `BOUNDARY` for a token.
        places: [the same, 2] first and last byte (half open) of each token in the texts' buffer; boundaries are empty.
        offsets: [documents + 1] where each text's stream starts.
    """
    data, offsets = utf8(texts)
    most = int(offsets[-1] - offsets[0]) * 2 + len(texts) + 1
    hashes, places = np.empty(most, dtype=np.uint64), np.empty((most, 2), dtype=np.int64)
    out = np.zeros(len(texts) + 1, dtype=np.int64)
    size = sentence_tokens(data, offsets, hashes, places, out)
    return hashes[:size], places[:size], out


def normalised_token(text: str) -> str:
    """Return a token in the form that the kernel hashes, for people and ARPA files."""
    return "".join(_normalised_character(char) for char in text)


def _normalised_character(char: str) -> str:
    point = ord(char)
    if point < 128:
        return "0" if char.isdigit() else char.lower()
    return chr(int(lower()[point])) if point < LOWER_SIZE else char


@compiled
def sentence_tokens(data: U8, offsets: I64, hashes: U64, places: I64, out: I64) -> int:
    """Fill in the stream of all texts as `tokens` returns it; returns its size."""


# The model is stored in flat tables.
#
# An n-gram of word numbers below 2^16 is one 64-bit key, the last word in the highest bits: cutting the lowest 16
# bits leaves its suffix, cutting the highest its context. Every order has an open-addressing table from key to
# (log10 probability, log10 back-off). A model holds the suffix of each n-gram that it holds, so looking for longer
# and longer n-grams may stop at the first one missing.

UNKNOWN, BEGIN, END = 0, 1, 2
MAX_ORDER = 4
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)


class NGramTables:
    """The model's n-grams of two words and more in one pair of arrays; orders lie behind one another.

    Args:
        keys: by order from 2: keys, any order, without repeats.
        values: by order from 2: [n, 2] log10 probability and log10 back-off.
    """

    def __init__(self, keys: list[U64], values: list[F32]) -> None:
        sizes = [1 << max(4, int(2 * key.size - 1).bit_length()) for key in keys]
        self.starts = np.cumsum([0, *sizes]).astype(np.int64)
        self.keys = np.full(int(self.starts[-1]), _EMPTY, dtype=np.uint64)
        self.values = np.zeros((int(self.starts[-1]), 2), dtype=np.float32)
        for order, (key, value) in enumerate(zip(keys, values, strict=True)):
            start, stop = self.starts[order], self.starts[order + 1]
            own = np.ascontiguousarray(key), np.ascontiguousarray(value)
            fill_table(self.keys[start:stop], self.values[start:stop], *own)


def score(hashes: U64, offsets: I64, table: U64, numbers: U16, unigrams: F32, tables: NGramTables) -> tuple[F64, I64]:
    """Return the log10 probability of every text under the model.

    Args:
        hashes, offsets: as `tokens` gives them.
        table, numbers: the vocabulary as `vocabulary_table` gives it.
        unigrams: [vocabulary, 2] log10 probability and back-off, by number.

    Returns:
        log10 probabilities [documents], sentence ends included, and counts [documents, 3]: tokens, sentences,
        tokens that the vocabulary does not hold.
    """
    total, counts = np.zeros(offsets.size - 1), np.zeros((offsets.size - 1, 3), dtype=np.int64)
    own = np.ascontiguousarray(unigrams)
    score_texts(hashes, offsets, table, numbers, own, tables.keys, tables.values, tables.starts, total, counts)
    return total, counts


def vocabulary_table(words: U64, numbers: U16) -> tuple[U64, U16]:
    """Return the open-addressing table from a token's hash to its number."""
    size = 1 << max(4, int(2 * words.size).bit_length())
    table, value = np.full(size, _EMPTY, dtype=np.uint64), np.zeros(size, dtype=np.uint16)
    fill_numbers(table, value, np.ascontiguousarray(words), numbers)
    return table, value


def word_numbers(hashes: U64, table: U64, numbers: U16) -> U16:
    """Return the numbers of tokens; `END` for boundaries, `UNKNOWN` for tokens outside the vocabulary."""
    out = np.empty(hashes.size, dtype=np.uint16)
    number_tokens(hashes, table, numbers, out)
    return out


@compiled
def fill_table(table: U64, values: F32, keys: U64, given: F32) -> None:
    """Put keys and their values into an empty table."""


@compiled
def fill_numbers(table: U64, values: U16, words: U64, numbers: U16) -> None:
    """Put words and their numbers into an empty table."""


@compiled
def number_tokens(hashes: U64, table: U64, numbers: U16, out: U16) -> None:
    """Do the same as `word_numbers`."""


@compiled
def score_texts(
    hashes: U64, offsets: I64, table: U64, numbers: U16, unigrams: F32, keys: U64, values: F32, starts: I64,
    total: F64, counts: I64,
) -> None:  # fmt: skip
    """Do the same as `score`."""
