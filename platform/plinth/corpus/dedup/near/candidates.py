"""Groups of documents that share a band key, joined into connected components.

    groups        per range of keys: the documents of every key that two or more documents share
    components    in one task: documents connected by groups; needs 8 bytes of memory per document of the corpus
    route         per range of keys: the groups, sorted by component

Each cluster is inside one component. Therefore components can be divided into partitions of bounded size, and each
partition is verified independently. Pairs of documents are never stored. A group only proposes candidates; the
parameter `verify` determines how they are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near import linking
from plinth.corpus.dedup.near.index import raw_signatures
from plinth.corpus.dedup.near.linking import Payload
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.dedup.run_tree import Range, RangeReader, cuts, keyed, levels, narrow, reduce
from plinth.corpus.sidecars import SlotNumbers
from plinth.errors import IntegrityError
from plinth.records import Part, Step
from plinth.storage.atomic import named_failures
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
    """Groups of candidate duplicates in a corpus, by connected component.

    Args:
        routed: a few sorted runs of (component, band key, document).
        components: flat column by document: the number of the first document in its component, or `ALONE`.
        width: integer type of the column `components`.
        partitions: ranges of components, half open.
        documents: number of documents that share a component with another document.
    """

    routed: tuple[Part, ...]
    components: Part
    width: str
    partitions: tuple[tuple[int, int], ...]
    documents: int


def find(ctx: Context, asset: str, groups: Sequence[Part], documents: int, partition_rows: int) -> CandidatePairs:
    """Return the documents that share a band key, grouped by connected component.

    Args:
        asset: name of the asset that the stage writes.
        groups: sorted runs of `GROUPS`.
        documents: number of documents in the corpus.
        partition_rows: maximum number of documents per partition, unless a single component is larger.
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
    """Return the documents that share a band key, as sorted runs of `GROUPS`.

    Args:
        reader: reader of the index's band keys.
        mask: flat column of bytes that selects the documents to compare.
        range_rows: band keys per reduce task.
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
    """Return band keys and documents of the groups in a range of components. The rows of a group are adjacent."""
    keys, documents = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for part in routed:
        with sorted_runs.SortedRun(store, part, ROUTED) as opened:
            _, key, at = opened.slice(low, high)
        keys.append(key)
        documents.append(at)
    return np.concatenate(keys), np.concatenate(documents)


@compiled
def unite_u32(parent: Column, key: U64, at: U64, last: U64) -> None:
    """Connect documents whose keys are equal in adjacent rows. The smaller document number becomes the root."""


@compiled
def unite_u64(parent: Column, key: U64, at: U64, last: U64) -> None:
    """Connect documents whose keys are equal in adjacent rows, for document numbers of 64 bits."""


@compiled
def cut_u32(parent: Column, sizes: Column, limit: int, alone: int, cuts: I64) -> tuple[int, int, int]:
    """Point every document to the root of its component, mark documents without a partner, and divide the components
    into partitions of about `limit` documents.

    `cuts` receives the first component of every partition except the first. Partitions that do not fit in `cuts` are
    counted but not written.

    Returns:
        The number of cuts, the number of documents in components, and the size of the largest component.
    """


@compiled
def cut_u64(parent: Column, sizes: Column, limit: int, alone: int, cuts: I64) -> tuple[int, int, int]:
    """Divide the components into partitions as in `cut_u32`, for document numbers of 64 bits."""


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
#: Values that one merging task holds: 256 MB, twice.
MERGE_VALUES = 32 * 2**20


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
        keys: tuple[str, ...] = (
            part.blob.sha256,
            str(base),
            (wanted or found.components).blob.sha256,
            found.components.blob.sha256,
        )
        if wanted is not None and wanted.rows == 0:
            keys = ("nothing",)  # reads nothing, whatever the part is
        items.append(
            Item(
                keys,
                _Carry(part, values, found.components, found.width, base, wanted),
                wanted.rows if wanted else part.rows,
            )
        )
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
    components: Part
    width: str
    base: int
    wanted: Part | None


def _carry(store: Store, task: _Carry) -> tuple[Part, ...]:
    rows, component = _wanted(store, task)
    order = np.argsort(component, kind="stable")
    values = list(task.values(store, task.read, rows))
    sizes = np.array([one.size for one in values], dtype=np.uint64)
    checks = np.array([checksum(one) for one in values], dtype=np.uint64)
    starts = np.zeros(rows.size, dtype=np.uint64)
    starts[1:] = np.cumsum(sizes[order])[:-1] if rows.size else starts[1:]
    numbers = rows[order].astype(np.uint64) + np.uint64(task.base)
    columns = (component[order], numbers, starts, sizes[order], checks[order])
    places = sorted_runs.write(store, "places.run", PAYLOAD, [columns], 5)
    flat = np.concatenate([np.empty(0, np.uint64), *(values[i] for i in order)])
    return places, sidecars.write(store, "values.flat", flat)


def _wanted(store: Store, task: _Carry) -> tuple[I64, U64]:
    """Return the rows to read from a part of documents, and the component of each row."""
    if task.wanted is not None and task.wanted.rows == 0:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    column = sidecars.open_flat(store, task.components, task.width)
    mine = np.asarray(column[task.base : task.base + task.read.rows])
    if task.wanted is None:
        rows = np.flatnonzero(mine != ALONE[task.width])
    else:
        with sorted_runs.SortedRun(store, task.wanted, NEEDED) as opened:
            rows = opened.all()[0].astype(np.int64)
    return rows, mine[rows].astype(np.uint64)


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
        values = [sidecars.open_flat(store, one.values, "<u8") for one in task]
        rows = sum(one.places.rows for one in task)
        held = max(1, MERGE_VALUES * rows // max(1, sum(one.values.rows for one in task)))
        path = stack.enter_context(store.staging(".flat"))
        with named_failures(path):
            target = stack.enter_context(path.open("wb"))
        written = 0

        def chunks() -> Iterator[tuple[U64, ...]]:
            nonlocal written
            for low, high in cuts(opened, held):
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
    opened: Sequence[sorted_runs.SortedRun], values: Sequence[U64], low: int, high: int
) -> tuple[U64, U64, U64, U64, U64, U64]:
    """Read the columns of `PAYLOAD` and their values for a range of components, from several pieces. Rows are sorted by
    component and document."""
    slices = [one.slice(low, high) for one in opened]
    held = [
        np.asarray(mine[int(start[0]) : int(start[0] + size.sum())] if start.size else mine[:0])
        for mine, (_, _, start, size, _) in zip(values, slices, strict=True)
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
def checksum(values: U64) -> int:
    """Return a 64-bit checksum of the values, which depends on their order."""


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
