"""Clusters and their survivors, written as the sidecar columns of exact, near and semantic deduplication.

The id of a cluster is the smallest document id in it. Exactly one document of a cluster survives: the document with the
best rank, or the document with the smallest id if ranks are equal. The choice depends only on the documents' ids and
ranks. The order of parts and the number of workers have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.dedup.run_tree import keyed, narrow
from plinth.corpus.dedup.sorted_runs import binary16, halves
from plinth.corpus.sidecars import Column, Slot, SlotNumbers, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, write_batches
from plinth.storage.store import Store
from plinth_text.arrays import F64, I32, I64, U64, Bools

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
    """Write the documents of clusters as a sorted run.

    Args:
        at: [N] document numbers, ascending.
        group: [N] for each document, any number that identifies its cluster.
        ranks: [N, 3] the two halves of each document's id, and its rank (a smaller rank is better).
    """
    high, low, rank = ranks.T
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


def write_large(store: Store, chunks: Callable[[], Iterable[tuple[U64, U64, U64]]]) -> Iterator[Part]:
    """Write the documents of a few clusters of any size as several sorted runs, in bounded memory.

    Args:
        chunks: function that iterates over the documents: [N] numbers, ascending, [N] any number that identifies the
            cluster, and [N, 3] ids and ranks as in `write_members`. It is called twice.
    """
    found: dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}  # size, smallest id, best document
    for at, group, ranks in chunks():
        high, low, rank = ranks.T
        for number in np.unique(group).tolist():
            mine = np.flatnonzero(group == number)
            first, kept = (
                mine[np.lexsort([key[mine] for key in keys])[0]] for keys in ((low, high), (low, high, rank))
            )
            least = int(high[first]), int(low[first])
            best = int(rank[kept]), int(high[kept]), int(low[kept]), int(at[kept])
            size, *others = found.get(number, (0, least, best))
            found[number] = size + mine.size, min(others[0], least), min(others[1], best)
    for at, group, _ in chunks():
        listed = [(number, *found[number]) for number in np.unique(group).tolist() if found[number][0] > 1]
        for number, size, (high, low), (*_, kept) in listed:
            mine = at[group == number]
            columns = (np.full(mine.size, value, dtype=np.uint64) for value in (high, low, size << 1))
            chunk = [mine, *columns]
            chunk[3] |= mine == np.uint64(kept)
            yield sorted_runs.write(store, "members.run", MEMBERS, [chunk], MEMBER_COLUMNS)


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
    """Merge sorted runs of document numbers from all ranges or partitions, and split them into one sorted run per part
    of documents. In the written runs, row numbers within the part replace document numbers, and rows are sorted by all
    columns."""
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
    """Write the sidecar of one part of documents, with statistics of the survivors.

    Args:
        members: sorted run of the part's cluster members, from `gather`.
        rows: batches of document ids, flags (True if compared), and lengths in bytes, in row order.
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
    """Return the statistics of a deduplication, over all buckets and by bucket. Names of parts begin with the bucket's
    name."""
    total = dict.fromkeys(STATS, 0)
    buckets: dict[str, dict[str, int]] = {}
    for part in parts:
        own = buckets.setdefault(part.name.split("/", 1)[0], dict.fromkeys(STATS, 0))
        for stats in (total, own):
            for name in STATS:
                value = int(part.stats[name])
                stats[name] = max(stats[name], value) if name == "largest_cluster" else stats[name] + value
    return {**total, "buckets": buckets}


# The survivor of a cluster: the rule of the recipe as one number per document, smaller is better.
#
#     smallest_id    nothing but the id
#     longest        the most UTF-8 bytes
#     earliest       the first capture; a document without a time comes after all others
#     best_quality   the highest value of an annotation's column; no value comes last
#
# Before any of them goes the bucket: those named in `prefer`, in that order, then all others. After them goes the
# id, so the choice depends on the members alone, never on the order of parts or the number of workers.
#
# The number: 8 bits for the bucket's place, 56 for the rule. Times are microseconds; of a float's 64 bits the
# upper 56 count, about 13 decimal digits.

