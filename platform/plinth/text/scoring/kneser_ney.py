"""Score tokens with a back-off n-gram model held in flat tables.

An n-gram of word numbers below 2^16 is one 64-bit key, the last word in the highest bits: cutting the lowest 16
bits leaves its suffix, cutting the highest its context. Every order has an open-addressing table from key to
(log10 probability, log10 back-off). A model holds the suffix of each n-gram that it holds, so looking for longer
and longer n-grams may stop at the first one missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.compiled import njit
from plinth.text.words.ngrams import I64, U64
from plinth.text.words.sentences import BOUNDARY

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
U16 = npt.NDArray[np.uint16]

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
            _fill(self.keys[start:stop], self.values[start:stop], key, np.ascontiguousarray(value))


def score(hashes: U64, offsets: I64, table: U64, numbers: U16, unigrams: F32, tables: NGramTables) -> tuple[F64, I64]:
    """Log10 probability of every text under the model.

    Args:
        hashes, offsets: as `sentences.tokens` gives them.
        table, numbers: the vocabulary as `vocabulary_table` gives it.
        unigrams: [vocabulary, 2] log10 probability and back-off, by number.

    Returns:
        log10 probabilities [documents], sentence ends included, and counts [documents, 3]: tokens, sentences,
        tokens that the vocabulary does not hold.
    """
    total, counts = np.zeros(offsets.size - 1), np.zeros((offsets.size - 1, 3), dtype=np.int64)
    _score(hashes, offsets, table, numbers, unigrams, tables.keys, tables.values, tables.starts, total, counts)
    return total, counts


def vocabulary_table(words: U64, numbers: U16) -> tuple[U64, U16]:
    """Open-addressing table from a token's hash to its number."""
    size = 1 << max(4, int(2 * words.size).bit_length())
    table, value = np.full(size, _EMPTY, dtype=np.uint64), np.zeros(size, dtype=np.uint16)
    _index(table, value, words, numbers)
    return table, value


def word_numbers(hashes: U64, table: U64, numbers: U16) -> U16:
    """Numbers of tokens; `END` for boundaries, `UNKNOWN` for tokens outside the vocabulary."""
    out = np.empty(hashes.size, dtype=np.uint16)
    _number(hashes, table, numbers, out)
    return out


@njit(inline="always")
def _slot(key: Any, mask: Any) -> Any:
    mixed = key * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(mask))


@njit(nogil=True, cache=True)
def _fill(table: U64, values: F32, keys: U64, given: F32) -> None:
    mask = table.size - 1
    for i in range(keys.size):
        at = _slot(keys[i], mask)
        while table[at] != _EMPTY:
            at = (at + 1) & mask
        table[at] = keys[i]
        values[at, 0], values[at, 1] = given[i, 0], given[i, 1]


@njit(nogil=True, cache=True)
def _index(table: U64, values: U16, words: U64, numbers: U16) -> None:
    mask = table.size - 1
    for i in range(words.size):
        at = _slot(words[i], mask)
        while table[at] != _EMPTY:
            at = (at + 1) & mask
        table[at] = words[i]
        values[at] = numbers[i]


@njit(inline="always")
def _word(token: Any, table: Any, numbers: Any) -> Any:
    mask = table.size - 1
    at = _slot(token, mask)
    while table[at] != _EMPTY and table[at] != token:
        at = (at + 1) & mask
    return numbers[at] if table[at] == token else np.uint16(UNKNOWN)


@njit(nogil=True, cache=True)
def _number(hashes: U64, table: U64, numbers: U16, out: U16) -> None:
    for i in range(hashes.size):
        out[i] = END if hashes[i] == BOUNDARY else _word(hashes[i], table, numbers)


@njit(nogil=True, cache=True)
def _score(
    hashes: U64, offsets: I64, table: U64, numbers: U16, unigrams: F32,
    keys: U64, values: F32, starts: I64, total: F64, counts: I64,
) -> None:  # fmt: skip
    highest = starts.size  # order of the model: unigrams and starts.size - 1 tables
    history = np.zeros(MAX_ORDER, dtype=np.uint64)  # [0] is the word before
    backoff = np.zeros(MAX_ORDER)  # of the known contexts that end there, by length - 1
    found = np.zeros(MAX_ORDER)
    for doc in range(offsets.size - 1):
        known, at_start = 0, True
        for i in range(offsets[doc], offsets[doc + 1]):
            if at_start:
                history[0], known, at_start = np.uint64(BEGIN), 1, False
                backoff[0] = unigrams[BEGIN, 1]
                counts[doc, 1] += 1
            ends = hashes[i] == BOUNDARY
            word = np.uint64(END) if ends else np.uint64(_word(hashes[i], table, numbers))
            counts[doc, 0] += not ends
            counts[doc, 2] += word == UNKNOWN
            logp, longest = np.float64(unigrams[word, 0]), 1
            found[0] = unigrams[word, 1]
            key = word
            for order in range(2, min(known + 1, highest) + 1):
                key = (key << np.uint64(16)) | history[order - 2]
                base = starts[order - 2]
                mask = starts[order - 1] - base - 1
                at = _slot(key, mask)
                while keys[base + at] != _EMPTY and keys[base + at] != key:
                    at = (at + 1) & mask
                if keys[base + at] == _EMPTY:
                    break
                logp, longest = np.float64(values[base + at, 0]), order
                found[order - 1] = values[base + at, 1]
            for length in range(longest, known + 1):  # contexts that were too long
                logp += backoff[length - 1]
            total[doc] += logp
            known = min(longest, highest - 1)
            for k in range(MAX_ORDER - 1, 0, -1):
                history[k] = history[k - 1]
            history[0] = word
            backoff[:] = found
            at_start = ends
