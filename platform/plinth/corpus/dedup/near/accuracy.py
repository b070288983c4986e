"""Precision and recall of removal: the exact Jaccard similarity on a sample of documents, drawn by shared bands.

    draw       per partition, in the task that compares it: some documents, each with the candidate that shares the most
               bands, and with the document that is kept in its place
    choose     in one task: up to `PER_STRATUM` documents for each number of shared bands; similarities known from an
               earlier run
    sets       per part of documents, if it has a document to compare: shingle sets
    measure    in one task: similarities and rates

Precision is the share of removed documents whose similarity to the kept document of their cluster reaches the
threshold. Clusters are transitive, so a removed document may be similar to a third document only.

Recall is the expected share of documents that are in one cluster with their nearest duplicate, by a band that both
share. It is a lower limit for documents with several near duplicates, because any of them may connect the document. The
interval is for the expected share: among few pairs, the actual share is often outside. The sample has only documents
that share a band with their near duplicate. A pair of similarity s does so with probability p = 1 - (1 - s^rows)^bands;
it therefore stands for 1 / p pairs, of which the others were missed (Horvitz and Thompson 1952).

Pairs that share few bands are rare and the most uncertain. Each number of shared bands is a stratum, and documents are
weighted by the size of their stratum. The intervals are Wilson's for the effective size of the sample (Kish 1965).
The choice depends on document ids alone, and the cost does not depend on the size of the corpus.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near import linking
from plinth.corpus.dedup.near.linking import ALL_PAIRS, SIMILARITIES, KnownSimilarities, Links
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.dedup.run_tree import keyed, narrow
from plinth.corpus.sidecars import SlotNumbers
from plinth.corpus.slices.rates import percent, wilson
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64
from plinth_text.similarity import recall
from plinth_text.words import jaccard

VERSION = "1"
#: Documents that are drawn on average, and documents that are chosen for each question and stratum.
POOL, PER_STRATUM = 2048, 100
#: Numbers of shared bands at which a stratum begins.
STRATA = (0, 1, 2, 3, 5, 9)

#: Runs of (hash of the id, document, its most similar candidate, hash, bands they share, whether they are in one
#: cluster, the kept document of its cluster, hash, bands they share).
DRAWN, DRAWN_COLUMNS = "drawn", 9
#: Runs of (document, other document, question, stratum, whether they are in one cluster, key and fact of the pair in
#: the similarity cache).
PAIRS, PAIR_COLUMNS = "chosen pairs", 7
REMOVED, NEAR = 0, 1
#: Runs of (document, hash of a shingle).
SETS = "shingles"


def limit(documents: int) -> int:
    """Return the hash below which a document is drawn, if this number of documents share a band with another one."""
    return min(2**64 - 1, 2**64 * POOL // max(1, documents))


def draw(store: Store, links: Links, documents: U64, survivor: I64, below: int) -> Part:
    """Write the drawn documents of a partition as a sorted run of `DRAWN`.

    Args:
        links: links of the partition, with the clusters.
        documents: [N] document numbers of the partition.
        survivor: [N] index of the document that is kept from each document's cluster.
        below: hash below which a document is drawn.
    """
    drawn = np.flatnonzero(links.hashes < np.uint64(below))
    wanted = np.zeros(documents.size, dtype=np.bool_)
    wanted[drawn] = wanted[survivor[drawn]] = True
    rows = np.flatnonzero(wanted[links.node])
    groups: dict[int, set[int]] = defaultdict(set)
    for node, group in zip(links.node[rows].tolist(), links.group_of(rows).tolist(), strict=True):
        groups[node].add(group)
    few = {group: _few(links, group) for group in set().union(*(groups[node] for node in drawn.tolist()))}
    found = []
    for node in drawn.tolist():
        shared = Counter(other for group in groups[node] for other in few[group] if other != node)
        kept = int(survivor[node])
        if shared:
            other = max(shared, key=lambda one: (shared[one], int(links.hashes[one])))
            merged = links.parent[node] == links.parent[other]
            found.append((node, other, shared[other], int(merged), kept, len(groups[node] & groups[kept])))
    nodes, others, both, together, survivors, with_kept = np.array(found, dtype=np.int64).reshape(-1, 6).T
    columns = [links.hashes[nodes], documents[nodes], documents[others], links.hashes[others], both, together]
    columns += [documents[survivors], links.hashes[survivors], with_kept]
    chunk = [np.asarray(column, dtype=np.uint64) for column in columns]
    order = sorted_runs.in_order(chunk[0], chunk[1])
    return sorted_runs.write(store, "drawn.run", DRAWN, [[column[order] for column in chunk]], DRAWN_COLUMNS)


def _few(links: Links, group: int) -> list[int]:
    """Return the documents of a group, and of a crowd those with the smallest hashes."""
    members = links.members(group)
    if members.size > ALL_PAIRS:
        members = members[np.argpartition(links.hashes[members], ALL_PAIRS)[:ALL_PAIRS]]
    return list(members.tolist())


def measure(
    ctx: Context, asset: str, params: MinHash, drawn: Sequence[Part], documents: Sequence[Part], layout: SlotNumbers
) -> Mapping[str, Any]:
    """Return precision and recall of removal, with 95% intervals, and the counts of every stratum.

    Args:
        drawn: sorted runs of `DRAWN`, from `draw`.
        documents: all parts of documents.
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
    pairs = run_items(ctx, step, _choose, [item], label=label)[0][0]
    rows = defaultdict[int, list[int]](list)
    for number in _to_read(ctx.store, pairs):
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
    item = Item(inputs, _Measure(pairs, sets, params))
    fresh = run_items(ctx, measuring, _measure, [item], label=label)[0][0]
    linking.remember(ctx, definition, known, [fresh])
    return fresh.stats


