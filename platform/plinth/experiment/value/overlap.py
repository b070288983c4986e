"""The share of a sample that the corpus has already: near duplicates by signatures, and word n-grams never seen.

A document of the sample counts as a duplicate when a document of the corpus shares a band key with it and their
signatures agree in at least the recipe's threshold. What a policy or deduplication dropped is not of the corpus; what
protected sets dropped is: its likes are dropped in any bucket. With K hashes the agreement estimates the Jaccard
similarity with a standard error of at most 1 / (2 sqrt K), 0.047 for 112: an estimate, where the pipeline itself
verifies every pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.protected.protected import REASONS as PROTECTED_REASONS
from plinth.corpus.sidecars import Slot, slots
from plinth.records import Manifest, Part
from plinth.storage.parts import iter_aligned, iter_batches
from plinth.storage.store import Store
from plinth_text.similarity.signatures import band_keys, permutations, signatures
from plinth_text.words.ngrams import ngram_hashes

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

NGRAM_WORDS = 5
#: Why protected sets drop a document.
PROTECTED = pa.array(PROTECTED_REASONS)


@dataclass(frozen=True)
class Signed:
    """Signatures [D, K] of the sample's documents, and their band keys [D, bands]; a text without words has none."""

    signatures: U32
    filled: npt.NDArray[np.bool_]
    keys: U64


def signed(texts: Iterable[pa.Array], params: MinHash) -> Signed:
    """Signatures of the sample, batch by batch."""
    a, b = permutations(params.bands * params.rows, params.seed)
    pairs = [signatures(batch, params.shingle_words, a, b) for batch in texts]
    width = params.bands * params.rows
    found = np.concatenate([np.empty((0, width), np.uint32), *(one for one, _ in pairs)])
    filled = np.concatenate([np.empty(0, np.bool_), *(one for _, one in pairs)])
    return Signed(found, filled, band_keys(found, params.bands, params.rows))


def inside(sample: Signed, threshold: float) -> npt.NDArray[np.bool_]:
    """Documents [D] that duplicate an earlier one of the sample."""
    later = np.zeros(len(sample.filled), dtype=np.bool_)
    for band in range(sample.keys.shape[1]):
        keys = np.where(sample.filled, sample.keys[:, band], np.arange(len(later), dtype=np.uint64))
        order = np.argsort(keys, kind="stable")
        first = np.r_[True, keys[order][1:] != keys[order][:-1]]
        heads = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
        rest = order[~first]
        agree = (sample.signatures[rest] == sample.signatures[heads[~first]]).mean(axis=1)
        later[rest] |= (agree >= threshold) & sample.filled[rest]
    return later


def against(
    ctx: Context,
    sample: Signed,
    params: MinHash,
    documents: Mapping[str, Manifest],
    signed_: Mapping[str, Manifest],
    verdicts: Mapping[str, Manifest],
) -> Floats:
    """The greatest agreement [D] of each document with one of the corpus; 0 without candidate."""
    places = slots(documents, signatures=signed_, verdicts=verdicts)
    ask = partial(_ask, ctx.store, sample, params)
    best = np.zeros(len(sample.filled))
    with ctx.progress.meter("sample against the corpus", sum(slot.documents.rows for slot in places)) as meter:
        for slot, found in zip(places, ctx.engine.map(ask, places), strict=True):
            np.maximum(best, found, out=best)
            meter.advance(slot.documents.rows)
    return best


def _ask(store: Store, sample: Signed, params: MinHash, slot: Slot) -> Floats:
    """One part of the corpus: its signatures beside its verdicts."""
    best, width = np.zeros(len(sample.filled)), params.bands * params.rows
    owners = np.flatnonzero(sample.filled)
    flat = sample.keys[owners].reshape(-1)
    order = np.argsort(flat, kind="stable")
    keys, whose = flat[order], np.repeat(owners, params.bands)[order]
    sources = ((slot.sides["signatures"], ["signature"]), (slot.sides["verdicts"], ["decision", "reason"]))
    for mine, judged in iter_aligned(store, *sources):
        column = mine.column("signature")
        protected = pc.fill_null(pc.is_in(judged.column("reason"), PROTECTED), False)
        counted = pc.or_(pc.not_equal(judged.column("decision"), "drop"), protected)
        kept = pc.and_(counted, column.is_valid())
        rows = np.flatnonzero(kept.to_numpy(zero_copy_only=False))
        raw = np.frombuffer(column.buffers()[1], dtype="<u4")[column.offset * width :][: len(column) * width]
        theirs = np.ascontiguousarray(raw.reshape(-1, width)[rows], dtype=np.uint32)
        asked = band_keys(theirs, params.bands, params.rows).reshape(-1)
        low, high = np.searchsorted(keys, asked, "left"), np.searchsorted(keys, asked, "right")
        for at in np.flatnonzero(high > low):
            candidates = whose[low[at] : high[at]]
            agree = (sample.signatures[candidates] == theirs[at // params.bands]).mean(axis=1)
            np.maximum.at(best, candidates, agree)
    return best


def known_ngrams(texts: Iterable[pa.Array]) -> U64:
    """The sorted set of word n-gram hashes of texts; 8 bytes for every different one."""
    found = [np.unique(ngram_hashes(batch, NGRAM_WORDS)[1]) for batch in texts]
    return np.unique(np.concatenate([np.empty(0, np.uint64), *found]))


def new_ngrams(texts: Iterable[pa.Array], known: U64) -> tuple[Floats, Floats]:
    """Number of different n-grams of each text [D], and of those among them that are not known [D]."""
    total: list[int] = []
    fresh: list[int] = []
    for batch in texts:
        starts, hashes = ngram_hashes(batch, NGRAM_WORDS)
        for row in range(starts.size - 1):
            own = np.unique(hashes[starts[row] : starts[row + 1]])
            at = np.minimum(np.searchsorted(known, own), max(0, known.size - 1))
            seen = known[at] == own if known.size else np.zeros(own.size, np.bool_)
            total.append(own.size)
            fresh.append(int(np.count_nonzero(~seen)))
    return np.array(total, dtype=np.float64), np.array(fresh, dtype=np.float64)


def batches_of(store: Store, parts: Iterable[Part], limit: int | None = None) -> Iterator[pa.Array]:
    """Texts of parts, batch by batch, until so many bytes."""
    held = 0
    for part in parts:
        for batch in iter_batches(store, part, ["text"]):
            texts = batch.column("text")
            yield texts
            held += int(pc.sum(pc.binary_length(texts)).as_py() or 0)
            if limit is not None and held >= limit:
                return
