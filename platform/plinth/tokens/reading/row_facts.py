"""Facts about the text of rows, from their token ids alone: repetition and entropy.

    duplicate_ngrams   share of a row's 8-grams that came before in it
    top_ngram          share of a row's 4-grams that are the commonest one
    entropy            of the distribution of a row's tokens, in bits a token

The first two are the repetition rules of Rae et al. 2021 (arXiv:2112.11446, table A1), there of words in documents.
n-grams are counted by 64-bit hashes. One compiled pass over a row, in an order of its own, without the GIL: the same
numbers on any number of workers. Padding at the end of a row is left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plinth.compiled import njit
from plinth.tokens.reading.compact_batch import CompactBatch

#: The columns of `row_facts`.
FACTS = ("duplicate_ngrams", "top_ngram", "entropy")

#: Tokens of the n-grams of the first two columns. Gopher's rules go to 10 words; a word of English is 1.3 tokens.
DUPLICATE_N, TOP_N = 8, 4


def row_facts(batch: CompactBatch) -> NDArray[np.float64]:
    """The facts of every sequence, [B, FACTS]; a row that is too short for an n-gram repeats nothing."""
    facts = np.zeros((len(batch), len(FACTS)))
    size = 1 << max(4, int(2 * batch.tokens.shape[1] - 1).bit_length())
    _facts(batch.tokens, _text_lengths(batch), np.empty(size, np.uint64), np.empty(size, np.int64), facts)
    return facts


def _text_lengths(batch: CompactBatch) -> NDArray[np.int64]:
    """[B] tokens of each sequence before its padding: the run of targets, not scored, that ends with the row."""
    targets = batch.tokens.shape[1] - 1
    lengths = np.full(len(batch), targets + 1, np.int64)
    if batch.unscored is not None and len(batch.unscored):
        begins, ends = batch.unscored[:, 0].astype(np.int64), batch.unscored[:, 1].astype(np.int64)
        last = ends % targets == 0
        rows = ends[last] // targets - 1
        lengths[rows] = begins[last] - rows * targets + 1
    return lengths


@njit(nogil=True, cache=True)
def _facts(tokens, lengths, keys, counts, facts):  # type: ignore[no-untyped-def]
    for row in range(len(tokens)):
        length = lengths[row]
        distinct, _ = _tally(tokens[row], length, DUPLICATE_N, keys, counts)
        grams = length - DUPLICATE_N + 1
        if grams > 0:
            facts[row, 0] = (grams - distinct) / grams
        _, most = _tally(tokens[row], length, TOP_N, keys, counts)
        grams = length - TOP_N + 1
        if grams > 0:
            facts[row, 1] = most / grams
        _tally(tokens[row], length, 1, keys, counts)
        total = 0.0
        for slot in range(len(counts)):
            if counts[slot] > 1:
                total += counts[slot] * np.log2(counts[slot])
        facts[row, 2] = np.log2(length) - total / length


@njit(nogil=True, cache=True)
def _tally(row, length, n, keys, counts):  # type: ignore[no-untyped-def]
    """Count a row's n-grams in an open hash table of a power of two of slots; how many are distinct, and the most of
    one."""
    counts[:] = 0
    mask = np.uint64(len(keys) - 1)
    distinct = most = 0
    for at in range(length - n + 1):
        key = np.uint64(0)
        for token in row[at : at + n]:
            key = (key ^ np.uint64(token)) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(32)
        slot = key & mask
        while counts[slot] and keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        keys[slot] = key
        distinct += counts[slot] == 0
        counts[slot] += 1
        most = max(most, counts[slot])
    return distinct, most
