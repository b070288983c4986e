"""Features for text classifiers, and scores of texts under n-gram language models."""

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
    """Return the feature rows of every text, words first, then word pairs. Only the first `max_words` words are used.

    Returns:
        starts [D + 1] and rows [F]: text d has `rows[starts[d]:starts[d + 1]]`, which is empty if it has no words.
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
    """Write the feature rows of all texts into `out`, and the start of each text's rows into `starts`.

    `words` is scratch memory.
    """


def margins(texts: pa.Array, table: F32, bias: F32, window: int = 0) -> F64:
    """Return the margin of every text for every label, [D, K]. If a text has no words, its margin is the bias.

    Args:
        table: [R, K] weights, where R is a power of two.
        bias: [K] bias of each label.
        window: number of words per stretch; 0 for the whole text. A longer text is cut into stretches; the last stretch
            ends with the text. The margin of the text is the largest margin of its stretches, so that a short passage
            in a long text is not averaged away.
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
    """Write the margins of all texts for a single label into `out`. `words` is scratch memory."""


@compiled
def every_margin(
    data: U8, offsets: I64, table: F32, bias: F32, shift: int, window: int, words: U64, total: F64, out: F64
) -> None:
    """Write the margins of all texts for all labels into `out`. `words` and `total`, [K], are scratch memory."""


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
    """Return the surface features of every text, [D, N]. All values are finite; shares are 0 if the divisor is 0."""
    return from_counts(counts(texts))


def from_counts(counted: I64) -> npt.NDArray[np.float32]:
    """Return the surface features that follow from counts, [D, 21]."""
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
    """Count the characters, lines and words behind the surface features, [D, 21].

    The columns of characters are: code points; letters and digits (beyond ASCII, all characters that do not separate
    words); upper-case letters; ASCII digits; ASCII punctuation marks; brackets and symbols of program code; characters
    beyond ASCII; white space; `!` and `?`. Chunks between white space follow.

    The columns of lines are: lines that are not blank; lines that end a sentence, are short, start with a bullet, or
    repeat an earlier line; and the characters of repeated lines.

    The columns of words are: words, distinct words, distinct word pairs, and common English words. The last column is
    the longest run of one character other than white space.
    """
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
    """Write the surface counts of characters and lines into the columns of `out`; `keys` is scratch memory."""


@compiled
def word_counts(data: U8, offsets: I64, common: U64, words: U64, keys: U64, out: I64) -> None:
    """Write the surface counts of words into the columns of `out`; `words` and `keys` are scratch memory."""


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
        hashes: [tokens and boundaries] hashes of tokens, and `BOUNDARY` after each sentence.
        places: [tokens and boundaries, 2] first and last byte (half open) of each token in the texts' buffer; empty for
            boundaries.
        offsets: [documents + 1] index at which each text's tokens start.
    """
    data, offsets = utf8(texts)
    most = int(offsets[-1] - offsets[0]) * 2 + len(texts) + 1
    hashes, places = np.empty(most, dtype=np.uint64), np.empty((most, 2), dtype=np.int64)
    out = np.zeros(len(texts) + 1, dtype=np.int64)
    size = sentence_tokens(data, offsets, hashes, places, out)
    return hashes[:size], places[:size], out


def normalised_token(text: str) -> str:
    """Return the normalized form of a token, which the kernel hashes; used for ARPA files and inspection."""
    return "".join(_normalised_character(char) for char in text)


def _normalised_character(char: str) -> str:
    point = ord(char)
    if point < 128:
        return "0" if char.isdigit() else char.lower()
    return chr(int(lower()[point])) if point < LOWER_SIZE else char


@compiled
def sentence_tokens(data: U8, offsets: I64, hashes: U64, places: I64, out: I64) -> int:
    """Write the tokens of all texts into the arrays that `tokens` returns, and return their number, including
    boundaries."""


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
    """All n-grams of two or more words in a language model, in one pair of arrays for all orders.

    Args:
        keys: for each order from 2, the keys of its n-grams, in any order and without repeats.
        values: for each order from 2, [n, 2] log10 probability and log10 back-off weight.
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
        hashes, offsets: as returned by `tokens`.
        table, numbers: the vocabulary, as returned by `vocabulary_table`.
        unigrams: [vocabulary, 2] log10 probability and back-off weight, by word number.

    Returns:
        log10 probabilities [documents], including sentence ends, and counts [documents, 3]: tokens, sentences, and
        tokens outside the vocabulary.
    """
    total, counts = np.zeros(offsets.size - 1), np.zeros((offsets.size - 1, 3), dtype=np.int64)
    own = np.ascontiguousarray(unigrams)
    score_texts(hashes, offsets, table, numbers, own, tables.keys, tables.values, tables.starts, total, counts)
    return total, counts


def vocabulary_table(words: U64, numbers: U16) -> tuple[U64, U16]:
    """Return an open-addressing table that maps a token's hash to its word number."""
    size = 1 << max(4, int(2 * words.size).bit_length())
    table, value = np.full(size, _EMPTY, dtype=np.uint64), np.zeros(size, dtype=np.uint16)
    fill_numbers(table, value, np.ascontiguousarray(words), numbers)
    return table, value


def word_numbers(hashes: U64, table: U64, numbers: U16) -> U16:
    """Return the word numbers of tokens: `END` for boundaries, and `UNKNOWN` for tokens outside the vocabulary."""
    out = np.empty(hashes.size, dtype=np.uint16)
    number_tokens(hashes, table, numbers, out)
    return out


@compiled
def fill_table(table: U64, values: F32, keys: U64, given: F32) -> None:
    """Insert keys and their values into an empty table."""


@compiled
def fill_numbers(table: U64, values: U16, words: U64, numbers: U16) -> None:
    """Insert word hashes and their numbers into an empty table."""


@compiled
def number_tokens(hashes: U64, table: U64, numbers: U16, out: U16) -> None:
    """Write the word number of each token into `out`."""


@compiled
def score_texts(
    hashes: U64, offsets: I64, table: U64, numbers: U16, unigrams: F32, keys: U64, values: F32, starts: I64,
    total: F64, counts: I64,
) -> None:  # fmt: skip
    """Write the log10 probabilities of all texts into `total`, and the counts of tokens and sentences into `counts`."""
