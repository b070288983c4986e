"""Documents that share a band key, grouped by connected component and divided into partitions.

    groups        per range of keys: the documents of every key that two or more documents share
    components    documents connected by shared keys (`components`)
    route         per range of documents: the shared keys, sorted by component

Each cluster is inside one component. Therefore components can be divided into partitions of bounded size, and each
partition is verified independently. Pairs of documents are never stored. A group only proposes candidates; the
parameter `verify` determines how they are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near import components, linking
from plinth.corpus.dedup.near.components import CHUNK_ROWS, SHARED, SHARED_COLUMNS, Components, read_members
from plinth.corpus.dedup.near.index import raw_signatures
from plinth.corpus.dedup.near.linking import Payload
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.dedup.run_tree import Range, RangeReader, cuts, keyed, levels, narrow, reduce
from plinth.corpus.dedup.sorted_runs import END
from plinth.corpus.sidecars import Column, SlotNumbers
from plinth.errors import IntegrityError
from plinth.records import Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64
from plinth_text.compiled import compiled

VERSION = "2"
#: Runs of (component, band key, document).
ROUTED = "routed"

#: Documents that are counted in a partition, on average, to find where partitions end.
COUNTED = 32


@dataclass(frozen=True)
class CandidatePairs:
    """Groups of candidate duplicates in a corpus, by connected component.

    Args:
        routed: a few sorted runs of (component, band key, document).
        components: component of every document that shares a key with another document.
        partitions: ranges of components, half open.
    """

    routed: tuple[Part, ...]
    components: Components
    partitions: tuple[tuple[int, int], ...]

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
) -> CandidatePairs:
    """Return the documents that share a band key, grouped by connected component.

    Args:
        asset: name of the asset that the stage writes.
        groups: sorted runs of `components.SHARED`.
        documents: number of documents in the corpus.
        partition_rows: number of documents per partition, unless a single component is larger. A partition may have
            about a fifth more, because its documents are counted from a sample.
        span: documents per task; affects memory use only.
    """
    shared = narrow(ctx, SHARED, SHARED_COLUMNS, groups, f"{asset} groups")
    joined = components.connect(ctx, asset, shared, documents, span)
    every = max(1, partition_rows // COUNTED)
    step = Step(name=f"{asset}/route", version=VERSION, params={"every": every})
    key = keyed(shared)
    items = [
        Item((f"{low}-{high}", key, mine.blob.sha256), _Route(low, high, shared, mine, every), mine.rows)
        for (low, high), mine in zip(components.spans(documents, span), joined.members, strict=True)
    ]
    made = run_items(ctx, step, _route, items, label=f"{asset} route")
    few = narrow(ctx, ROUTED, 3, [part for parts in made for part in parts[1:]], f"{asset} route")
    counted = tuple(parts[0] for parts in made)
    step = Step(name=f"{asset}/partitions", version=VERSION, params={"documents": documents})
    task = _Partitions(counted, partition_rows // every, documents)
    item = Item((keyed(counted), str(task.limit)), task)
    bounds = run_items(ctx, step, _partitions, [item], label=f"{asset} partitions")[0][0].stats["bounds"]
    return CandidatePairs(few, joined, tuple(pairwise(bounds)))


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


@dataclass(frozen=True)
class _Route:
    low: int
    high: int
    shared: tuple[Part, ...]
    members: Part
    every: int


def _route(store: Store, task: _Route) -> tuple[Part, ...]:
    document, component = read_members(store, [task.members], task.low, task.high)
    of = np.zeros(task.high - task.low, dtype=np.uint64)
    of[document - np.uint64(task.low)] = component
    mixed = linking.ends(document, document)
    counted = np.sort(component[mixed % np.uint64(task.every) == 0])
    made = [sidecars.write(store, "counted.flat", counted)]
    waiting: list[tuple[U64, ...]] = []
    held = 0
    for part in task.shared:
        with sorted_runs.SortedRun(store, part, SHARED) as opened:
            for at, key, _ in opened.chunks(CHUNK_ROWS, task.low, task.high):
                waiting.append((of[at - np.uint64(task.low)], key, at))
                held += at.size
                if held >= ROUTE_ROWS:
                    made.append(_write_routed(store, waiting))
                    waiting, held = [], 0
    if held:
        made.append(_write_routed(store, waiting))
    return tuple(made)


#: Shared keys that a task sorts at a time.
ROUTE_ROWS = 4_000_000


def _write_routed(store: Store, rows: Sequence[tuple[U64, ...]]) -> Part:
    table = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = sorted_runs.stable_order(table[0])
    return sorted_runs.write(store, "routed.run", ROUTED, [[column[order] for column in table]], 3)


@dataclass(frozen=True)
class _Partitions:
    counted: tuple[Part, ...]
    limit: int
    documents: int


def _partitions(store: Store, task: _Partitions) -> tuple[Part, ...]:
    """Divide the components into partitions of at most `limit` counted documents, or of one component."""
    columns = [sidecars.open_flat(store, part, "<u8") for part in task.counted]
    component, sizes = np.unique(np.concatenate([np.empty(0, np.uint64), *columns]), return_counts=True)
    ends, bounds, at = np.cumsum(sizes), [0], 0
    while at < component.size:
        before = int(ends[at - 1]) if at else 0
        at = max(at + 1, int(np.searchsorted(ends, before + task.limit, side="right")))
        bounds.append(int(component[at]) if at < component.size else task.documents)
    bounds = bounds if len(bounds) > 1 else [0, task.documents]
    empty = sidecars.write(store, "partitions.flat", np.empty(0, np.uint64))
    return (empty.model_copy(update={"stats": {"bounds": bounds}}),)


def read_partition(store: Store, routed: Sequence[Part], low: int, high: int) -> tuple[U64, U64]:
    """Return band keys and documents of the groups in a range of components, sorted by key and document."""
    keys, documents = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for part in routed:
        with sorted_runs.SortedRun(store, part, ROUTED) as opened:
            _, key, at = opened.slice(low, high)
        keys.append(key)
        documents.append(at)
    key, at = np.concatenate(keys), np.concatenate(documents)
    order = sorted_runs.stable_order(key)  # runs are in order of documents
    return key[order], at[order]


# Shingle sets or signatures for verification, carried from parts of documents to partitions of components.
#
#     carry     per part: the shingle sets (or the signatures) of the documents that are wanted, in order of component
#     merge     several of these in order of component, until there are few: a partition reads a stretch of each
#
# Memory is one part's; a partition that would hold more than `IN_MEMORY` lays its values into a scratch file.

#: The values of some rows of a part.
ValuesFn = Callable[[Store, Part, I64], Iterator[U64]]

PAYLOADS_VERSION = "2"
#: Runs of (component, document, start, values, checksum), and of the rows that are wanted.
PAYLOAD, NEEDED = "payload", "needed"
IN_MEMORY = 512 * 2**20
#: Values that one merging task holds: 64 MB, a few times over.
MERGE_VALUES = 8 * 2**20


@dataclass(frozen=True)
class Carried:
    """Shingle sets or signatures from several parts of documents, stored as a flat column of values and a sorted run
    with the position of each document's values in the column."""

    places: Part
    values: Part


