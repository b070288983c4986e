"""Find protected items in documents: candidates by shared n-grams, each verified in the best stretch of the text.

A stretch of at most `STRETCH` times the item's words around the shared n-grams is compared with the item: the
weight of the item's distinct words that it holds, of the weight of them all, whatever their order; and the longest
run of words that both have in the same order. Insertions, deletions and reworded sentences leave most of the
weight where it was; a text on the same subject does not bring it together in one stretch. Words of an item that are no
evidence (`protected_index`) weigh nothing, and a run of nothing else is none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.corpus.protected.protected_index import ProtectedIndex, ngrams_of
from plinth.text.words.hash_lookup import HashLookup
from plinth.text.words.ngrams import I64, U64, ngram_hashes
from plinth.text.words.word_hashes import mix

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]

STRETCH = 1.5
#: Words of the shortest run that is measured.
SEED = 3
#: Distinct n-grams that a candidate shares with a document.
LEAST_SHARED = 2


class Found(NamedTuple):
    """Pairs that were looked at, [pairs] each.

    Args:
        documents, items: positions.
        longest: words of the longest run; 0 where none of `SEED` words is.
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
        index.starts, index.words, index.numbers, index.evident, index.weights, n,
    ))  # fmt: skip


@njit(nogil=True, cache=True)
def _pairs(owner: I64, places: I64, grams: I64, starts: I64, postings: I32) -> I64:
    """(document, item, position) for every hit and every item that holds the n-gram."""
    total = 0
    for i in range(grams.size):
        total += starts[grams[i] + 1] - starts[grams[i]]
    out = np.empty((total, 3), dtype=np.int64)
    row = 0
    for i in range(grams.size):
        for k in range(starts[grams[i]], starts[grams[i] + 1]):
            out[row, 0], out[row, 1], out[row, 2] = owner[i], postings[k], places[i]
            row += 1
    return out


@njit(nogil=True, cache=True)
def _verify(
    documents: I64, wanted: I64, places: I64, starts: I64, words: U64, known: I64,
    item_starts: I64, item_words: U64, item_numbers: I32, evident: I64, weights: F32, n: int,
) -> tuple[I64, I64, I64, I64, F32]:  # fmt: skip
    kept = np.empty((4, documents.size), dtype=np.int64)
    share = np.empty(documents.size, dtype=np.float32)
    seen = np.full(weights.size, -1, dtype=np.int64)  # last pair that met the word
    size, first = 0, 0
    while first < documents.size:
        last = first
        while last < documents.size and documents[last] == documents[first] and wanted[last] == wanted[first]:
            last += 1
        if last - first >= LEAST_SHARED:
            doc, item = documents[first], wanted[first]
            a, b = item_starts[item], item_starts[item + 1]
            room = int(STRETCH * (b - a)) + n
            low, high = _densest(places, first, last, room)
            start = max(starts[doc], starts[doc] + (low + high + n) // 2 - room // 2)
            stop = min(starts[doc + 1], start + room)
            length, at = _run(words, start, stop, item_words, a, b, evident)
            share[size] = _weight(known, start, stop, item_numbers, a, b, evident, weights, seen, 2 * size)
            kept[0, size], kept[1, size], kept[2, size], kept[3, size] = doc, item, length, at - starts[doc]
            size += 1
        first = last
    return kept[0, :size], kept[1, :size], kept[2, :size], kept[3, :size], share[:size]


@njit(nogil=True, cache=True)
def _densest(places: I64, first: int, last: int, room: int) -> tuple[int, int]:
    """First and last place of the most hits that lie within `room` words."""
    best, left, low, high = 0, first, places[first], places[first]
    for right in range(first, last):
        while places[right] - places[left] > room:
            left += 1
        if right - left + 1 > best:
            best, low, high = right - left + 1, places[left], places[right]
    return low, high


@njit(nogil=True, cache=True)
def _run(words: U64, start: int, stop: int, item: U64, a: int, b: int, evident: I64) -> tuple[int, int]:
    """Longest run of words that stretch and item have in common, one of them evidence at least, and where it begins;
    0 where it has fewer than `SEED`.

    The table of common suffixes, of which only the places with an equal run of `SEED` words are visited: for text they
    are about as many as words, where the whole table is their number times that of the item.
    """
    count = b - a - SEED + 1
    if count < 1:
        return 0, start
    size = 1
    while size < 2 * count:
        size *= 2
    mask = np.uint64(size - 1)
    last, before = np.full(size, -1, dtype=np.int32), np.empty(count, dtype=np.int32)
    for k in range(count):
        slot = _seed(item, a + k) & mask
        before[k] = last[slot]
        last[slot] = k
    length, reached = np.zeros(count, dtype=np.int32), np.full(count, -2, dtype=np.int64)
    best, at = 0, start
    for i in range(start, stop - SEED + 1):
        k = last[_seed(words, i) & mask]
        while k >= 0:  # from the last place down: the one before it still has its length at i - 1
            if words[i] == item[a + k] and words[i + 1] == item[a + k + 1] and words[i + 2] == item[a + k + 2]:
                length[k] = length[k - 1] + 1 if k > 0 and reached[k - 1] == i - 1 else SEED
                reached[k] = i
                end = a + k + SEED
                if length[k] > best and evident[end] > evident[end - length[k]]:
                    best = int(length[k])
                    at = i + SEED - best
            k = before[k]
    return best, at


@njit(inline="always")
def _seed(words: U64, at: Any) -> Any:
    """64 bits of the three words at a place."""
    return mix(words[at] ^ mix(words[at + 1] ^ mix(words[at + 2])))


@njit(nogil=True, cache=True)
def _weight(
    known: I64, start: int, stop: int, numbers: I32, a: int, b: int, evident: I64, weights: F32, seen: I64, mark: int
) -> Any:
    """Share of the weight of the item's distinct words, those that are evidence, that the stretch holds."""
    for i in range(start, stop):
        if known[i] >= 0:
            seen[known[i]] = mark
    held, total = 0.0, 0.0
    for k in range(a, b):
        word = numbers[k]
        if seen[word] == mark + 1 or evident[k + 1] == evident[k]:  # counted already, or no evidence
            continue
        total += weights[word]
        if seen[word] == mark:
            held += weights[word]
        seen[word] = mark + 1
    return held / total if total else 0.0
