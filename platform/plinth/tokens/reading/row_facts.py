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

from plinth.tokens.reading.compact_batch import CompactBatch
from plinth_text.compiled import compiled

#: The columns of `row_facts`.
FACTS = ("duplicate_ngrams", "top_ngram", "entropy")

#: Tokens of the n-grams of the first two columns. Gopher's rules go to 10 words; a word of English is 1.3 tokens.
DUPLICATE_N, TOP_N = 8, 4


def row_facts(batch: CompactBatch) -> NDArray[np.float64]:
    """The facts of every sequence, [B, FACTS]; a row that is too short for an n-gram repeats nothing."""
    facts = np.zeros((len(batch), len(FACTS)))
    size = 1 << max(4, int(2 * batch.tokens.shape[1] - 1).bit_length())
    fill = facts_u16 if batch.tokens.dtype == np.uint16 else facts_u32
    fill(batch.tokens, _text_lengths(batch), np.empty(size, np.uint64), np.empty(size, np.int64), facts)
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


@compiled
def facts_u16(
    tokens: NDArray[np.uint16], lengths: NDArray[np.int64], keys: NDArray[np.uint64], counts: NDArray[np.int64],
    facts: NDArray[np.float64],
) -> None:  # fmt: skip
    """Fill in the facts of all rows. `keys`, `counts`: a hash table of a power of two of slots."""


@compiled
def facts_u32(
    tokens: NDArray[np.uint32], lengths: NDArray[np.int64], keys: NDArray[np.uint64], counts: NDArray[np.int64],
    facts: NDArray[np.float64],
) -> None:  # fmt: skip
    """As `facts_u16`."""