RANK_TABLE_VERSION = "1"
WIDTH = 3  # columns of the table: the id's big-endian halves, the rank

_VALUE_BITS = 56
_LAST = np.uint64(2**_VALUE_BITS - 1)


def build(
    ctx: Context,
    params: Dedup,
    documents: Mapping[str, Manifest],
    lengths: Sequence[Part],
    quality: Mapping[str, Manifest] | None,
) -> Column:
    """Return the id and rank of every document as a column of `WIDTH` uint64.

    Args:
        lengths: by part of documents, the part with their `text_bytes`.
        quality: by bucket, the sidecar with the column that `best_quality` compares.
    """
    places = slots(documents, **({"quality": quality} if quality else {}))
    items = []
    for slot, length in zip(places, lengths, strict=True):
        read = {"longest": length, "best_quality": slot.sides.get("quality")}.get(params.keep)
        place = params.prefer.index(slot.bucket) if slot.bucket in params.prefer else len(params.prefer)
        column = params.quality.split(".", 1)[1] if params.quality else ""
        keys = (slot.documents.blob.sha256, read.blob.sha256 if read else "", str(place), column)
        items.append(Item(keys, _Rank(slot, read, place, column, params.keep), slot.documents.rows))
    step = Step(name="dedup/rank", version=RANK_TABLE_VERSION, params={"keep": params.keep})
    parts = [made[0] for made in run_items(ctx, step, _rank, items, label="dedup ranks")]
    return sidecars.joined(ctx, "dedup rank table", parts, "<u8", WIDTH)


@dataclass(frozen=True)
class _Rank:
    slot: Slot
    read: Part | None
    place: int
    column: str
    keep: str


def _rank(store: Store, task: _Rank) -> tuple[Part, ...]:
    chunks = [np.empty((0, WIDTH), np.uint64)]
    for ids, values in _columns(store, task):
        high, low = halves(ids)
        chunks.append(np.stack([high, low, np.uint64(task.place << _VALUE_BITS) | values], axis=1))
    return (sidecars.write(store, "ranks.flat", np.concatenate(chunks)),)


def _columns(store: Store, task: _Rank) -> Iterator[tuple[pa.Array, U64]]:
    wanted = ["id", "captured_at"] if task.keep == "earliest" else ["id"]
    column = {"longest": "text_bytes", "best_quality": task.column}.get(task.keep)
    sources: list[tuple[Part, list[str]]] = [(task.slot.documents, wanted)]
    if task.read is not None and column:
        sources.append((task.read, [column]))
    for first, *rest in iter_aligned(store, *sources):
        if task.keep == "earliest":
            values = _times(first.column("captured_at"))
        elif rest and column:
            values = _descending(rest[0].column(column))
        else:
            values = np.zeros(first.num_rows, dtype=np.uint64)
        yield first.column("id"), values


def _times(column: pa.Array) -> U64:
    """Return times as nonnegative microseconds. A missing time gets the largest possible number."""
    micros = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    bounded = np.clip(micros, -(2**54), 2**54) + 2**54
    return np.where(pc.is_valid(column).to_numpy(zero_copy_only=False), bounded.astype(np.uint64), _LAST)


def _descending(column: pa.Array) -> U64:
    """Return numbers that decrease as the column's values increase. Missing values and NaN get the largest number."""
    floats = pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy(zero_copy_only=False)
    return np.where(np.isnan(floats), _LAST, _LAST - np.uint64(1) - np.minimum(_ordered(floats), _LAST - np.uint64(1)))


def _ordered(floats: F64) -> U64:
    """Return the upper bits of each float as an unsigned integer. The integers sort in the same order as the IEEE 754
    floats."""
    bits = (floats + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    negative = bits >> np.uint64(63) == 1
    flipped = np.where(negative, ~bits, bits | np.uint64(1 << 63))
    return flipped >> np.uint64(64 - _VALUE_BITS)