def _to_read(store: Store, pairs: Part) -> list[int]:
    """Return the documents of all pairs whose similarity is not known."""
    with sorted_runs.SortedRun(store, pairs, PAIRS) as opened:
        first, second, *_, fact = opened.all()
    unknown = np.isnan(_similarity(fact))
    return list(np.unique(np.concatenate([first[unknown], second[unknown]])).tolist())


def _similarity(fact: U64) -> npt.NDArray[np.float32]:
    """Return the similarities in values of the similarity cache."""
    return fact.astype(np.uint32).view(np.float32)


@dataclass(frozen=True)
class _Choose:
    drawn: tuple[Part, ...]
    known: KnownSimilarities | None


def _choose(store: Store, task: _Choose) -> tuple[Part, ...]:
    found = [np.empty((DRAWN_COLUMNS, 0), np.uint64)]
    for part in task.drawn:
        with sorted_runs.SortedRun(store, part, DRAWN) as opened:
            found.append(np.stack(opened.all()))
    table = np.concatenate(found, axis=1)
    table = table[:, sorted_runs.in_order(table[0], table[1])]
    own, document, other, other_hash, both, together, kept, kept_hash, with_kept = table
    pool, chosen = dict[str, list[int]](), [np.empty((PAIR_COLUMNS, 0), np.uint64)]
    ends = np.sort(np.stack([document, other]), axis=0)
    once = np.zeros(document.size, dtype=np.bool_)  # both documents of a pair may be drawn
    once[np.unique(ends, axis=1, return_index=True)[1]] = True
    for question, asked, second, its_hash, bands in (
        (REMOVED, document != kept, kept, kept_hash, with_kept),
        (NEAR, once, other, other_hash, both),
    ):
        stratum = np.where(asked, np.searchsorted(STRATA, bands, side="right") - 1, -1)
        pool[str(question)] = [int(np.count_nonzero(stratum == one)) for one in range(len(STRATA))]
        for one in range(len(STRATA)):
            mine = np.flatnonzero(stratum == one)[:PER_STRATUM]
            key, fact = _looked_up(store, own[mine], its_hash[mine], task.known)
            fixed = (np.full(mine.size, value, dtype=np.uint64) for value in (question, one))
            chosen.append(np.stack([document[mine], second[mine], *fixed, together[mine], key, fact]))
    pairs = np.concatenate(chosen, axis=1)
    pairs = pairs[:, sorted_runs.in_order(*pairs)]
    return (sorted_runs.write(store, "pairs.run", PAIRS, [tuple(pairs)], PAIR_COLUMNS, stats={"pool": pool}),)


