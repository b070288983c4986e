"""Groups of documents that share the key of a band, put together into components.

    groups        per range of keys: the entries whose key two or more documents have
    components    once: documents that groups connect, 8 bytes of memory per document of the corpus
    route         per range: its groups, in order of component

A cluster lies inside one component; so components, cut into partitions of bounded
size, are verified apart from each other, and no pair is ever written down. Groups only nominate; `verify` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.run_tree import Range, RangeReader, keyed, narrow, reduce
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64
from plinth_text.compiled import compiled

Column = npt.NDArray[Any]  # uint32 or uint64

VERSION = "1"
#: Runs of (band key, document) and of (component, band key, document).
GROUPS, ROUTED = "groups", "routed"

#: The component of a document that shares no key, by the width of the column.
ALONE = {"<u4": 2**32 - 1, "<u8": 2**64 - 1}


@dataclass(frozen=True)
class CandidatePairs:
    """All candidates of a corpus.

    Args:
        routed: a few runs of (component, band key, document).
        components: flat column, by document: the number of its component's first document, or `ALONE`.
        width: type of that column.
        partitions: ranges of components, half open.
        documents: how many are in a component with another.
    """

    routed: tuple[Part, ...]
    components: Part
    width: str
    partitions: tuple[tuple[int, int], ...]
    documents: int


def find(ctx: Context, asset: str, groups: Sequence[Part], documents: int, partition_rows: int) -> CandidatePairs:
    """Documents that share a key, by component.

    Args:
        asset: of the stage.
        groups: runs of `GROUPS`.
        documents: how many there are.
        partition_rows: documents of one partition, unless a component is larger.
    """
    width = "<u4" if documents < ALONE["<u4"] else "<u8"
    step = Step(name=f"{asset}/components", version=VERSION, params={"width": width, "rows": partition_rows})
    task = _Components(tuple(groups), documents, width, partition_rows)
    joined = run_items(
        ctx, step, _components, [Item((str(documents), keyed(groups)), task)], label=f"{asset} components"
    )
    components = joined[0][0]
    step = Step(name=f"{asset}/route", version=VERSION)
    items = [
        Item((part.blob.sha256, components.blob.sha256), _Route(part, components, width), part.rows) for part in groups
    ]
    routed = [made[0] for made in run_items(ctx, step, _route, items, label=f"{asset} route")]
    few = narrow(ctx, ROUTED, 3, routed, f"{asset} route")
    cuts = [int(cut) for cut in components.stats["cuts"]]
    partitions = tuple(zip(cuts, [*cuts[1:], documents], strict=True))
    return CandidatePairs(few, components, width, partitions, int(components.stats["documents"]))


def groups(ctx: Context, reader: RangeReader, mask: Part, range_rows: int) -> list[Part]:
    """Runs of `GROUPS`: documents that share a band key.

    Args:
        reader: of the index's band keys.
        mask: flat column of bytes: which documents are considered.
        range_rows: band keys one reduce task holds.
    """
    step = Step(name="dedup/minhash/groups", version=VERSION)
    return reduce(ctx, step, _group, reader, range_rows, "dedup/minhash groups", mask)


def _group(store: Store, task: Range) -> tuple[Part, ...]:
    first, (key, at) = task.read(store)
    shared = ~first
    shared[:-1] |= ~first[1:]
    return (sorted_runs.write(store, "groups.run", GROUPS, [(key[shared], at[shared])], 2),)


@dataclass(frozen=True)
class _Components:
    groups: tuple[Part, ...]
    documents: int
    width: str
    partition_rows: int


def _components(store: Store, task: _Components) -> tuple[Part, ...]:
    parent = np.arange(task.documents, dtype=task.width)
    unite = unite_u32 if parent.itemsize == 4 else unite_u64
    for part in task.groups:
        with sorted_runs.SortedRun(store, part, GROUPS) as opened:
            last = np.zeros(3, dtype=np.uint64)  # key and document of the row before, and whether there is one
            for key, at in opened.chunks():
                unite(parent, key, at, last)
    sizes = np.zeros(task.documents, dtype=task.width)
    # a partition of `partition_rows` and one component more has at least half of the next one's rows
    cuts = np.empty(2 * (task.documents // max(1, task.partition_rows) + 1), dtype=np.int64)
    cut = cut_u32 if parent.itemsize == 4 else cut_u64
    count, documents, largest = cut(parent, sizes, task.partition_rows, ALONE[task.width], cuts)
    stats = {"cuts": [0, *cuts[:count].tolist()], "documents": documents, "largest": largest}
    return (sidecars.write(store, "components.flat", parent).model_copy(update={"stats": stats}),)


@dataclass(frozen=True)
class _Route:
    groups: Part
    components: Part
    width: str


def _route(store: Store, task: _Route) -> tuple[Part, ...]:
    with sorted_runs.SortedRun(store, task.groups, GROUPS) as opened:
        key, at = opened.all()
    root = np.asarray(sidecars.open_flat(store, task.components, task.width)[at]).astype(np.uint64)
    order = np.argsort(root, kind="stable")  # within a component, keys and documents stay in order
    return (sorted_runs.write(store, "routed.run", ROUTED, [(root[order], key[order], at[order])], 3),)


def read_partition(store: Store, routed: Sequence[Part], low: int, high: int) -> tuple[U64, U64]:
    """Band keys and documents of the groups of a range of components; a group's rows are neighbours."""
    keys, documents = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for part in routed:
        with sorted_runs.SortedRun(store, part, ROUTED) as opened:
            _, key, at = opened.slice(low, high)
        keys.append(key)
        documents.append(at)
    return np.concatenate(keys), np.concatenate(documents)


@compiled
def unite_u32(parent: Column, key: U64, at: U64, last: U64) -> None:
    """Connect documents under equal neighbouring keys; the smaller number becomes the root."""


@compiled
def unite_u64(parent: Column, key: U64, at: U64, last: U64) -> None:
    """As `unite_u32`."""


@compiled
def cut_u32(parent: Column, sizes: Column, limit: int, alone: int, cuts: I64) -> tuple[int, int, int]:
    """Finish the roots, mark single documents, and cut the components into partitions of about `limit` documents.

    `cuts` are the first component of every partition but the first; those beyond its length are counted only.

    Returns:
        The number of cuts; documents in components; the largest component.
    """


@compiled
def cut_u64(parent: Column, sizes: Column, limit: int, alone: int, cuts: I64) -> tuple[int, int, int]:
    """As `cut_u32`."""
