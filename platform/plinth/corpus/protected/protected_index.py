"""All protected items as flat arrays, small enough for every worker to hold.

Weights of words are their inverse document frequencies in the training text itself (a sample of it, by hash of
the id): words that every page has weigh nothing, whatever the sets are about.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.records import Manifest, Part
from plinth.storage.parts import read_table
from plinth.storage.store import Store
from plinth.text.words.hash_lookup import HashLookup
from plinth.text.words.ngrams import I64, U64, ngram_hashes

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

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
        grams: distinct n-gram hashes that make candidates, sorted.
        posting_starts: [grams + 1].
        postings: items that hold each n-gram.
        weights: [vocabulary] weight of each word; ones until they are measured.
    """

    starts: I64
    words: U64
    numbers: I32
    vocabulary: U64
    grams: U64
    posting_starts: I64
    postings: I32
    weights: F32

    def lookups(self) -> tuple[HashLookup, HashLookup]:
        """Of n-grams and of words."""
        return HashLookup(self.grams), HashLookup(self.vocabulary)


def items(store: Store, sets: Mapping[str, Manifest]) -> tuple[list[tuple[str, str]], pa.Array]:
    """(set, item) of every item in order of set and line, and their texts."""
    tables = {name: read_table(store, sets[name].parts[0]) for name in sorted(sets)}
    names = [(name, item) for name, table in tables.items() for item in table["item"].to_pylist()]
    chunks = [chunk for table in tables.values() for chunk in table["text"].chunks]
    return names, pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_string())


def build(texts: pa.Array, candidate_words: int, min_words: int) -> ProtectedIndex:
    """The index of items; those shorter than `min_words` have words and no n-grams, so they are never found."""
    starts, words = ngram_hashes(texts, 1)
    gram_starts, grams = ngram_hashes(texts, candidate_words)
    owner = np.repeat(np.arange(len(texts), dtype=np.int32), np.diff(gram_starts))
    long_enough = np.diff(starts)[owner] >= min_words
    pairs = np.unique(np.stack([grams[long_enough], owner[long_enough].astype(np.uint64)], axis=1), axis=0)
    distinct, counts = np.unique(pairs[:, 0], return_counts=True)
    telling = counts <= MAX_ITEMS
    kept = np.repeat(telling, counts)
    vocabulary, numbers = np.unique(words, return_inverse=True)
    return ProtectedIndex(
        starts=starts,
        words=words,
        numbers=numbers.astype(np.int32),
        vocabulary=vocabulary,
        grams=distinct[telling],
        posting_starts=np.concatenate([[0], np.cumsum(counts[telling])]).astype(np.int64),
        postings=pairs[kept, 1].astype(np.int32),
        weights=np.ones(vocabulary.size, dtype=np.float32),
    )


def weighed(index: ProtectedIndex, documents: int, frequencies: I64) -> ProtectedIndex:
    """The index with weights log((D + 1) / (df + 1)) for `df` of `D` sampled documents."""
    weights = np.log((documents + 1) / (frequencies + 1)).astype(np.float32)
    return ProtectedIndex(**{**_fields(index), "weights": weights})


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


def _fields(index: ProtectedIndex) -> dict[str, Any]:
    return {field.name: getattr(index, field.name) for field in fields(ProtectedIndex)}