def _looked_up(store: Store, first: U64, second: U64, known: KnownSimilarities | None) -> tuple[U64, U64]:
    """Return keys and values in the similarity cache of pairs of documents, given by the hashes of their ids."""
    pairs, values = known.open(store) if known else (np.empty(0, np.uint64), np.empty(0, np.uint64))
    key, fact = np.empty(first.size, dtype=np.uint64), np.empty(first.size, dtype=np.uint64)
    linking.look_up_pairs(first, second, pairs, values, key, fact)
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
    pairs: Part
    sets: tuple[Part, ...]
    params: MinHash


def _measure(store: Store, task: _Measure) -> tuple[Part, ...]:
    sets = dict[int, U64]()
    for part in task.sets:
        with sorted_runs.SortedRun(store, part, SETS) as opened:
            number, values = opened.all()
        starts = np.flatnonzero(np.r_[True, number[1:] != number[:-1]][: number.size])
        for begin, end in pairwise([*starts.tolist(), number.size]):
            sets[int(number[begin])] = values[begin:end]
    with sorted_runs.SortedRun(store, task.pairs, PAIRS) as opened:
        first, second, question, stratum, together, key, fact = opened.all()
    similarity = _similarity(fact).copy()
    unknown = np.isnan(similarity)
    for at in np.flatnonzero(unknown):
        a, b = sets.get(int(first[at])), sets.get(int(second[at]))
        if a is not None and b is not None:
            similarity[at] = jaccard(a, b)
    found: dict[tuple[int, int], list[tuple[float, bool]]] = defaultdict(list)
    for row in np.flatnonzero(~np.isnan(similarity)).tolist():
        found[int(question[row]), int(stratum[row])].append((float(similarity[row]), bool(together[row])))
    fresh = np.flatnonzero(unknown & ~np.isnan(similarity))
    value = fact[fresh] >> np.uint64(32) << np.uint64(32) | similarity[fresh].view(np.uint32)
    order = sorted_runs.in_order(key[fresh], value)
    columns = [(key[fresh][order], value[order])]
    stats = rates(found, task.pairs.stats["pool"], task.params)
    return (sorted_runs.write(store, "facts.run", SIMILARITIES, columns, 2, stats=stats),)


def rates(
    found: Mapping[tuple[int, int], Sequence[tuple[float, bool]]], pool: Mapping[str, Sequence[int]], params: MinHash
) -> dict[str, Any]:
    """Return precision and recall from the similarities of chosen pairs.

    Args:
        found: by question and stratum: the similarity (FP32) of each pair, and whether it is in one cluster.
        pool: by question: the number of drawn documents in each stratum.
    """
    threshold = float(np.float32(params.threshold))
    precision, near, strata = list[tuple[float, float]](), list[tuple[float, float]](), list[dict[str, Any]]()
    for number, (low, high) in enumerate(pairwise((*STRATA, params.bands + 1))):
        removed, candidates = found.get((REMOVED, number), ()), found.get((NEAR, number), ())
        weight = pool[str(REMOVED)][number] / max(1, len(removed))
        right = [similarity >= threshold for similarity, _ in removed]
        precision += [(weight, float(one)) for one in right]
        weight = pool[str(NEAR)][number] / max(1, len(candidates))
        alike = [(similarity, together) for similarity, together in candidates if similarity >= threshold]
        for similarity, together in alike:
            caught = recall(similarity, params.bands, params.rows)
            near.append((weight / caught, caught * together))
        if removed or candidates:
            strata.append(
                {"bands": str(low) if high <= low + 1 else f"{low}-{high - 1}", "removed": len(removed),
                 "similar": sum(right), "near": len(alike), "merged": sum(together for _, together in alike)}
            )  # fmt: skip
    return {"precision": _share(precision), "recall": _share(near), "strata": strata}


def _share(outcomes: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
    """Return the weighted mean of outcomes from 0 to 1, each with its weight, and its 95% interval."""
    if not outcomes:
        return None
    weights, values = np.array(outcomes).T
    value = float((weights * values).sum() / weights.sum())
    effective = float(weights.sum() ** 2 / np.square(weights).sum())
    low, high = wilson(value * effective, effective)
    shares = {"value": value, "low": low, "high": high}
    return {**{name: round(one, 6) for name, one in shares.items()}, "documents": len(outcomes)}


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
