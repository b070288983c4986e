"""Find protected items in documents: candidates by shared n-grams, each verified in the best stretch of the text.

A stretch of at most 1.5 times the item's words around the shared n-grams is compared with the item: the weight of the
item's distinct words that it holds, of the weight of them all, whatever their order; and the longest run of words that
both have in the same order. Insertions, deletions and reworded sentences leave most of the
weight where it was; a text on the same subject does not bring it together in one stretch. Words of an item that are no
evidence (`protected_index`) weigh nothing, and a run of nothing else is none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.corpus.protected.protected_index import ProtectedIndex, ngrams_of
from plinth_text.compiled import compiled
from plinth_text.words.hash_lookup import HashLookup
from plinth_text.words.ngrams import I64, U64, ngram_hashes

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


class Found(NamedTuple):
    """Pairs that were looked at, [pairs] each.

    Args:
        documents, items: positions.
        longest: words of the longest run; 0 where none of 3 words is.
        first: the document's word that the run begins with.
        share: of the item's weight.
    """

    documents: I64
    items: I64
    longest: I64
    first: I64
    share: F32


def find(texts: pa.Array, n: int, index: ProtectedIndex, lookups: tuple[HashLookup, HashLookup]) -> Found:
    """Every (document, item) that share enough to be looked at."""
    starts, words = ngram_hashes(texts, 1)
    gram_starts, grams = ngrams_of(words, starts, n)
    where = lookups[0].find(grams)
    hit = np.flatnonzero(where >= 0)
    owner = np.searchsorted(gram_starts, hit, side="right") - 1
    found = _pairs(owner, hit - gram_starts[owner], where[hit], index.posting_starts, index.postings)
    documents, wanted, places = found[:, 0], found[:, 1], found[:, 2]
    order = np.lexsort((places, wanted, documents))
    return Found(*_verify(
        documents[order], wanted[order], places[order], starts, words, lookups[1].find(words) if order.size else starts,
        index, n,
    ))  # fmt: skip


def _pairs(owner: I64, places: I64, grams: I64, starts: I64, postings: I32) -> I64:
    """(document, item, position) for every hit and every item that holds the n-gram."""
    out = np.empty((int((starts[grams + 1] - starts[grams]).sum()), 3), dtype=np.int64)
    hit_items(owner, places, grams, starts, postings, out)
    return out


def _verify(
    documents: I64, wanted: I64, places: I64, starts: I64, words: U64, known: I64, index: ProtectedIndex, n: int
) -> tuple[I64, I64, I64, I64, F32]:
    kept, share = np.empty((4, documents.size), dtype=np.int64), np.empty(documents.size, dtype=np.float32)
    longest = int(np.diff(index.starts).max(initial=0))
    last = np.empty(1 << (2 * longest).bit_length(), dtype=np.int32)
    before, length = np.empty(longest, dtype=np.int32), np.empty(longest, dtype=np.int32)
    size = verify(
        documents, wanted, places, starts, words, known, index.starts, index.words, index.numbers, index.evident,
        index.weights, n, np.full(index.weights.size, -1, dtype=np.int64), last, before, length,
        np.empty(longest, dtype=np.int64), kept, share,
    )  # fmt: skip
    document, item, run, at = kept[:, :size]
    return document, item, run, at, share[:size]


@compiled
def hit_items(owner: I64, places: I64, grams: I64, starts: I64, postings: I32, out: I64) -> None:
    """Fill in (document, item, position) for every hit and every item that holds the n-gram."""


@compiled
def verify(
    documents: I64, wanted: I64, places: I64, starts: I64, words: U64, known: I64, item_starts: I64, item_words: U64,
    item_numbers: I32, evident: I64, weights: F32, n: int, seen: I64, last: I32, before: I32, length: I32,
    reached: I64, kept: I64, share: F32,
) -> int:  # fmt: skip
    """Fill in `Found`, as rows of `kept`, and `share`; returns the number of pairs. `seen` to `reached`: scratch."""
