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
from plinth.corpus.dedup.near.linking import SIMILARITIES, KnownSimilarities
from plinth.corpus.dedup.near.sample import (
    DRAWN,
    DRAWN_COLUMNS,
    NEAR,
    NONE,
    OTHERS,
    REMOVED,
    STRATA,
    SUBSETS,
    Sample,
    choose,
    overlap,
)  # fmt: skip
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.dedup.run_tree import keyed, narrow
from plinth.corpus.sidecars import SlotNumbers
from plinth.corpus.slices.rates import Z, percent
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth_text.arrays import F64, I64, U64, Bools

VERSION = "2"
#: Runs of (document, hash of a shingle).
SETS = "shingles"


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
    sample.overlap[:, rows] = overlap(place(sample.document[rows]), other, values, start, size)


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
