"""Documents that are compared with candidates to measure the accuracy of removal: a sample by shared bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near.linking import ALL_PAIRS, Links, Payload
from plinth.records import Part
from plinth.storage.store import Store
from plinth_text.arrays import F32, I64, U64, Bools
from plinth_text.compiled import compiled

#: Documents that are drawn on average, and documents that are chosen for each question and stratum.
POOL, PER_STRATUM = 2048, 100
#: Numbers of shared bands at which a stratum begins.
STRATA = (0, 1, 2, 3, 5, 9)
#: Candidates that a document is compared with, and sets of these that are not empty.
OTHERS = 3
SUBSETS = 2**OTHERS - 1

#: Runs of (hash of a document's id, document, question, number of candidates, bands shared with the first one, bit set
#: of the candidates in the same cluster, candidates, hashes of their ids, similarity by subset of the candidates).
DRAWN, DRAWN_COLUMNS = "drawn", 6 + 2 * OTHERS + SUBSETS
NONE = 2**64 - 1
REMOVED, NEAR = 0, 1


@dataclass(frozen=True)
class Sample:
    """Documents that are compared with candidates, N of them.

    Args:
        own: [N] hash of each document's id.
        document, question: [N] the document, and `REMOVED` (compared with the kept document) or `NEAR`.
        candidates, bands: [N] number of candidates, and number of bands that the first one shares.
        together: [N] bit set of the candidates that are in one cluster with the document.
        others, hashes: [OTHERS, N] the first candidates and the hashes of their ids; `NONE` if there are fewer.
        overlap: [SUBSETS, N] by bit set of candidates, from 1: the size of the intersection of their shingle sets with
            the document's, divided by the size of the union; NaN if unknown, 0 if a candidate is missing.
    """

    own: U64
    document: U64
    question: U64
    candidates: U64
    bands: U64
    together: U64
    others: U64
    hashes: U64
    overlap: F32

    @classmethod
    def read(cls, store: Store, parts: Sequence[Part]) -> Sample:
        """Read sorted runs, in order of hash, document and question."""
        found = [np.empty((DRAWN_COLUMNS, 0), np.uint64)]
        for part in parts:
            with sorted_runs.SortedRun(store, part, DRAWN) as opened:
                found.append(np.stack(opened.all()))
        table = np.concatenate(found, axis=1)
        table = table.take(sorted_runs.in_order(*table[:3]), axis=1)
        others, hashes, overlap = np.split(table[6:], (OTHERS, 2 * OTHERS))
        own, document, question, candidates, bands, together = table[:6]
        similarity = overlap.astype(np.uint32).view(np.float32)
        return cls(own, document, question, candidates, bands, together, others, hashes, similarity)

    def write(self, store: Store, stats: Mapping[str, Any] | None = None) -> Part:
        """Write a sorted run."""
        columns = [self.own, self.document, self.question, self.candidates, self.bands, self.together]
        columns += [*self.others, *self.hashes, *self.overlap.view(np.uint32).astype(np.uint64)]
        order = sorted_runs.in_order(*columns[:3])
        chunk = [column[order] for column in columns]
        return sorted_runs.write(store, "sample.run", DRAWN, [chunk], DRAWN_COLUMNS, stats=stats)

    def take(self, rows: I64) -> Sample:
        """Return some rows."""
        return Sample(*(getattr(self, name).take(rows, axis=-1) for name in self.__dataclass_fields__))

    @property
    def stratum(self) -> I64:
        """[N] The stratum of each document."""
        return np.searchsorted(STRATA, self.bands, side="right") - 1


def limit(documents: int) -> int:
    """Return the hash below which a document is drawn, if this number of documents share a band with another one."""
    return min(2**64 - 1, 2**64 * POOL // max(1, documents))


def draw(links: Links, documents: U64, survivor: I64, below: int, sets: Payload | None) -> Sample:
    """Return the drawn documents of a partition.

    Args:
        links: links of the partition, with the clusters.
        documents: [N] document numbers of the partition.
        survivor: [N] index of the document that is kept from each document's cluster.
        below: hash below which a document is drawn.
        sets: shingle sets of some documents of the partition, if there are any in memory.
    """
    drawn = np.flatnonzero(links.hashes < np.uint64(below))
    marked = np.zeros(documents.size, dtype=np.bool_)
    marked[drawn] = marked[survivor[drawn]] = True
    rows = np.flatnonzero(marked[links.node])
    node, group = links.node[rows], links.group_of(rows)
    mine = np.isin(node, drawn)
    others, bands, candidates = _candidates(links, drawn, node[mine], group[mine])
    near = np.flatnonzero(candidates)
    removed = np.flatnonzero(survivor[drawn] != drawn)
    kept = np.full((OTHERS, removed.size), -1)
    kept[0] = survivor[drawn[removed]]
    width = links.key.size + 1
    has = np.isin(survivor[node[mine]] * width + group[mine], node * width + group)
    with_kept = np.bincount(np.searchsorted(drawn, node[mine]), has, drawn.size)[removed]
    subject, other = np.concatenate([drawn[near], drawn[removed]]), np.concatenate([others[:, near], kept], axis=1)
    missing = other < 0
    bits = (1 << np.arange(OTHERS))[:, None]
    return Sample(
        own=links.hashes[subject],
        document=documents[subject],
        question=np.repeat(np.array([NEAR, REMOVED], dtype=np.uint64), [near.size, removed.size]),
        candidates=np.concatenate([candidates[near], np.ones(removed.size)]).astype(np.uint64),
        bands=np.concatenate([bands[near], with_kept]).astype(np.uint64),
        together=np.where(missing | (links.parent[other] != links.parent[subject]), 0, bits).sum(0).astype(np.uint64),
        others=np.where(missing, np.uint64(NONE), documents[other]),
        hashes=np.where(missing, np.uint64(NONE), links.hashes[other]),
        overlap=overlap(subject, other, sets.values, sets.start, sets.size) if sets else _unknown(other),
    )


#: Runs of (band key, document), from which documents of large components are drawn.
SURROUNDINGS = "surroundings"


def nearest(hashes: U64, below: int) -> Bools:
    """Return a mask of the documents of a group that are drawn or may be candidates of a drawn document: all of a few,
    and those with the smallest hashes of a crowd."""
    if hashes.size <= ALL_PAIRS:
        return np.ones(hashes.size, dtype=np.bool_)
    last = np.partition(hashes, ALL_PAIRS - 1)[ALL_PAIRS - 1]
    mask: Bools = hashes <= max(last, np.uint64(below - 1))
    return mask


def surroundings(links: Links, below: int) -> tuple[U64, I64]:
    """Return band keys and documents of the groups that have a drawn document."""
    drawn = links.group_of(np.flatnonzero((links.hashes < np.uint64(below))[links.node]))
    found = [np.empty(0, np.int64)]
    for group in np.unique(drawn).tolist():
        rows = np.arange(links.bounds[group], links.bounds[group + 1])
        found.append(rows[nearest(links.hashes[links.node[rows]], below)])
    rows = np.concatenate(found)
    return links.key[rows], links.node[rows]


def write_near(store: Store, key: U64, documents: U64) -> Part:
    """Write rows of `SURROUNDINGS`, which are sorted by key."""
    return sorted_runs.write(store, "near.run", SURROUNDINGS, [(key, documents)], 2)


def choose(sample: Sample) -> tuple[Sample, dict[str, list[int]]]:
    """Return the chosen documents of each question and stratum, and the numbers of documents to choose from."""
    pool, chosen = dict[str, list[int]](), []
    for question in (REMOVED, NEAR):
        strata = np.where(sample.question == question, sample.stratum, -1)
        mine = [np.flatnonzero(strata == one) for one in range(len(STRATA))]
        pool[str(question)] = [one.size for one in mine]
        chosen += [one[:PER_STRATUM] for one in mine]
    return sample.take(np.sort(np.concatenate(chosen))), pool


def _candidates(links: Links, drawn: I64, node: I64, group: I64) -> tuple[I64, I64, I64]:
    """Return for each drawn document the `OTHERS` candidates that share the most bands ([OTHERS, N], or -1), the number
    of bands shared with the first one, and the number of candidates.

    Args:
        node, group: the groups of every drawn document.
    """
    start, size = links.bounds[group], np.diff(links.bounds)[group]
    small = np.flatnonzero(size <= ALL_PAIRS)
    row, place = [np.repeat(small, size[small])], [_stretches(start[small], size[small])]
    for crowd in np.unique(group[size > ALL_PAIRS]):
        members = links.node[links.bounds[crowd] : links.bounds[crowd + 1]]
        few = np.argpartition(links.hashes[members], ALL_PAIRS)[:ALL_PAIRS] + links.bounds[crowd]
        within = np.flatnonzero(group == crowd)
        row.append(np.repeat(within, ALL_PAIRS))
        place.append(np.tile(few, within.size))
    subject, other = node[np.concatenate(row)], links.node[np.concatenate(place)]
    subject, other = subject[subject != other], other[subject != other]
    both, bands = np.unique(np.searchsorted(drawn, subject) * links.hashes.size + other, return_counts=True)
    at, other = np.divmod(both, links.hashes.size)
    order = np.lexsort((links.hashes[other], bands, at))[::-1]  # the most bands first
    first = np.searchsorted(-at[order], -np.arange(drawn.size))
    candidates = np.bincount(at, minlength=drawn.size)
    found = np.full((OTHERS, drawn.size), -1)
    for number in range(OTHERS):
        has = np.flatnonzero(candidates > number)
        found[number, has] = other[order][first[has] + number]
    most = np.zeros(drawn.size, dtype=np.int64)
    most[candidates > 0] = bands[order][first[candidates > 0]]
    return found, most, candidates


def _stretches(start: I64, size: I64) -> I64:
    """Return the numbers from each `start` on, as many as its `size`."""
    return np.repeat(start - np.cumsum(size) + size, size) + np.arange(size.sum())


def _unknown(other: I64) -> F32:
    """Return unknown overlaps: NaN, and 0 where a candidate is missing."""
    subsets = np.arange(1, SUBSETS + 1)[:, None]
    missing = (np.where(other < 0, (1 << np.arange(OTHERS))[:, None], 0).sum(0) & subsets) > 0
    return np.where(missing, np.float32(0), np.float32("nan"))


def overlap(subject: I64, other: I64, values: U64, start: I64, size: I64) -> F32:
    """Return the overlap of documents with their candidates (-1: none), from sorted shingle sets. Documents of which a
    set is empty keep unknown overlaps."""
    out = _unknown(other)
    every = np.concatenate([subject[None], other])
    known = np.flatnonzero(((size[every] > 0) | (every < 0)).all(axis=0))
    sizes = np.where(every < 0, 0, size[every])[:, known].T
    found = np.empty((known.size, SUBSETS), dtype=np.float32)
    overlaps(values, np.ascontiguousarray(start[every][:, known].T), np.ascontiguousarray(sizes), found)
    out[:, known] = found.T
    return out


@compiled
def overlaps(values: U64, start: I64, size: I64, out: F32) -> None:
    """Write the size of the intersection divided by the size of the union, by row: the first set and each subset of the
    others, numbered from 1 as a bit set. `start` and `size` are [N, 1 + OTHERS], `out` is [N, SUBSETS]."""
