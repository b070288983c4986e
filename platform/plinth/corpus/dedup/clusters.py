"""Clusters and their survivors: from groups of documents to the columns that both deduplications write.

The id of a cluster is the smallest id in it, and exactly one member survives: the one of the best rank
(`rank_table`), ties go to the smallest id. All of it is a function of the members' ids and ranks, so neither the
order of parts nor the number of workers matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, run_items
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.document_numbers import SlotNumbers
from plinth.corpus.dedup.run_tree import keyed, narrow
from plinth.corpus.dedup.shuffle import binary16, halves
from plinth.records import Part, Step
from plinth.storage.parts import write_batches
from plinth.storage.store import Store
from plinth_text.arrays import I32, I64, U64, Bools

VERSION = "1"

#: Columns of a deduplication. `text_bytes` is the length of `text` in UTF-8.
SCHEMA = pa.schema(
    [
        pa.field("considered", pa.bool_(), nullable=False),
        pa.field("cluster", pa.binary(16)),  # null where not considered
        pa.field("size", pa.int32(), nullable=False),  # 0 where not considered
        pa.field("survivor", pa.bool_(), nullable=False),
        pa.field("text_bytes", pa.int64(), nullable=False),
    ]
)

#: Runs of members of clusters of two or more; documents that are not listed are alone. Columns: the document's
#: number (or its row, once gathered by slot), the cluster's id as two halves, size << 1 | whether it survives.
MEMBERS, MEMBER_COLUMNS = "members", 4

#: Slots that one task gathers, and rows that it should hold.
GATHER_SLOTS, GATHER_ROWS = 64, 4_000_000


def write_members(store: Store, at: U64, group: I64, ranks: U64) -> Part:
    """The members of clusters as a run.

    Args:
        at: [N] numbers of documents, ascending.
        group: [N] any number that is the same for the members of a cluster and no others.
        ranks: by number of document: the halves of its id, and its rank (smaller is better).
    """
    own = np.asarray(ranks[at]) if at.size else np.empty((0, 3), np.uint64)
    high, low, rank = own[:, 0], own[:, 1], own[:, 2]
    _, group = np.unique(group, return_inverse=True)
    by_id = np.lexsort((at, low, high, group))
    first = by_id[_starts(group[by_id])]  # of each cluster, the member with the smallest id
    best = np.lexsort((at, low, high, rank, group))
    survivor = np.zeros(at.size, dtype=np.uint64)
    survivor[best[_starts(group[best])]] = 1
    sizes = np.bincount(group, minlength=first.size)[group].astype(np.uint64)
    listed = sizes > 1
    columns = (at, high[first][group], low[first][group], sizes << np.uint64(1) | survivor)
    chunk = [column[listed] for column in columns]
    return sorted_runs.write(store, "members.run", MEMBERS, [chunk], MEMBER_COLUMNS)


def _starts(group: I64) -> Bools:
    new = np.ones(group.size, dtype=np.bool_)
    new[1:] = group[1:] != group[:-1]
    return new


def gather(
    ctx: Context,
    label: str,
    parts: Sequence[Part],
    layout: SlotNumbers,
    kind: str = MEMBERS,
    columns: int = MEMBER_COLUMNS,
) -> list[Part]:
    """Runs by number of document, of ranges or partitions, as one run by row for each slot, sorted by all columns."""
    count, step = len(layout.bases) - 1, Step(name="dedup/gather", version=VERSION, params={"kind": kind})
    few = narrow(ctx, kind, columns, parts, label)
    found, rows = keyed(few), max(1, sum(part.rows for part in few))
    at_once = max(1, min(GATHER_SLOTS, GATHER_ROWS * count // rows))
    items = [
        Item(("-".join(map(str, bases)), found), _Gather(few, bases, kind, columns), bases[-1] - bases[0])
        for bases in (layout.bases[i : i + at_once + 1] for i in range(0, count, at_once))
    ]
    return [part for made in run_items(ctx, step, _gather, items, label=f"{label} gather") for part in made]


@dataclass(frozen=True)
class _Gather:
    parts: tuple[Part, ...]
    bases: tuple[int, ...]
    kind: str
    columns: int


def _gather(store: Store, task: _Gather) -> tuple[Part, ...]:
    found = [[np.empty(0, np.uint64)] * task.columns]
    for part in task.parts:
        with sorted_runs.SortedRun(store, part, task.kind) as opened:
            found.append(list(opened.slice(task.bases[0], task.bases[-1])))
    table = [np.concatenate(column) for column in zip(*found, strict=True)]
    order = sorted_runs.in_order(*table)
    table = [column[order] for column in table]
    cuts = np.searchsorted(table[0], np.array(task.bases, dtype=np.uint64))
    made = []
    for base, begin, end in zip(task.bases, cuts, cuts[1:], strict=False):
        mine = [column[begin:end] for column in table]
        mine[0] = mine[0] - np.uint64(base)
        made.append(sorted_runs.write(store, "slot.run", task.kind, [mine], task.columns))
    return tuple(made)


def write_sidecar(store: Store, name: str, members: Part, rows: Iterable[tuple[pa.Array, pa.Array, pa.Array]]) -> Part:
    """The sidecar of one slot, with statistics of what survived.

    Args:
        members: the slot's own, from `gather`.
        rows: batches of ids, whether considered, and lengths in bytes, in row order.
    """
    with sorted_runs.SortedRun(store, members, MEMBERS) as opened:
        mine = opened.all()
    stats = dict.fromkeys(STATS, 0)
    part = write_batches(store, name, SCHEMA, _batches(mine, rows, stats))
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
    mine: tuple[U64, ...], rows: Iterable[tuple[pa.Array, pa.Array, pa.Array]], stats: dict[str, int]
) -> Iterator[pa.RecordBatch]:
    row, cluster_high, cluster_low, packed = mine
    first = 0
    for ids, considered, text_bytes in rows:
        begin, end = np.searchsorted(row, np.array([first, first + len(ids)], dtype=np.uint64))
        where = row[begin:end].astype(np.int64) - first
        high, low = halves(ids)
        keep = considered.to_numpy(zero_copy_only=False)
        size, survivor = keep.astype(np.int32), keep.copy()
        size[where] = packed[begin:end] >> np.uint64(1)
        survivor[where] = packed[begin:end] & np.uint64(1)
        high[where], low[where] = cluster_high[begin:end], cluster_low[begin:end]
        cluster = pc.if_else(considered, binary16(high, low), pa.scalar(None, pa.binary(16)))
        _count(stats, keep, size, survivor, text_bytes.to_numpy())
        yield pa.RecordBatch.from_arrays(
            [considered, cluster, pa.array(size), pa.array(survivor), text_bytes], schema=SCHEMA
        )
        first += len(ids)


def _count(
    stats: dict[str, int],
    considered: Bools,
    size: I32,
    survivor: Bools,
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
