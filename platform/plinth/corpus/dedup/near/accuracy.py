"""Precision and recall of removal: the exact Jaccard similarity on a sample of documents, drawn by shared bands.

    draw       per partition, in the task that compares it: some documents, each with the candidates that share the most
               bands, and with the document that is kept in its place
    choose     in one task: up to `PER_STRATUM` documents for each number of shared bands; similarities known from an
               earlier run
    sets       per part of documents with a similarity that is still unknown: shingle sets
    measure    in one task: similarities and rates

Precision is the share of removed documents whose similarity to the kept document of their cluster reaches the
threshold. Clusters are transitive, so a removed document may be similar to a third document only.

Recall is the share of documents with a duplicate that are in one cluster with a duplicate. The sample only has
documents that share a band with a duplicate. The others were missed; their number follows from the sample (Horvitz and
Thompson 1952). Let p_T be the probability that a document shares a band with all duplicates of a set T, and O the set
of duplicates with which it does share a band. The document stands for

    sum over the subsets T of O, except the empty one, of (-1)^(|T| + 1) / p_T

documents. The expected value is 1 for every document that has duplicates. With one duplicate of similarity s, this
is 1 / p, where p = 1 - (1 - s^rows)^bands. A document that shares bands with more than `OTHERS` duplicates stands for
itself.

Pairs that share few bands are rare and the most uncertain. Each number of shared bands is a stratum, and documents are
weighted by the size of their stratum. The intervals are for the rates of this corpus, so their variance has a part for
the sample and a part for the number of missed documents, which is random. They are those of Fay and Feuer (1997) for
weighted counts of rare events. The lower limit of the count is moved by one event, because the count is discrete.
The choice depends on document ids alone, and the cost does not depend on the size of the corpus.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near import linking
from plinth.corpus.dedup.near.linking import ALL_PAIRS, SIMILARITIES, KnownSimilarities, Links, Payload
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.dedup.run_tree import keyed, narrow
from plinth.corpus.sidecars import SlotNumbers
from plinth.corpus.slices.rates import Z, percent
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth_text.arrays import F32, F64, I64, U64, Bools
from plinth_text.compiled import compiled

VERSION = "2"
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
#: Runs of (document, hash of a shingle).
SETS = "shingles"


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
        overlap=_overlap(subject, other, sets.values, sets.start, sets.size) if sets else _unknown(other),
    )


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


def _overlap(subject: I64, other: I64, values: U64, start: I64, size: I64) -> F32:
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


def measure(
    ctx: Context, asset: str, params: MinHash, drawn: Sequence[Part], documents: Sequence[Part], layout: SlotNumbers,
    below: int,
) -> Mapping[str, Any]:  # fmt: skip
    """Return precision and recall of removal, with 95% intervals, and the counts of every stratum.

    Args:
        drawn: sorted runs of `DRAWN`, from `draw`.
        documents: all parts of documents.
        below: hash below which a document was drawn.
    """
    few = narrow(ctx, DRAWN, DRAWN_COLUMNS, drawn, f"{asset} sample")
    measuring = Step(name=f"{asset}/accuracy", version=VERSION, params=params.resolved())
    inputs = (keyed(few), keyed(documents))  # known similarities change how much is read, and not the rates
    if done := ctx.cache.get(measuring.key(inputs)):
        return done[0].stats
    exact = params.model_copy(update={"verify": "text"}).similarity()
    label, definition = f"{asset} accuracy", {"version": VERSION, "for": "accuracy", **exact}
    known = linking.recall(ctx, definition)
    step = Step(name=f"{asset}/accuracy/choose", version=VERSION)
    item = Item((keyed(few), *(known.keys if known else ())), _Choose(few, known))
    chosen = run_items(ctx, step, _choose, [item], label=label)[0][0]
    rows = defaultdict[int, list[int]](list)
    for number in _to_read(Sample.read(ctx.store, [chosen])):
        slot = bisect_right(layout.bases, number) - 1
        rows[slot].append(number - layout.bases[slot])
    step = Step(name=f"{asset}/accuracy/sets", version=VERSION, params=exact, libraries=fingerprint.UNICODE)
    items = [
        Item(
            (documents[slot].blob.sha256, str(layout.bases[slot]), fingerprint.digest(mine)),
            _Sets(documents[slot], layout.bases[slot], tuple(mine), params),
        )
        for slot, mine in sorted(rows.items())
    ]
    sets = narrow(ctx, SETS, 2, [made[0] for made in run_items(ctx, step, _sets, items, label=label)], label)
    item = Item(inputs, _Measure(chosen, sets, params, known, below / 2**64))
    fresh = run_items(ctx, measuring, _measure, [item], label=label)[0][0]
    linking.remember(ctx, definition, known, [fresh])
    return fresh.stats


def _to_read(sample: Sample) -> list[int]:
    """Return the documents of which an overlap is not known."""
    unknown = np.isnan(sample.overlap).any(axis=0)
    wanted = np.unique(np.concatenate([sample.document[unknown], *sample.others[:, unknown]]))
    return list(wanted[wanted != np.uint64(NONE)].tolist())


@dataclass(frozen=True)
class _Choose:
    drawn: tuple[Part, ...]
    known: KnownSimilarities | None


def _choose(store: Store, task: _Choose) -> tuple[Part, ...]:
    few, pool = choose(Sample.read(store, task.drawn))
    _, fact = _looked_up(store, few, task.known)
    few.overlap[:] = np.where(np.isnan(few.overlap), fact.astype(np.uint32).view(np.float32), few.overlap)
    return (few.write(store, stats={"pool": pool}),)


def choose(sample: Sample) -> tuple[Sample, dict[str, list[int]]]:
    """Return the chosen documents of each question and stratum, and the numbers of documents to choose from."""
    pool, chosen = dict[str, list[int]](), []
    for question in (REMOVED, NEAR):
        strata = np.where(sample.question == question, sample.stratum, -1)
        mine = [np.flatnonzero(strata == one) for one in range(len(STRATA))]
        pool[str(question)] = [one.size for one in mine]
        chosen += [one[:PER_STRATUM] for one in mine]
    return sample.take(np.sort(np.concatenate(chosen))), pool


def _looked_up(store: Store, sample: Sample, known: KnownSimilarities | None) -> tuple[U64, U64]:
    """Return keys and values in the similarity cache of all overlaps. The overlap with a set of candidates has the key
    of a pair, in which the sum of their hashes is the hash of the second document."""
    pairs, values = known.open(store) if known else (np.empty(0, np.uint64), np.empty(0, np.uint64))
    key, fact = np.empty((2, *sample.overlap.shape), dtype=np.uint64)
    for number in range(SUBSETS):
        second = sum((sample.hashes[i] for i in range(OTHERS) if number + 1 >> i & 1), np.zeros_like(sample.own))
        linking.look_up_pairs(sample.own, second, pairs, values, key[number], fact[number])
    return key, fact


@dataclass(frozen=True)
class _Sets:
    documents: Part
    base: int
    rows: tuple[int, ...]
    params: MinHash


def _sets(store: Store, task: _Sets) -> tuple[Part, ...]:
    rows = np.array(task.rows, dtype=np.int64)
    batches = sorted_runs.iter_rows(store, task.documents, ["text"], rows)
    sets = [one for batch in batches for one in linking.sets(batch.column("text"), task.params)]
    number = np.repeat(rows.astype(np.uint64) + np.uint64(task.base), [one.size for one in sets])
    return (sorted_runs.write(store, "sets.run", SETS, [(number, np.concatenate(sets))], 2),)


@dataclass(frozen=True)
class _Measure:
    chosen: Part
    sets: tuple[Part, ...]
    params: MinHash
    known: KnownSimilarities | None
    drawn: float


def _measure(store: Store, task: _Measure) -> tuple[Part, ...]:
    sample = Sample.read(store, [task.chosen])
    _compare(store, sample, task.sets)
    key, fact = _looked_up(store, sample, task.known)
    fresh = np.isnan(fact.astype(np.uint32).view(np.float32)) & (sample.overlap > 0)
    value = fact[fresh] >> np.uint64(32) << np.uint64(32) | sample.overlap[fresh].view(np.uint32)
    columns = np.unique(np.stack([key[fresh], value]), axis=1)
    stats = rates(sample, task.chosen.stats["pool"], task.params, task.drawn)
    return (sorted_runs.write(store, "facts.run", SIMILARITIES, [tuple(columns)], 2, stats=stats),)


def _compare(store: Store, sample: Sample, sets: Sequence[Part]) -> None:
    """Fill in the overlaps that are unknown, from runs of `SETS`."""
    columns = [(np.empty(0, np.uint64), np.empty(0, np.uint64))]
    for part in sets:
        with sorted_runs.SortedRun(store, part, SETS) as opened:
            number, value = opened.all()
            columns.append((number, value))
    number, values = (np.concatenate(column) for column in zip(*columns, strict=True))
    documents, start, size = np.unique(number, return_index=True, return_counts=True)
    start, size = np.append(start, 0), np.append(size, 0)  # the last one stands for documents without a set
    rows = np.flatnonzero(np.isnan(sample.overlap).any(axis=0))

    def place(asked: U64) -> I64:
        at = np.minimum(np.searchsorted(documents, asked), documents.size - 1)
        return np.where(documents[at] == asked, at, documents.size) if documents.size else np.zeros(asked.shape, int)

    asked = sample.others[:, rows]
    other = np.where(asked == np.uint64(NONE), -1, place(asked))
    sample.overlap[:, rows] = _overlap(place(sample.document[rows]), other, values, start, size)


def rates(sample: Sample, pool: Mapping[str, Sequence[int]], params: MinHash, drawn: float) -> dict[str, Any]:
    """Return precision and recall from the overlaps of chosen documents.

    Args:
        pool: by question: the number of drawn documents in each stratum.
        drawn: share of documents that were drawn.
    """
    sample = sample.take(np.flatnonzero(~np.isnan(sample.overlap).any(axis=0)))
    singles = [2**i - 1 for i in range(OTHERS)]
    similar = sample.overlap[singles] >= np.float32(params.threshold)
    bits = np.where(similar, (1 << np.arange(OTHERS))[:, None], 0).sum(axis=0)
    merged, right = (bits & sample.together.astype(np.int64)) > 0, similar[0]
    stratum, strata, weight = sample.stratum, [], np.empty(right.size)
    removed, asked = sample.question == REMOVED, sample.question == NEAR
    near = asked & (bits > 0)
    for number, (low, high) in enumerate(pairwise((*STRATA, params.bands + 1))):
        counts = {}
        for question, mine in ((REMOVED, removed & (stratum == number)), (NEAR, asked & (stratum == number))):
            counts[question] = int(np.count_nonzero(mine))
            weight[mine] = pool[str(question)][number] / max(1, counts[question])
        if any(counts.values()):
            found = {"similar": removed & right, "near": near, "merged": near & merged}
            strata.append(
                {"bands": str(low) if high <= low + 1 else f"{low}-{high - 1}", "removed": counts[REMOVED],
                 **{name: int(np.count_nonzero(one[stratum == number])) for name, one in found.items()}}
            )  # fmt: skip
    stands_for = represented(sample.take(np.flatnonzero(near)), bits[near], params)
    return {
        "precision": share(weight[removed], right[removed], np.ones(np.count_nonzero(removed)), 0),
        "recall": share(weight[near], merged[near], stands_for, drawn),
        "strata": strata,
    }


def represented(sample: Sample, duplicates: I64, params: MinHash) -> F64:
    """Return the number of documents that each document of a sample stands for: itself, and the ones like it that share
    no band with a duplicate.

    Args:
        duplicates: [N] bit set of the candidates that are duplicates.
    """
    agree = sample.overlap.astype(np.float64) ** params.rows  # of one band, by set: with all of them
    sets = range(1, SUBSETS + 1)
    none = {0: np.ones(duplicates.size)}  # no band is shared with any of them
    for of in sets:
        inside = (one for one in sets if one & of == one)
        none[of] = (1 - sum(_sign(one) * agree[one - 1] for one in inside)) ** params.bands
    out = np.zeros(duplicates.size)
    for of in sets:
        mine = duplicates & of == of
        every = np.sum([-_sign(one) * none[one] for one in none if one & of == one], axis=0)
        out[mine] += _sign(of) / every[mine]
    out[(duplicates == SUBSETS) & (sample.candidates > OTHERS)] = 1
    return out


def _sign(members: int) -> int:
    """Return the sign of a set in a sum by inclusion and exclusion: 1 for an odd number of members, or else -1."""
    return 1 if members.bit_count() % 2 else -1


def share(weights: F64, right: Bools, stands_for: F64, drawn: float) -> dict[str, Any] | None:
    """Return the share of documents for which an outcome is right, with its 95% interval.

    Args:
        weights: [N] weights of documents.
        right: [N] outcomes.
        stands_for: [N] number of documents that each document stands for, including itself. The others are wrong.
        drawn: share of documents that were drawn.
    """
    if not weights.size:
        return None
    total = max(float(weights @ stands_for), float(weights.sum()))
    missed = (total - float(weights @ right)) / total
    variance = float(np.square(weights * (stands_for * (1 - missed) - right) / total).sum())
    # A document stands for a random number of others; two that are missed are often duplicates of each other.
    variance += max(0.0, 2 * drawn * float(weights @ (stands_for * (stands_for - 1)))) / total**2
    event = max(float(weights.max()), 2 * drawn) / total
    jump = variance / missed if variance and missed else event
    low = _quantile(missed, missed * jump, -Z) - jump
    high = _quantile(missed + event, variance + event**2, Z)
    shares = {"value": 1 - missed, "low": 1 - min(1.0, high), "high": 1 - max(0.0, low)}
    return {**{name: round(one, 6) for name, one in shares.items()}, "documents": weights.size}


def _quantile(mean: float, variance: float, z: float) -> float:
    """Return a quantile of a gamma distribution, given as the quantile z of the normal distribution (Wilson and
    Hilferty 1931)."""
    if not mean:
        return 0.0
    spread = variance / mean**2 / 9
    return mean * max(0.0, 1 - spread + z * math.sqrt(spread)) ** 3


def described(stats: Mapping[str, Any]) -> dict[str, str]:
    """Return precision and recall as text, from the statistics of `dedup/minhash`. Rates that were not measured are
    omitted."""
    measured = stats.get("accuracy", {})
    return {
        name: f"{percent(one['value'])} ({percent(one['low'])} to {percent(one['high'])}, "
        f"{one['documents']:,} documents compared)"
        for name in ("precision", "recall")
        if (one := measured.get(name))
    }
