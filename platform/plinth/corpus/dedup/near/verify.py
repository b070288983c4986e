"""The pairs of every component are compared; clusters are made of those that pass.

    plan      per partition: whose texts are needed, when the `similarity_cache` has some pairs
    payload   per part: their shingle sets or signatures (`payloads`)
    link      per partition: comparison and union-find (`linking`); the members of its clusters

By `text` the similarity is the true Jaccard similarity of the shingle sets. By `signature` it is the share of
equal minima, with a standard error of sqrt(J (1 - J) / K) for K minima: for corpora whose text is gone, or where
that is good enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup import clusters, document_numbers, rank_table, sorted_runs
from plinth.corpus.dedup.document_numbers import SlotNumbers
from plinth.corpus.dedup.near import payloads, similarity_cache
from plinth.corpus.dedup.near.candidates import CandidatePairs, read_partition
from plinth.corpus.dedup.near.linking import LOOK_UP, MARK, SETS, SIGNATURES, Links
from plinth.corpus.dedup.near.similarity_cache import SIMILARITIES, KnownSimilarities
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.dedup.run_merge import keyed
from plinth.records import Part, Step
from plinth.storage.store import Store

U64 = sorted_runs.U64

VERSION = "1"


@dataclass(frozen=True)
class Comparison:
    """How candidates are compared.

    Args:
        asset: of the stage.
        what: `SETS`, `SIGNATURES` or `COSINES` of `linking`.
        similarity: identity of the similarity of two documents.
        threshold: similarity that connects.
        carry: step of the values that are compared.
        values: of rows of the parts that are read.
        minima: length of a signature.
    """

    asset: str
    what: int
    similarity: Mapping[str, Any]
    threshold: float
    carry: Step
    values: payloads.ValuesFn
    minima: int = 0

    @classmethod
    def of(cls, asset: str, params: MinHash) -> Comparison:
        """By shingle sets or signatures."""
        similarity, text = params.similarity(), params.verify == "text"
        carry = Step(
            name=f"{asset}/{params.verify}",
            version=payloads.VERSION,
            params=similarity,
            libraries=fingerprint.UNICODE,
        )
        values, minima = payloads.values_of(params), 0 if text else params.bands * params.rows
        return cls(asset, SETS if text else SIGNATURES, similarity, params.threshold, carry, values, minima)


def cluster(
    ctx: Context,
    how: Comparison,
    survivors: Mapping[str, Any],
    read: Sequence[Part],
    layout: SlotNumbers,
    found: CandidatePairs,
    ranks: Part,
) -> list[Part]:
    """The members of all clusters of look-alikes, as runs by number of document.

    Args:
        survivors: identity of the ranks' rule.
        read: by slot, the part that has what is compared.
        found: the candidates.
        ranks: from `rank_table.build`.
    """
    tasks = [_Partition(found.routed, ranks, low, high, how.threshold) for low, high in found.partitions]
    key = keyed((*found.routed, found.components, ranks, *read))
    step = Step(name=f"{how.asset}/link", version=VERSION, params={**how.similarity, **survivors})
    # The cache changes how much work a task is, and not its members: it is not among their inputs.
    inputs = [(f"{task.low}-{task.high}", str(task.threshold), key) for task in tasks]
    made = [ctx.cache.get(step.key(one)) for one in inputs]
    if all(made):
        return [parts[0] for parts in made if parts]
    definition = {"version": VERSION, **how.similarity}
    known = similarity_cache.recall(ctx, definition)
    tasks = [replace(task, known=known) for task in tasks]
    needed = _needed(ctx, tasks, key, layout) if known else None
    carried = payloads.carry(ctx, how.carry, read, how.values, layout, found, needed)
    items = [
        Item(one, _Link(task, carried, how.what, how.minima), found.documents // len(tasks))
        for one, task in zip(inputs, tasks, strict=True)
    ]
    linked = run_items(ctx, step, _link, items, label=f"{how.asset} verify")
    similarity_cache.remember(ctx, definition, known, [fresh for _, fresh in linked])
    return [members for members, _ in linked]


def _needed(ctx: Context, tasks: Sequence[_Partition], key: str, layout: SlotNumbers) -> list[Part]:
    step = Step(name="dedup/minhash/plan", version=VERSION)
    items = [
        Item((f"{task.low}-{task.high}", str(task.threshold), *(task.known.keys if task.known else ()), key), task)
        for task in tasks
    ]
    made = [parts[0] for parts in run_items(ctx, step, _plan, items, label="dedup/minhash plan")]
    return clusters.gather(ctx, "dedup/minhash plan", made, layout, payloads.NEEDED, 1)


@dataclass(frozen=True)
class _Partition:
    routed: tuple[Part, ...]
    ranks: Part
    low: int
    high: int
    threshold: float
    known: KnownSimilarities | None = None


def _open(store: Store, task: _Partition) -> tuple[U64, Links]:
    """The partition's documents by number, and its groups with cached similarities applied."""
    key, at = read_partition(store, task.routed, task.low, task.high)
    documents = np.unique(at)
    ranks = document_numbers.open_flat(store, task.ranks, "<u8", rank_table.WIDTH)
    own = np.asarray(ranks[documents]) if documents.size else np.empty((0, rank_table.WIDTH), np.uint64)
    high, low = np.ascontiguousarray(own[:, 0]), np.ascontiguousarray(own[:, 1])
    links = Links(key, np.searchsorted(documents, at).astype(np.int64), high, low, task.threshold)
    if task.known:
        links.walk(LOOK_UP, known=task.known.open(store))
    return documents, links


def _plan(store: Store, task: _Partition) -> tuple[Part, ...]:
    documents, links = _open(store, task)
    links.walk(MARK)
    return (sorted_runs.write(store, "needed.run", payloads.NEEDED, [(documents[links.needed],)], 1),)


@dataclass(frozen=True)
class _Link:
    partition: _Partition
    carried: tuple[payloads.Carried, ...]
    what: int
    minima: int


def _link(store: Store, task: _Link) -> tuple[Part, ...]:
    partition = task.partition
    documents, links = _open(store, partition)
    with payloads.load(store, task.carried, partition.low, partition.high, documents, task.minima) as payload:
        pairs, values = links.walk(task.what, payload=payload)
    order = sorted_runs.in_order(pairs, values)
    fresh = sorted_runs.write(store, "facts.run", SIMILARITIES, [(pairs[order], values[order])], 2)
    ranks = document_numbers.open_flat(store, partition.ranks, "<u8", rank_table.WIDTH)
    return clusters.write_members(store, documents, links.roots(), ranks), fresh
