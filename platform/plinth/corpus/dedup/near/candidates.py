"""Documents that share a band key, grouped by connected component and divided into pieces of bounded size.

    groups        per range of keys: the documents of every key that two or more documents share
    components    documents connected by shared keys (`components`)
    route         per range of documents: the shared keys, sorted by component, or by group in large components
    divide        ranges of components (partitions) and ranges of groups (pieces of large components)

Each cluster is inside one component, so a partition of components is verified independently and yields its clusters. A
component that exceeds a partition is large: its groups are divided into pieces, each piece yields the documents that it
connects, and `large` connects these to clusters. A single group that exceeds a piece is a crowd: `crowds` divides it.
A document with a long text counts as several documents, so that partitions and pieces are bounded in bytes too.

Pairs of documents are never stored. A group only proposes candidates; the parameter `verify` determines how they are
compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near import components, linking
from plinth.corpus.dedup.near.components import CHUNK_ROWS, SHARED, SHARED_COLUMNS, Components, read_members
from plinth.corpus.dedup.near.linking import ALL_PAIRS
from plinth.corpus.dedup.run_tree import Range, RangeReader, in_order, keyed, narrow, reduce
from plinth.corpus.dedup.sorted_runs import END
from plinth.corpus.sidecars import Column
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64, Bools

VERSION = "4"
#: Runs of (component, band key, document). In large components, the key of a group takes the component's place:
#: `LARGE`, the first document of the group, and `KEY_BITS` of its band key. Groups with many documents in common often
#: have the same first document, so they are adjacent.
ROUTED, LARGE, KEY_BITS = "routed", 2**63, 20

#: Runs of keys of `ROUTED`: those of documents or rows that are counted to find where partitions and pieces end, and
#: the average number of these in a partition or piece.
COUNTS, COUNTED = "counts", 32
#: Maximum number of rows in a piece of a large component.
PIECE_ROWS = 2**18


@dataclass(frozen=True)
class CandidatePairs:
    """Groups of candidate duplicates in a corpus.

    Args:
        shared: a few sorted runs of `components.SHARED`.
        routed: a few sorted runs of `ROUTED`.
        components: component of every document that shares a key with another document.
        large: components that are larger than a partition, as a flat column in ascending order.
        partitions: ranges of the other components, half open.
        pieces: ranges of the groups of large components, half open.
        crowded: keys in `ROUTED` of groups that are larger than a piece.
        piece_rows: number of rows per piece.
        weights: number of documents that each document counts as; one if None.
    """

    shared: tuple[Part, ...]
    routed: tuple[Part, ...]
    components: Components
    large: Part
    partitions: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[int, int], ...]
    crowded: tuple[int, ...]
    piece_rows: int
    weights: Column | None = None

    @property
    def documents(self) -> int:
        """Number of documents that share a key with another document."""
        return self.components.documents


def find(
    ctx: Context,
    asset: str,
    groups: Sequence[Part],
    documents: int,
    partition_rows: int,
    span: int = components.SPAN,
    weights: Column | None = None,
) -> CandidatePairs:
    """Return the documents that share a band key, grouped by connected component.

    Args:
        asset: name of the asset that the stage writes.
        groups: sorted runs of `components.SHARED`.
        documents: number of documents in the corpus.
        partition_rows: number of documents per partition, and of rows per piece of a large component, within the limits
            of a piece. Both may have about a fifth more, because they are counted from a sample.
        span: documents per task; affects memory use only.
        weights: number of documents that each document counts as; one if None.
    """
    shared = narrow(ctx, SHARED, SHARED_COLUMNS, groups, f"{asset} groups")
    joined = components.connect(ctx, asset, shared, documents, span)
    ranges = components.spans(documents, span)
    counted = _counted(ctx, asset, ranges, joined, max(1, partition_rows // COUNTED), weights)
    bounds, large = _divided(ctx, asset, counted, partition_rows)
    piece_rows = min(max(partition_rows, ALL_PAIRS), PIECE_ROWS)
    step = Step(name=f"{asset}/route", version=VERSION, params={"every": max(1, piece_rows // COUNTED)})
    key, every = keyed((*shared, large, *([weights.listing] if weights else ()))), step.params["every"]
    items = [
        Item((f"{low}-{high}", key, mine.blob.sha256), _Route(low, high, shared, mine, large, every, weights))
        for (low, high), mine in zip(ranges, joined.members, strict=True)
    ]
    made = run_items(ctx, step, _route, items, label=f"{asset} route")
    few = narrow(ctx, ROUTED, 3, [part for parts in made for part in parts[1:]], f"{asset} route")
    partitions = tuple(pairwise([0, *bounds, documents]))
    pieces, crowded = list[tuple[int, int]](), list[int]()
    if large.rows:
        bounds, found = _divided(ctx, asset, [parts[0] for parts in made], piece_rows)
        crowded = sidecars.open_flat(ctx.store, found, "<u8").tolist()
        pieces = list(pairwise(sorted({LARGE, *bounds, *crowded, *(one + 1 for one in crowded), END})))
        pieces = [piece for piece in pieces if piece[0] not in set(crowded)]
    return CandidatePairs(shared, few, joined, large, partitions, tuple(pieces), tuple(crowded), piece_rows, weights)


def is_large(store: Store, large: Part, component: U64) -> Bools:
    """Return a mask of the components that are large."""
    known = sidecars.open_flat(store, large, "<u8")
    if not known.size:
        return np.zeros(component.size, dtype=np.bool_)
    mask: Bools = known[np.minimum(np.searchsorted(known, component), known.size - 1)] == component
    return mask


def groups(ctx: Context, reader: RangeReader, mask: Column, range_rows: int) -> list[Part]:
    """Return the documents that share a band key, as sorted runs of `components.SHARED`.

    Args:
        reader: reader of the index's band keys.
        mask: column of bytes that selects the documents to compare.
        range_rows: band keys per reduce task.
    """
    step = Step(name="dedup/minhash/groups", version=VERSION)
    return reduce(ctx, step, _group, reader, range_rows, "dedup/minhash groups", mask)


def _group(store: Store, task: Range) -> tuple[Part, ...]:
    made = list[Part]()
    for piece, heavy in task.pieces(store):
        if heavy:
            made += _one_key(store, piece)
            continue
        first, (key, at) = piece.read(store)
        shared = ~first
        shared[:-1] |= ~first[1:]
        made.append(write_shared(store, key[shared], at[shared]))
    return tuple(made)


def _one_key(store: Store, task: Range) -> Iterator[Part]:
    """Write the documents that share a single key, in several runs."""
    found = [(at.size, at.min(initial=END - 1)) for _, at in task.chunks(store)]
    if sum(size for size, _ in found) > 1:
        least = min(first for _, first in found)
        for key, at in task.chunks(store):
            chunk = [np.sort(at), key, np.full(at.size, least)]
            yield sorted_runs.write(store, "shared.run", SHARED, [chunk], SHARED_COLUMNS)


def write_shared(store: Store, key: U64, at: U64) -> Part:
    """Write documents that share a key as a sorted run of `components.SHARED`. Rows are given in order of key and
    document."""
    new = np.ones(key.size, dtype=np.bool_)
    new[1:] = key[1:] != key[:-1]
    first = at[new][np.cumsum(new) - 1]
    order = sorted_runs.stable_order(at)  # keys stay in order
    return sorted_runs.write(store, "shared.run", SHARED, [(at[order], key[order], first[order])], SHARED_COLUMNS)


def _counted(
    ctx: Context,
    asset: str,
    ranges: Sequence[tuple[int, int]],
    joined: Components,
    every: int,
    weights: Column | None,
) -> list[Part]:
    """Return the components of some documents, one of `every`, as sorted runs of `COUNTS`."""
    step, key = Step(name=f"{asset}/count", version=VERSION, params={"every": every}), weights.key if weights else ""
    items = [
        Item((f"{low}-{high}", mine.blob.sha256, key), _Count(low, high, mine, every, weights), mine.rows)
        for (low, high), mine in zip(ranges, joined.members, strict=True)
    ]
    return [parts[0] for parts in run_items(ctx, step, _count, items, label=f"{asset} count")]


@dataclass(frozen=True)
class _Count:
    low: int
    high: int
    members: Part
    every: int
    weights: Column | None


def _count(store: Store, task: _Count) -> tuple[Part, ...]:
    document, component = read_members(store, [task.members], task.low, task.high)
    weight = weights_of(store, task.weights, document)
    return (_write_counts(store, _sampled(component, linking.ends(document, document), weight, task.every)),)


def weights_of(store: Store, weights: Column | None, documents: U64) -> U64:
    """Return the number of documents that each document counts as, for documents in ascending order."""
    if weights is None:
        return np.ones(documents.size, dtype=np.uint64)
    return weights.take(store, documents).astype(np.uint64)


def _sampled(key: U64, drawn: U64, weight: U64, every: int) -> U64:
    """Return about one of `every` keys; a key with a weight of several times `every` is returned several times.

    Args:
        drawn: random number of each key.
    """
    return np.repeat(key, ((weight + drawn % np.uint64(every)) // np.uint64(every)).astype(np.int64))


def _write_counts(store: Store, key: U64) -> Part:
    return sorted_runs.write(store, "counts.run", COUNTS, [(np.sort(key),)], 1)


@dataclass(frozen=True)
class _Route:
    low: int
    high: int
    shared: tuple[Part, ...]
    members: Part
    large: Part
    every: int
    weights: Column | None


def _route(store: Store, task: _Route) -> tuple[Part, ...]:
    document, component = read_members(store, [task.members], task.low, task.high)
    of = np.zeros(task.high - task.low, dtype=np.uint64)
    of[document - np.uint64(task.low)] = component
    large = np.zeros(of.size, dtype=np.bool_)
    large[document - np.uint64(task.low)] = is_large(store, task.large, component)
    counted, made = [np.empty(0, np.uint64)], list[Part]()
    waiting: list[tuple[U64, ...]] = []
    held = 0
    for part in task.shared:
        with sorted_runs.SortedRun(store, part, SHARED) as opened:
            for at, key, first in opened.chunks(CHUNK_ROWS, task.low, task.high):
                local = at - np.uint64(task.low)
                routed, mine = of[local], np.flatnonzero(large[local])
                if mine.size:
                    routed[mine] = _group_key(first[mine], key[mine])
                    weight = weights_of(store, task.weights, at[mine])
                    drawn = linking.ends(key[mine], at[mine])
                    counted.append(_sampled(routed[mine], drawn, weight, task.every))
                waiting.append((routed, key, at))
                held += at.size
                if held >= ROUTE_ROWS:
                    made.append(_write_routed(store, waiting))
                    waiting, held = [], 0
    if held:
        made.append(_write_routed(store, waiting))
    return _write_counts(store, np.concatenate(counted)), *made


def _group_key(first: U64, key: U64) -> U64:
    return np.uint64(LARGE) | first << np.uint64(KEY_BITS) | key >> np.uint64(64 - KEY_BITS)


#: Shared keys that a task sorts at a time.
ROUTE_ROWS = 4_000_000


def _write_routed(store: Store, rows: Sequence[tuple[U64, ...]]) -> Part:
    table = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = sorted_runs.stable_order(table[0])
    return sorted_runs.write(store, "routed.run", ROUTED, [[column[order] for column in table]], 3)


def _divided(ctx: Context, asset: str, counted: Sequence[Part], rows: int) -> tuple[list[int], Part]:
    """Return the bounds of ranges of keys that have at most about `rows` rows each, and a flat column of the keys that
    have more.

    Args:
        counted: sorted runs of `COUNTS`, with one of `rows // COUNTED` rows, or all rows if there are fewer.
    """
    step = Step(name=f"{asset}/partitions", version=VERSION)
    task = _Divide(narrow(ctx, COUNTS, 1, counted, f"{asset} partitions"), rows // max(1, rows // COUNTED))
    item = Item((keyed(task.counted), str(task.limit)), task)
    bounds, above = run_items(ctx, step, _divide, [item], label=f"{asset} partitions")[0]
    return sidecars.open_flat(ctx.store, bounds, "<u8").tolist(), above


@dataclass(frozen=True)
class _Divide:
    counted: tuple[Part, ...]
    limit: int


def _divide(store: Store, task: _Divide) -> tuple[Part, ...]:
    bounds, above, held = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)], 0
    for key, sizes in _counts(store, task.counted):
        above.append(key[sizes > task.limit])
        key, sizes = key[sizes <= task.limit], sizes[sizes <= task.limit]
        ends, base = np.append(held, held + np.cumsum(sizes)), 0
        while ends[-1] - base > task.limit:
            at = int(np.searchsorted(ends, base + task.limit, side="right"))  # the first that is too many
            bounds.append(key[at - 1 : at])
            base = int(ends[at - 1])
        held = int(ends[-1]) - base
    return tuple(sidecars.write(store, "keys.flat", np.concatenate(keys)) for keys in (bounds, above))


def _counts(store: Store, parts: Sequence[Part]) -> Iterator[tuple[U64, I64]]:
    """Yield all keys in ascending order with their numbers of rows, many at a time."""
    key, sizes = np.empty(0, np.uint64), np.empty(0, np.int64)
    with ExitStack() as stack:
        opened = [stack.enter_context(sorted_runs.SortedRun(store, part, COUNTS)) for part in parts]
        for (chunk,) in in_order(opened, CHUNK_ROWS):
            own, counts = np.unique(chunk, return_counts=True)
            key, place = np.unique(np.concatenate([key, own]), return_inverse=True)
            sizes = np.bincount(place, np.concatenate([sizes, counts]), key.size).astype(np.int64)
            yield key[:-1], sizes[:-1]  # the next chunk may have more rows of the last key
            key, sizes = key[-1:], sizes[-1:]
    yield key, sizes


def read_routed(store: Store, routed: Sequence[Part], low: int, high: int) -> tuple[U64, U64]:
    """Return band keys and documents of the groups in a range of components, or of groups of large components, sorted
    by key and document."""
    keys, documents = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for part in routed:
        with sorted_runs.SortedRun(store, part, ROUTED) as opened:
            _, key, at = opened.slice(low, high)
        keys.append(key)
        documents.append(at)
    key, at = np.concatenate(keys), np.concatenate(documents)
    order = sorted_runs.in_order(key, at)
    return key[order], at[order]
