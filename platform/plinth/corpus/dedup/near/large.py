"""Clusters of large components, from the documents that their pieces connect.

    connect   documents connected by similar pairs of any piece (`components`)
    rank      per range of documents: ids and ranks, sorted by cluster
    members   per range of clusters: the members and the survivor of each; a cluster of any size
    draw      in one task: the documents from which the accuracy of removal is measured, as in a small component

No task holds more than a range of documents or of clusters, or the surroundings of about `sample.POOL` documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from plinth.compute.context import Context, Item, run_items
from plinth.corpus.dedup import clusters, sorted_runs
from plinth.corpus.dedup.near import components, sample
from plinth.corpus.dedup.near.candidates import CandidatePairs
from plinth.corpus.dedup.near.components import CHUNK_ROWS, SHARED, SHARED_COLUMNS, read_members
from plinth.corpus.dedup.near.linking import Links
from plinth.corpus.dedup.run_tree import in_order, keyed, narrow, pieces
from plinth.corpus.sidecars import Column
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64

VERSION = "1"
#: Runs of (cluster, document, halves of its id, rank).
RANKED, RANKED_COLUMNS = "ranked", 5
#: Documents of clusters that a task sorts in memory at most.
CLUSTER_ROWS = 4_000_000


def write_connected(store: Store, documents: U64, roots: I64) -> Part:
    """Write the documents that are connected to others as edges to the first one of each cluster.

    Args:
        documents: [N] document numbers, ascending.
        roots: [N] for each document, the index of the first document in its cluster.
    """
    listed = np.bincount(roots, minlength=documents.size)[roots] > 1
    at = documents[listed]
    return sorted_runs.write(
        store, "connected.run", SHARED, [(at, np.zeros_like(at), documents[roots[listed]])], SHARED_COLUMNS
    )


def members(
    ctx: Context, asset: str, edges: Sequence[Part], documents: int, found: CandidatePairs, ranks: Column
) -> tuple[Part, ...]:
    """Return the documents of all clusters of large components, as a few sorted runs of `clusters.MEMBERS`.

    Args:
        asset: name of the asset that the stage writes.
        edges: connected documents of every piece, from `write_connected`.
        documents: number of documents in the corpus.
        ranks: ids and ranks of documents, from `clusters.build`.
    """
    label, span = f"{asset} clusters", found.components.span
    joined = components.connect(ctx, asset, narrow(ctx, SHARED, SHARED_COLUMNS, edges, label), documents, span)
    step = Step(name=f"{asset}/clusters/rank", version=VERSION)
    items = [Item((part.blob.sha256, ranks.key), (part, ranks), part.rows) for part in joined.members if part.rows]
    ranked = [made[0] for made in run_items(ctx, step, _rank, items, label=label)]
    few = narrow(ctx, RANKED, RANKED_COLUMNS, ranked, label)
    with ExitStack() as stack:
        first = [stack.enter_context(sorted_runs.SortedRun(ctx.store, part, RANKED)).first for part in few]
        tasks = [_Clusters(few, *piece) for piece in pieces(first, CLUSTER_ROWS)] if few else []
    step, key = Step(name=f"{asset}/clusters", version=VERSION), keyed(few)
    items = [Item((f"{task.low}-{task.high}-{task.heavy}", key), task) for task in tasks]
    made = [part for parts in run_items(ctx, step, _members, items, label=label) for part in parts]
    return narrow(ctx, clusters.MEMBERS, clusters.MEMBER_COLUMNS, made, label)


def _rank(store: Store, task: tuple[Part, Column]) -> tuple[Part, ...]:
    document, cluster = read_members(store, [task[0]], 0, sorted_runs.END)
    order = sorted_runs.in_order(cluster, document)
    columns = (cluster, document, *task[1].take(store, document).T)
    chunk = [column[order] for column in columns]
    return (sorted_runs.write(store, "ranked.run", RANKED, [chunk], RANKED_COLUMNS),)


@dataclass(frozen=True)
class _Clusters:
    """Clusters with low <= number < high; `heavy` if it is one cluster that is too large for memory."""

    runs: tuple[Part, ...]
    low: int
    high: int
    heavy: bool

    def chunks(self, store: Store) -> Iterator[tuple[U64, U64, U64]]:
        """Yield documents, their clusters, and their ids and ranks, a bounded number at a time."""
        for part in self.runs:
            with sorted_runs.SortedRun(store, part, RANKED) as opened:
                for cluster, at, *ranks in opened.chunks(CHUNK_ROWS, self.low, self.high):
                    order = np.argsort(at)
                    yield at[order], cluster[order], np.stack(ranks, axis=1)[order]


def _members(store: Store, task: _Clusters) -> tuple[Part, ...]:
    if task.heavy:
        return tuple(clusters.write_large(store, partial(task.chunks, store)))
    empty = (np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty((0, clusters.WIDTH), np.uint64))
    at, cluster, ranks = (np.concatenate(column) for column in zip(empty, *task.chunks(store), strict=True))
    order = np.argsort(at)
    return (clusters.write_members(store, at[order], cluster[order].astype(np.int64), ranks[order]),)


def draw(
    ctx: Context,
    asset: str,
    found: CandidatePairs,
    near: Sequence[Part],
    mine: tuple[Part, ...],
    ranks: Column,
    below: int,
) -> Part:
    """Return the documents of large components that are compared exactly to measure the accuracy of removal.

    Args:
        near: rows near drawn documents, from `sample.write_near`.
        mine: documents of all clusters of large components, from `members`.
        below: hash below which a document is drawn.
    """
    step = Step(name=f"{asset}/draw", version=VERSION, params={"below": str(below)})
    few = narrow(ctx, sample.SURROUNDINGS, 2, near, f"{asset} draw")
    item = Item((keyed((*few, *mine, *found.shared)), ranks.key), _Draw(few, mine, found.shared, ranks, below))
    return run_items(ctx, step, _draw, [item], label=f"{asset} draw")[0][0]


@dataclass(frozen=True)
class _Draw:
    near: tuple[Part, ...]
    members: tuple[Part, ...]
    shared: tuple[Part, ...]
    ranks: Column
    below: int


def _draw(store: Store, task: _Draw) -> tuple[Part, ...]:
    key, at = _surroundings(store, task)
    links, documents = _links(store, task.ranks, key, at, np.unique(at))
    drawn = documents[links.hashes < np.uint64(task.below)]
    cluster_of = _clusters_of(store, task.members, documents)
    kept_of = _kept(store, task.members, {cluster_of[one] for one in drawn.tolist() if one in cluster_of})
    kept = np.array(sorted(kept_of.values()), dtype=np.uint64)
    own = np.unique(key[np.isin(at, drawn)])
    columns = [(key, at), *_keys_of(store, task.shared, kept, own)]
    key, at = np.unique(np.concatenate([np.stack(one) for one in columns], axis=1), axis=1)
    links, documents = _links(store, task.ranks, key, at, np.unique(np.concatenate([at, kept])))
    cluster_of |= {number: cluster for cluster, number in kept_of.items()}
    clusters_in_order = [cluster_of.get(one, (one,)) for one in documents.tolist()]
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters_in_order))}
    links.parent[:] = [numbers[cluster] for cluster in clusters_in_order]
    survivor = np.arange(documents.size)
    for i, cluster in enumerate(clusters_in_order):
        if cluster in kept_of:
            survivor[i] = np.searchsorted(documents, np.uint64(kept_of[cluster]))
    return (sample.draw(links, documents, survivor, task.below, None).write(store),)


def _surroundings(store: Store, task: _Draw) -> tuple[U64, U64]:
    """Return band keys and documents of the groups that have a drawn document, and of crowds only some documents."""
    found = [(np.empty(0, np.uint64), np.empty(0, np.uint64))]
    with ExitStack() as stack:
        opened = [stack.enter_context(sorted_runs.SortedRun(store, part, sample.SURROUNDINGS)) for part in task.near]
        for key, at in in_order(opened, CHUNK_ROWS):
            links, documents = _links(store, task.ranks, key, at, np.unique(at))
            key, node = sample.surroundings(links, task.below)
            found.append((key, documents[node]))
    key, at = (np.concatenate(column) for column in zip(*found, strict=True))
    return key, at


def _links(store: Store, ranks: Column, key: U64, at: U64, documents: U64) -> tuple[Links, U64]:
    high, low, _ = np.ascontiguousarray(ranks.take(store, documents).T)
    return Links(key, np.searchsorted(documents, at), high, low, 0.0), documents


#: Cluster by the two halves of its id.
Cluster = tuple[int, ...]


def _clusters_of(store: Store, parts: Sequence[Part], documents: U64) -> dict[int, Cluster]:
    """Return the clusters of those documents that are in one."""
    found = dict[int, Cluster]()
    for at, high, low, _ in _chunks(store, parts):
        mine = np.isin(at, documents)
        found |= dict(zip(at[mine].tolist(), zip(high[mine].tolist(), low[mine].tolist(), strict=True), strict=True))
    return found


def _kept(store: Store, parts: Sequence[Part], wanted: set[Cluster]) -> dict[Cluster, int]:
    """Return the documents that are kept from clusters."""
    found, lows = dict[Cluster, int](), np.array(sorted({low for _, low in wanted}), dtype=np.uint64)
    for at, high, low, packed in _chunks(store, parts):
        mine = np.flatnonzero((packed & np.uint64(1) == 1) & np.isin(low, lows))
        names = zip(high[mine].tolist(), low[mine].tolist(), strict=True)
        found |= {name: number for name, number in zip(names, at[mine].tolist(), strict=True) if name in wanted}
    return found


def _chunks(store: Store, parts: Sequence[Part]) -> Iterator[tuple[U64, ...]]:
    for part in parts:
        with sorted_runs.SortedRun(store, part, clusters.MEMBERS) as opened:
            yield from opened.chunks(CHUNK_ROWS)


def _keys_of(store: Store, shared: Sequence[Part], documents: U64, wanted: U64) -> Iterator[tuple[U64, U64]]:
    """Yield those of the wanted band keys that documents share, with the documents."""
    for part in shared:
        with sorted_runs.SortedRun(store, part, SHARED) as opened:
            for number in documents.tolist():
                at, key, _ = opened.slice(number, number + 1)
                mine = np.isin(key, wanted)
                yield key[mine], at[mine]