def carry(
    ctx: Context,
    step: Step,
    read: Sequence[Part],
    values: ValuesFn,
    layout: SlotNumbers,
    found: CandidatePairs,
    needed: Sequence[Part | None] | None,
) -> tuple[Carried, ...]:
    """Write the shingle sets or signatures of all parts of documents, in at most `run_tree.MOST_RUNS` pieces.

    Args:
        step: step that writes the values; its name begins with the stage's name.
        read: by part of documents, the part with the data to compare.
        values: function that reads the values of given rows of a part.
        needed: by part of documents, a sorted run of the rows to read; by default, all rows in a component.
    """
    label = step.name.rsplit("/", 1)[0]
    items, every = [], needed if needed is not None else [None] * len(read)
    for part, base, wanted in zip(read, layout.bases, every, strict=False):
        members = found.components.within(base, base + part.rows)
        keys: tuple[str, ...] = (part.blob.sha256, str(base), wanted.blob.sha256 if wanted else "", keyed(members))
        if wanted is not None and wanted.rows == 0:
            keys = ("nothing",)  # reads nothing, whatever the part is
        items.append(Item(keys, _Carry(part, values, members, base, wanted), wanted.rows if wanted else part.rows))
    made = run_items(ctx, step, _carry, items, label=f"{label} sets")
    merging = Step(name="dedup/minhash/sets", version=PAYLOADS_VERSION)

    def merged(groups: Sequence[Sequence[Carried]]) -> list[Carried]:
        items = [
            Item((keyed(p for one in some for p in (one.places, one.values)),), tuple(some), len(some))
            for some in groups
        ]
        return [Carried(*parts) for parts in run_items(ctx, merging, _merge, items, label=f"{label} sets merge")]

    return tuple(levels([Carried(*parts) for parts in made if parts[0].rows], merged))


