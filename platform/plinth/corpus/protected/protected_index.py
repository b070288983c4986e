"""All protected items as flat arrays, small enough for every worker to hold.

**Evidence** of an item are its n-grams of 13 words (of all its words, where it has fewer). One that more training
documents have than a bound is boilerplate, as GPT-3 counts it (Brown et al. 2020, appendix C): a licence, an
instruction to the reader. The words that it covers are no evidence. An item without any is undecided: nothing can
tell whether training text holds it. So is one too short to be looked for.

Weights of words are their inverse document frequencies in the training text itself (a sample of it, by hash of
the id): words that every page has weigh nothing, whatever the sets are about.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.corpus.protected.parameters import Protected
from plinth.records import Part
from plinth.storage.parts import read_table
from plinth.storage.store import Store
from plinth_text.arrays import F32, I32, I64, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.words import HashLookup, ngram_hashes

#: An n-gram that more items than this hold is a turn of phrase, and names none of them.
MAX_ITEMS = 200


@dataclass(frozen=True)
class ProtectedIndex:
    """The items.

    Args:
        starts: [items + 1] where each item's words start.
        words: word hashes, in order.
        numbers: the same words by position in `vocabulary`.
        vocabulary: distinct words, sorted.
        evidence: distinct hashes of the n-grams that are evidence where they are not common, sorted.
        evident: [words + 1] how many words before this one are evidence.
        grams: distinct hashes of the shorter n-grams that make candidates, sorted.
        posting_starts: [grams + 1].
        postings: items that hold each n-gram.
        weights: [vocabulary] weight of each word; ones until they are measured.
    """

    starts: I64
    words: U64
    numbers: I32
    vocabulary: U64
    evidence: U64
    evident: I64
    grams: U64
    posting_starts: I64
    postings: I32
    weights: F32

    def lookups(self) -> tuple[HashLookup, HashLookup]:
        """Of n-grams that make candidates, and of words."""
        return HashLookup(self.grams), HashLookup(self.vocabulary)

    def of_item(self, values: I64) -> I64:
        """[items] of running counts by word, the count within each item."""
        return values[self.starts[1:]] - values[self.starts[:-1]]

    def evident_words(self) -> I64:
        """[items] how many words of each item are evidence."""
        return self.of_item(self.evident)

    def without_evidence(self) -> Bools:
        """[items] whether nothing of an item makes a candidate: too short, or all of it common."""
        found: Bools = np.bincount(self.postings, minlength=self.starts.size - 1) == 0
        return found


def items(store: Store, sets: Mapping[str, Part]) -> tuple[list[tuple[str, str]], pa.Array]:
    """(set, item) of every item in order of set and line, and their texts."""
    tables = {name: read_table(store, sets[name], ["item", "text"]) for name in sorted(sets)}
    names = [(name, item) for name, table in tables.items() for item in table["item"].to_pylist()]
    chunks = [chunk for table in tables.values() for chunk in table["text"].chunks]
    return names, pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_string())


def build(texts: pa.Array, params: Protected) -> ProtectedIndex:
    """The index of items, all of their words evidence; those shorter than `min_words` have words and no n-grams."""
    starts, words = ngram_hashes(texts, 1)
    vocabulary, numbers = np.unique(words, return_inverse=True)
    hashes, valid = _evidence_of(starts, words, params)
    plain = ProtectedIndex(
        starts=starts,
        words=words,
        numbers=numbers.astype(np.int32),
        vocabulary=vocabulary,
        evidence=np.unique(hashes[valid]),
        evident=np.arange(words.size + 1, dtype=np.int64),
        grams=np.empty(0, np.uint64),
        posting_starts=np.zeros(1, np.int64),
        postings=np.empty(0, np.int32),
        weights=np.ones(vocabulary.size, dtype=np.float32),
    )
    return _posted(plain, params)


def weighed(
    index: ProtectedIndex, params: Protected, documents: int, frequencies: I64, common: Bools
) -> ProtectedIndex:
    """The index with weights log((D + 2) / (df + 1)) for `df` of `D` sampled documents, and without what is common.

    Nothing weighs 0, or an item all of whose words are in the only document sampled could not be found.

    Args:
        common: [evidence] n-grams that too many training documents have.
    """
    hashes, valid = _evidence_of(index.starts, index.words, params)
    boilerplate = np.zeros(index.words.size, dtype=np.bool_)
    boilerplate[valid] = common[np.searchsorted(index.evidence, hashes[valid])]
    evident = np.empty(index.words.size + 1, dtype=np.int64)
    count_uncovered(index.starts, boilerplate, params.longest_words, evident)
    weights = np.log((documents + 2) / (frequencies + 1)).astype(np.float32)
    return _posted(replace(index, weights=weights, evident=evident), params)


def ngrams_of(words: U64, starts: I64, n: int) -> tuple[I64, U64]:
    """The n-grams of texts whose words are hashed already: starts [D + 1] and hashes, as `hashes.ngram_hashes`."""
    counts = np.diff(starts)
    gram_starts = np.concatenate([[0], np.cumsum(np.maximum(counts - n + 1, np.minimum(counts, 1)))]).astype(np.int64)
    out = np.empty(int(gram_starts[-1]), dtype=np.uint64)
    hash_rolled(words, starts, n, gram_starts, out)
    return gram_starts, out


def evidence_lengths(index: ProtectedIndex, params: Protected) -> list[int]:
    """The lengths in words of all n-grams that are evidence."""
    lengths = np.diff(index.starts)
    return [int(n) for n in np.unique(np.minimum(lengths[lengths >= params.min_words], params.longest_words))]


def write(store: Store, index: ProtectedIndex) -> Part:
    """The index as one part."""
    out = io.BytesIO()
    for name in _fields(index):
        np.save(out, getattr(index, name), allow_pickle=False)
    return Part(name="index.npys", blob=store.put_bytes(out.getvalue()), rows=index.starts.size - 1)


def read(store: Store, part: Part) -> ProtectedIndex:
    """The index out of its part."""
    with store.open_path(part.blob).open("rb") as stream:
        return ProtectedIndex(*(np.load(stream, allow_pickle=False) for _ in fields(ProtectedIndex)))


def _posted(index: ProtectedIndex, params: Protected) -> ProtectedIndex:
    """The index with the n-grams that make candidates: of items long enough, on words that are evidence or beside."""
    n, count = params.candidate_words, index.starts.size - 1
    gram_starts, grams = ngrams_of(index.words, index.starts, n)
    owner = np.repeat(np.arange(count, dtype=np.int32), np.diff(gram_starts))
    first, last = index.starts[owner], index.starts[owner + 1]
    place = first + np.arange(grams.size) - gram_starts[owner]
    # one word to either side: of an item whose last word alone is evidence, two n-grams stay
    near = index.evident[np.minimum(place + n + 1, last)] > index.evident[np.maximum(place - 1, first)]
    kept = near & (last - first >= params.min_words)
    pairs = np.unique(np.stack([grams[kept], owner[kept].astype(np.uint64)], axis=1), axis=0)
    distinct, counts = np.unique(pairs[:, 0], return_counts=True)
    telling = counts <= MAX_ITEMS
    return replace(
        index,
        grams=distinct[telling],
        posting_starts=np.concatenate([[0], np.cumsum(counts[telling])]).astype(np.int64),
        postings=pairs[np.repeat(telling, counts), 1].astype(np.int32),
    )


def _evidence_of(starts: I64, words: U64, params: Protected) -> tuple[U64, Bools]:
    """[words] the hash of the n-gram that begins at each word, and whether one does."""
    hashes, valid = np.zeros(words.size, dtype=np.uint64), np.zeros(words.size, dtype=np.bool_)
    if params.boilerplate_documents is not None:
        find_evidence(starts, words, params.min_words, params.longest_words, hashes, valid)
    return hashes, valid


def _fields(index: ProtectedIndex) -> dict[str, Any]:
    return {field.name: getattr(index, field.name) for field in fields(ProtectedIndex)}


@compiled
def hash_rolled(words: U64, starts: I64, n: int, gram_starts: I64, out: U64) -> None:
    """Fill in the n-gram hashes of all texts, those of each from `gram_starts` on."""


@compiled
def find_evidence(starts: I64, words: U64, least: int, most: int, hashes: U64, valid: Bools) -> None:
    """Fill in what `_evidence_of` returns."""


@compiled
def count_uncovered(starts: I64, boilerplate: Bools, most: int, evident: I64) -> None:
    """Fill in how many words before each are covered by no common n-gram."""
