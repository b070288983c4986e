"""Clusters and their survivors: from groups or verified pairs to the columns that both deduplications write.

The id of a cluster is the smallest id in it, and exactly one member survives: by `longest` the one with the
most UTF-8 bytes, else the one with the smallest id; ties go to the smallest id. All of it is a function of
the members' ids and lengths, so neither the order of parts nor the number of workers can show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from plinth.corpus.dedup.shuffle import U64, binary16, halves, read_range, slot_range, write_sorted
from plinth.records import Part
from plinth.storage.parts import write_batches
from plinth.storage.store import Store

I64 = npt.NDArray[np.int64]

#: What a deduplication says of a document. `text_bytes` is the length of `text` in UTF-8.
SCHEMA = pa.schema(
    [
        pa.field("considered", pa.bool_(), nullable=False),
        pa.field("cluster", pa.binary(16)),  # null where not considered
        pa.field("size", pa.int32(), nullable=False),  # 0 where not considered
        pa.field("survivor", pa.bool_(), nullable=False),
        pa.field("text_bytes", pa.int64(), nullable=False),
    ]
)

#: Members of clusters of two or more, by address; documents that are not listed are alone.
MEMBERS = pa.schema(
    [
        pa.field("at", pa.uint64(), nullable=False),
        pa.field("cluster", pa.binary(16), nullable=False),
        pa.field("size", pa.int32(), nullable=False),
        pa.field("survivor", pa.bool_(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Nodes:
    """Documents that may have duplicates, in order of id: addresses, ids as big-endian halves, UTF-8 lengths; [N]."""

    at: U64
    high: U64
    low: U64
    text_bytes: I64


def members(nodes: Nodes, roots: I64, keep: str) -> pa.Table:
    """Members of all clusters of two or more, sorted by address.

    Args:
        nodes: the documents.
        roots: [N] for each node, the index of the first node of its cluster.
        keep: `longest` or `smallest_id`.
    """
    sizes = np.bincount(roots, minlength=roots.size)[roots]
    rank = -nodes.text_bytes if keep == "longest" else np.zeros(roots.size, dtype=np.int64)
    order = np.lexsort((np.arange(roots.size), rank, roots))
    survivor = np.zeros(roots.size, dtype=np.bool_)
    survivor[order[np.r_[True, roots[order][1:] != roots[order][:-1]][: roots.size]]] = True
    listed = np.flatnonzero(sizes > 1)
    listed = listed[np.argsort(nodes.at[listed], kind="stable")]
    columns = [
        pa.array(nodes.at[listed]),
        binary16(nodes.high[roots[listed]], nodes.low[roots[listed]]),
        pa.array(sizes[listed].astype(np.int32)),
        pa.array(survivor[listed]),
    ]
    return pa.Table.from_arrays(columns, schema=MEMBERS)


def write_members(store: Store, nodes: Nodes, roots: I64, keep: str) -> Part:
    """`members` as a part."""
    return write_sorted(store, "members.parquet", members(nodes, roots, keep), ["at"])


@njit(nogil=True, cache=True)
def connect(count: int, left: I64, right: I64) -> I64:
    """Roots [count] of the components that the edges make: the smallest index of each (union-find)."""
    parent = np.arange(count)
    for edge in range(left.size):
        a, b = left[edge], right[edge]
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        if a < b:
            parent[b] = a
        else:
            parent[a] = b
    for node in range(count):  # a parent is never above its child, so one pass from below finishes
        parent[node] = parent[parent[node]]
    return parent


def write_sidecar(
    store: Store,
    name: str,
    slot: int,
    clusters: Iterable[Part],
    rows: Iterable[tuple[pa.Array, pa.Array, pa.Array]],
) -> Part:
    """The sidecar of one slot, with statistics of what survived.

    Args:
        slot: its number.
        clusters: parts of `MEMBERS`, sorted by address, of all slots.
        rows: batches of ids, whether considered, and lengths in bytes, in row order.
    """
    low, high = slot_range(slot)
    tables = [read_range(store, part, "at", low, high) for part in clusters]
    mine = pa.concat_tables([MEMBERS.empty_table(), *tables]).sort_by("at").combine_chunks()
    stats = dict.fromkeys(STATS, 0)
    part = write_batches(store, name, SCHEMA, _batches(mine, low, rows, stats))
    return part.model_copy(update={"stats": stats})


STATS = (
    "documents",
    "considered",
    "considered_bytes",
    "survivors",
    "survivor_bytes",
    "clusters",
    "largest_cluster",
)


def _batches(
    mine: pa.Table, base: int, rows: Iterable[tuple[pa.Array, pa.Array, pa.Array]], stats: dict[str, int]
) -> Iterator[pa.RecordBatch]:
    at = mine.column("at").to_numpy() - np.uint64(base)
    first = 0
    for ids, considered, text_bytes in rows:
        begin, end = np.searchsorted(at, [first, first + len(ids)])
        where = at[begin:end].astype(np.int64) - first
        high, low = halves(ids)
        keep = considered.to_numpy(zero_copy_only=False)
        size, survivor = keep.astype(np.int32), keep.copy()
        size[where] = mine.column("size").to_numpy()[begin:end]
        survivor[where] = mine.column("survivor").to_numpy()[begin:end]
        high[where], low[where] = halves(mine.column("cluster").slice(begin, end - begin))
        cluster = pc.if_else(considered, binary16(high, low), pa.scalar(None, pa.binary(16)))
        _count(stats, keep, size, survivor, text_bytes.to_numpy())
        yield pa.RecordBatch.from_arrays(
            [considered, cluster, pa.array(size), pa.array(survivor), text_bytes], schema=SCHEMA
        )
        first += len(ids)


def _count(
    stats: dict[str, int],
    considered: npt.NDArray[np.bool_],
    size: npt.NDArray[np.int32],
    survivor: npt.NDArray[np.bool_],
    text_bytes: I64,
) -> None:
    stats["documents"] += considered.size
    stats["considered"] += int(considered.sum())
    stats["considered_bytes"] += int(text_bytes[considered].sum())
    stats["survivors"] += int(survivor.sum())
    stats["survivor_bytes"] += int(text_bytes[survivor].sum())
    stats["clusters"] += int((survivor & (size > 1)).sum())
    stats["largest_cluster"] = max(stats["largest_cluster"], int(size.max(initial=0)))


def summary(parts: Iterable[Part]) -> dict[str, object]:
    """Statistics of a deduplication over all buckets and by bucket (the first piece of a part's name)."""
    total = dict.fromkeys(STATS, 0)
    buckets: dict[str, dict[str, int]] = {}
    for part in parts:
        own = buckets.setdefault(part.name.split("/", 1)[0], dict.fromkeys(STATS, 0))
        for stats in (total, own):
            for name in STATS:
                value = int(part.stats[name])
                stats[name] = max(stats[name], value) if name == "largest_cluster" else stats[name] + value
    return {**total, "buckets": buckets}
