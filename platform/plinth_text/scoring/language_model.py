"""Texts as sentences of tokens, and their scores under a back-off n-gram model.

A line is a sentence, a word or a mark is a token. Letters are lower-cased and digits become `0`, as CCNet (Wenzek et
al. 2020) does before its language models; unlike there, words stay words and every mark of punctuation is a token of
its own. Tokens are 64-bit hashes, and `BOUNDARY` ends a sentence; a line without tokens is none.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import F32, F64, I64, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.unicode import LOWER_SIZE, lower, utf8

#: Ends a sentence in the stream of hashes.
BOUNDARY = np.uint64(0)


def tokens(texts: pa.Array) -> tuple[U64, I64, I64]:
    """All tokens of all texts, sentence by sentence.

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
    """A token in the form that the kernel hashes, for people and ARPA files."""
    return "".join(_normalised_character(char) for char in text)


def _normalised_character(char: str) -> str:
    point = ord(char)
    if point < 128:
        return "0" if char.isdigit() else char.lower()
    return chr(int(lower()[point])) if point < LOWER_SIZE else char


@compiled
def sentence_tokens(data: U8, offsets: I64, hashes: U64, places: I64, out: I64) -> int:
    """Fill in the stream of all texts as `tokens` returns it; returns its size."""


# The model is held in flat tables.
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
    """Log10 probability of every text under the model.

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
    """Open-addressing table from a token's hash to its number."""
    size = 1 << max(4, int(2 * words.size).bit_length())
    table, value = np.full(size, _EMPTY, dtype=np.uint64), np.zeros(size, dtype=np.uint16)
    fill_numbers(table, value, np.ascontiguousarray(words), numbers)
    return table, value


def word_numbers(hashes: U64, table: U64, numbers: U16) -> U16:
    """Numbers of tokens; `END` for boundaries, `UNKNOWN` for tokens outside the vocabulary."""
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
    """As `word_numbers`."""


@compiled
def score_texts(
    hashes: U64, offsets: I64, table: U64, numbers: U16, unigrams: F32, keys: U64, values: F32, starts: I64,
    total: F64, counts: I64,
) -> None:  # fmt: skip
    """As `score`."""