@dataclass(frozen=True)
class _Carry:
    read: Part
    values: ValuesFn
    members: tuple[Part, ...]
    base: int
    wanted: Part | None


def _carry(store: Store, task: _Carry) -> tuple[Part, ...]:
    rows, component = _wanted(store, task)
    order = sorted_runs.stable_order(component)
    values = list(task.values(store, task.read, rows))
    flat = np.concatenate([np.empty(0, np.uint64), *(values[i] for i in order)])
    sizes = np.array([values[i].size for i in order], dtype=np.int64)
    starts, checks = np.cumsum(sizes) - sizes, np.empty(rows.size, dtype=np.uint64)
    checksums(flat, starts, sizes, checks)
    numbers = rows[order].astype(np.uint64) + np.uint64(task.base)
    columns = (component[order], numbers, starts.astype(np.uint64), sizes.astype(np.uint64), checks)
    places = sorted_runs.write(store, "places.run", PAYLOAD, [columns], 5)
    return places, sidecars.write(store, "values.flat", flat)


def _wanted(store: Store, task: _Carry) -> tuple[I64, U64]:
    """Return the rows to read from a part of documents, and the component of each row."""
    if task.wanted is not None and task.wanted.rows == 0:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    document, component = read_members(store, task.members, task.base, task.base + task.read.rows)
    rows = (document - np.uint64(task.base)).astype(np.int64)
    if task.wanted is None:
        return rows, component
    with sorted_runs.SortedRun(store, task.wanted, NEEDED) as opened:
        needed = opened.all()[0].astype(np.int64)
    return needed, component[np.searchsorted(rows, needed)]


def values_of(params: MinHash) -> ValuesFn:
    """Return a function that reads the shingle sets of documents if the parameter `verify` is `text`, or else their
    signatures."""
    return partial(_values, params)


def _values(params: MinHash, store: Store, part: Part, rows: I64) -> Iterator[U64]:
    if params.verify == "text":
        for batch in sorted_runs.iter_rows(store, part, ["text"], rows):
            yield from linking.sets(batch.column("text"), params)
        return
    width = params.bands * params.rows
    for batch in sorted_runs.iter_rows(store, part, ["signature"], rows):
        signed = raw_signatures(batch.column("signature"), width)
        yield from np.pad(signed, ((0, 0), (0, width % 2))).view(np.uint64)


