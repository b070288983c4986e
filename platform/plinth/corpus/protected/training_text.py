"""What protected items are compared with, and how common their n-grams and words are in it.

Considered are the documents that would train: survivors that are not held out. Compared and counted are those of them
that no set denies by their address: pages of a benchmark's mirrors are dropped anyway, and must not make its items
common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.protected import protected_index, tallies
from plinth.corpus.protected.parameters import Protected
from plinth.corpus.sidecars import Slot
from plinth.records import Part
from plinth.storage.parts import iter_aligned
from plinth.storage.store import Store
from plinth_text.arrays import I32, I64, Bools
from plinth_text.compiled import compiled
from plinth_text.words import HashLookup, ngram_hashes

#: One document in so many is looked at for the weights of words.
SAMPLED = 8


@dataclass(frozen=True)
class Work:
    """A part of documents with its sidecars, and the index of the items."""

    slot: Slot
    params: Protected
    index: Part


def considered(
    store: Store, slot: Slot, params: Protected, columns: Sequence[str] = ("id", "text", "uri")
) -> Iterator[tuple[pa.RecordBatch, Bools, Bools]]:
    """Batches of documents, which of them would train, and which come from an address that some set denies."""
    sources = ((slot.documents, list(columns)), (slot.sides["survivors"], ["survivor"]))
    for documents, near, held in iter_aligned(store, *sources, (slot.sides["holdout"], ["held_out"])):
        mask = pc.and_not(near.column("survivor"), held.column("held_out"))
        yield documents, mask.to_numpy(zero_copy_only=False), _denied(documents, params)


def _denied(documents: pa.RecordBatch, params: Protected) -> Bools:
    found = np.zeros(documents.num_rows, dtype=np.bool_)
    for piece in sorted({piece for family in params.families.values() for piece in family.deny}):
        held = pc.match_substring(documents.column("uri"), piece, ignore_case=True)
        found |= held.to_numpy(zero_copy_only=False)
    return found


def counted(store: Store, work: Work) -> tuple[Part, ...]:
    """Two tallies of a part: documents by word of the items, of a sample; and by n-gram that is evidence, at most one
    more than `boilerplate_documents`."""
    index, limit = protected_index.read(store, work.index), work.params.boilerplate_documents
    words, evidence = HashLookup(index.vocabulary), HashLookup(index.evidence)
    lengths = protected_index.evidence_lengths(index, work.params) if limit is not None else []
    by_word, by_gram = (np.zeros(size, dtype=np.int64) for size in (index.vocabulary.size, index.evidence.size))
    last_word, last_gram = np.full(by_word.size, -1, dtype=np.int32), np.full(by_gram.size, -1, dtype=np.int32)
    first = looked_at = 0
    for documents, would_train, denied in considered(store, work.slot, work.params):
        mask = would_train & ~denied
        starts, hashes = ngram_hashes(documents.column("text").filter(pa.array(mask)), 1)
        drawn = _drawn(documents.column("id").filter(pa.array(mask)))
        count_once(starts, words.find(hashes), drawn, first, last_word, by_word, np.iinfo(np.int64).max)
        for n in lengths:
            gram_starts, grams = protected_index.ngrams_of(hashes, starts, n)
            every = np.ones(drawn.size, dtype=np.bool_)
            count_once(gram_starts, evidence.find(grams), every, first, last_gram, by_gram, (limit or 0) + 1)
        first, looked_at = first + drawn.size, looked_at + int(drawn.sum())
    return (
        tallies.sparse(store, "words.parquet", by_word, looked_at),
        tallies.sparse(store, "grams.parquet", by_gram),
    )


def _drawn(ids: pa.Array) -> Bools:
    found: Bools = np.frombuffer(b"".join(ids.to_pylist()), dtype="<u4").reshape(-1, 4)[:, 2] % SAMPLED == 0
    return found


@compiled
def count_once(starts: I64, where: I64, drawn: Bools, first: int, last: I32, counts: I64, most: int) -> None:
    """Count each position once per document, up to `most`; `last` has the document that met it last."""