def _merge(store: Store, task: tuple[Carried, ...]) -> tuple[Part, ...]:
    with ExitStack() as stack:
        opened = [stack.enter_context(sorted_runs.SortedRun(store, one.places, PAYLOAD)) for one in task]
        values = [partial(sidecars.read_flat, store, one.values, "<u8") for one in task]
        rows = sum(one.places.rows for one in task)
        held = max(1, MERGE_VALUES * rows // max(1, sum(one.values.rows for one in task)))
        path = stack.enter_context(store.staging(".flat"))
        with named_failures(path):
            target = stack.enter_context(path.open("wb"))
        written = 0

        def chunks() -> Iterator[tuple[U64, ...]]:
            nonlocal written
            for low, high in cuts([one.first for one in opened], held):
                component, number, start, size, check, ordered = _range(opened, values, low, high)
                with named_failures(path):
                    ordered.tofile(target)
                yield component, number, start + np.uint64(written), size, check
                written += ordered.size

        places = sorted_runs.write(store, "places.run", PAYLOAD, chunks(), 5)
        with named_failures(path):
            target.close()
        return places, Part(name="values.flat", blob=store.put_file(path), rows=written)


def _range(
    opened: Sequence[sorted_runs.SortedRun], values: Sequence[Callable[[int, int], U64]], low: int, high: int
) -> tuple[U64, U64, U64, U64, U64, U64]:
    """Read the columns of `PAYLOAD` and their values for a range of components, from several pieces. Rows are sorted by
    component and document."""
    slices = [one.slice(low, high) for one in opened]
    held = [
        read(int(start[0]), int(size.sum())) if start.size else np.empty(0, np.uint64)
        for read, (_, _, start, size, _) in zip(values, slices, strict=True)
    ]
    shifts = (0, *accumulate(one.size for one in held))
    moved = [
        (component, number, start - (start[0] if start.size else np.uint64(0)) + np.uint64(shift), size, check)
        for (component, number, start, size, check), shift in zip(slices, shifts, strict=False)
    ]
    component, number, start, size, check = (np.concatenate(column) for column in zip(*moved, strict=True))
    order = sorted_runs.in_order(component, number)
    start, size = start[order], size[order]
    ordered = np.empty(int(size.sum()), dtype=np.uint64)
    rearrange(np.concatenate(held), start.astype(np.int64), size.astype(np.int64), ordered)
    starts = np.zeros(size.size, dtype=np.uint64)
    starts[1:] = np.cumsum(size)[:-1]
    return component[order], number[order], starts, size, check[order], ordered


@compiled
def rearrange(values: U64, start: I64, size: I64, out: U64) -> None:
    """Copy the slices of values that begin at `start` to `out`, one after the other."""


@compiled
def checksums(values: U64, start: I64, size: I64, out: U64) -> None:
    """Write to `out` a 64-bit checksum of each slice of values, which depends on their order."""


@contextmanager
def load(
    store: Store, carried: Sequence[Carried], low: int, high: int, documents: U64, minima: int
) -> Iterator[Payload]:
    """Load the shingle sets or signatures of the components in the range [low, high).

    Args:
        documents: [N] document numbers of the partition, ascending.
        minima: length of a signature, if the values are signatures.

    Raises:
        IntegrityError: values differ from those that were written.
    """
    wanted = []
    for one in carried:
        with sorted_runs.SortedRun(store, one.places, PAYLOAD) as opened:
            _, number, start, size, check = opened.slice(low, high)
        if number.size:
            wanted.append((one.values, np.searchsorted(documents, number), start, size, check))
    total = sum(int(size.sum()) for _, _, _, size, _ in wanted)
    with store.staging(".scratch") as path:
        large = total * 8 > IN_MEMORY
        values: U64 = np.memmap(path, np.uint64, "w+", shape=(total,)) if large else np.empty(total, np.uint64)
        payload = Payload(np.zeros(documents.size, np.int64), np.zeros(documents.size, np.int64), values, minima)
        at = 0
        for part, node, start, size, check in wanted:
            first, count = int(start[0]), int(size.sum())
            values[at : at + count] = sidecars.open_flat(store, part, "<u8")[first : first + count]
            payload.start[node] = (start - start[0]).astype(np.int64) + at
            payload.size[node] = size
            if is_corrupted(values, payload.start[node], payload.size[node], check):
                raise IntegrityError(
                    f"{part.name} ({part.blob.md5}) has changed since it was written",
                    found="a different checksum",
                    expected=f"SHA-256 {part.blob.sha256}",
                    remedy="delete the blob from the store and run the same command again",
                )
            at += count
        yield payload


@compiled
def is_corrupted(values: U64, start: I64, size: I64, check: U64) -> bool:
    """Return True if the checksum of any slice of values differs from its expected checksum in `check`."""
