"""Shingle sets or signatures for verification, carried from parts of documents to the tasks that compare them.

    carry     per part: the shingle sets (or the signatures) of the documents that are wanted, sorted by component
    merge     several of these, until there are few: a partition of small components reads a stretch of each
    place     per range of documents of large components: a column of the places where their values are

A piece of a large component has documents from all over the corpus. It looks its documents up in the column, so its
cost does not depend on the size of the component. The memory of a task is that of one part; values that would exceed
`IN_MEMORY` go to a scratch file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near import linking
from plinth.corpus.dedup.near.candidates import LARGE, CandidatePairs, is_large
from plinth.corpus.dedup.near.components import CHUNK_ROWS, read_members, spans
from plinth.corpus.dedup.near.index import raw_signatures
from plinth.corpus.dedup.near.linking import Payload
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.dedup.run_tree import cuts, keyed, levels
from plinth.corpus.sidecars import Column, SlotNumbers
from plinth.errors import IntegrityError
from plinth.records import Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store
from plinth_text.arrays import I64, U64
from plinth_text.compiled import compiled

#: Function that yields the values of some rows of a part in batches: an array per row, or a table if all have one size.
ValuesFn = Callable[[Store, Part, I64], Iterator[Sequence[U64] | U64]]

PAYLOADS_VERSION = "2"
#: Runs of (component or `LARGE` + document, document, start, values, checksum), and of the rows that are wanted.
PAYLOAD, NEEDED = "payload", "needed"
IN_MEMORY = 512 * 2**20
#: Columns of the places of the documents of large components.
PLACE_COLUMNS = 4
#: Values that one merging task holds: 64 MB, a few times over.
MERGE_VALUES = 8 * 2**20


@dataclass(frozen=True)
class Carried:
    """Shingle sets or signatures from several parts of documents, stored as a flat column of values and a sorted run
    with the position of each document's values in the column."""

    places: Part
    values: Part


@dataclass(frozen=True)
class Payloads:
    """Shingle sets or signatures of the documents to compare.

    Args:
        carried: at most `run_tree.MOST_RUNS` pieces.
        places: for each document of a large component, its piece, and the start, size and checksum of its values.
    """

    carried: tuple[Carried, ...]
    places: Column | None

    def in_range(self, store: Store, low: int, high: int) -> Iterator[tuple[Part, tuple[U64, ...]]]:
        """Yield the values of each piece, and the documents, starts, sizes and checksums of a range of components."""
        for one in self.carried:
            with sorted_runs.SortedRun(store, one.places, PAYLOAD) as opened:
                for _, *columns in opened.chunks(CHUNK_ROWS, low, high):
                    yield one.values, tuple(columns)

    def of(self, store: Store, documents: U64) -> Iterator[tuple[Part, tuple[U64, ...]]]:
        """Yield the same for some documents of large components, which are in ascending order."""
        if self.places is None:
            return
        piece, *columns = np.ascontiguousarray(self.places.take(store, documents).T)
        for number in np.unique(piece[columns[1] > 0]).tolist():
            mine = np.flatnonzero((piece == number) & (columns[1] > 0))
            yield self.carried[number].values, (documents[mine], *(column[mine] for column in columns))


def carry(
    ctx: Context,
    step: Step,
    read: Sequence[Part],
    values: ValuesFn,
    layout: SlotNumbers,
    found: CandidatePairs,
    needed: Sequence[Part | None] | None,
) -> Payloads:
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
        digests = (part.blob.sha256, wanted.blob.sha256 if wanted else "", keyed(members), found.large.blob.sha256)
        keys: tuple[str, ...] = (str(base), *digests)
        if wanted is not None and wanted.rows == 0:
            keys = ("nothing",)  # reads nothing, whatever the part is
        task = _Carry(part, values, members, found.large, base, wanted)
        items.append(Item(keys, task, wanted.rows if wanted else part.rows))
    made = run_items(ctx, step, _carry, items, label=f"{label} sets")
    merging = Step(name="dedup/minhash/sets", version=PAYLOADS_VERSION)

    def merged(groups: Sequence[Sequence[Carried]]) -> list[Carried]:
        items = [
            Item((keyed(p for one in some for p in (one.places, one.values)),), tuple(some), len(some))
            for some in groups
        ]
        return [Carried(*parts) for parts in run_items(ctx, merging, _merge, items, label=f"{label} sets merge")]

    carried = tuple(levels([Carried(*parts) for parts in made if parts[0].rows], merged))
    ranges = spans(layout.documents, found.components.span)
    return Payloads(carried, _placed(ctx, label, carried, ranges) if carried and found.large.rows else None)


def _placed(ctx: Context, label: str, carried: tuple[Carried, ...], ranges: Sequence[tuple[int, int]]) -> Column:
    """Return the places of the values of all documents of large components."""
    step, key = Step(name=f"{label}/places", version=PAYLOADS_VERSION), keyed(one.places for one in carried)
    items = [Item((f"{low}-{high}", key), _Place(low, high, carried), high - low) for low, high in ranges]
    made = [parts[0] for parts in run_items(ctx, step, _place, items, label=f"{label} places")]
    return sidecars.joined(ctx, f"{label} places", made, "<u8", PLACE_COLUMNS)


@dataclass(frozen=True)
class _Place:
    low: int
    high: int
    carried: tuple[Carried, ...]


def _place(store: Store, task: _Place) -> tuple[Part, ...]:
    table = np.zeros((task.high - task.low, PLACE_COLUMNS), dtype=np.uint64)
    for number, one in enumerate(task.carried):
        for _, (document, *columns) in Payloads((one,), None).in_range(store, LARGE + task.low, LARGE + task.high):
            table[document - np.uint64(task.low)] = np.stack([np.full_like(document, number), *columns], axis=1)
    return (sidecars.write(store, "places.flat", table),)


@dataclass(frozen=True)
class _Carry:
    read: Part
    values: ValuesFn
    members: tuple[Part, ...]
    large: Part
    base: int
    wanted: Part | None


def _carry(store: Store, task: _Carry) -> tuple[Part, ...]:
    rows, component = _wanted(store, task)
    numbers = rows.astype(np.uint64) + np.uint64(task.base)
    key = np.where(is_large(store, task.large, component), np.uint64(LARGE) + numbers, component)
    order = sorted_runs.stable_order(key)
    values, sizes = _flat(task.values(store, task.read, rows))
    flat, checks = np.empty(values.size, dtype=np.uint64), np.empty(rows.size, dtype=np.uint64)
    rearrange(values, (np.cumsum(sizes) - sizes)[order], sizes[order], flat)
    sizes = sizes[order]
    starts = np.cumsum(sizes) - sizes
    checksums(flat, starts, sizes, checks)
    columns = (key[order], numbers[order], starts.astype(np.uint64), sizes.astype(np.uint64), checks)
    places = sorted_runs.write(store, "places.run", PAYLOAD, [columns], 5)
    return places, sidecars.write(store, "values.flat", flat)


def _flat(batches: Iterator[Sequence[U64] | U64]) -> tuple[U64, I64]:
    """Return the values of all rows in one array, and the number of values of each row."""
    values, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for batch in batches:
        sizes.append(np.fromiter(map(len, batch), np.int64, len(batch)))
        values.append(batch.reshape(-1) if isinstance(batch, np.ndarray) else np.concatenate(batch))
    return np.concatenate(values), np.concatenate(sizes)


def _wanted(store: Store, task: _Carry) -> tuple[I64, U64]:
    """Return the rows to read from a part of documents, and the component of each row."""
    if task.wanted is not None and task.wanted.rows == 0:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    document, component = read_members(store, task.members, task.base, task.base + task.read.rows)
    rows = (document - np.uint64(task.base)).astype(np.int64)
    if task.wanted is None:
        return rows, component
    with sorted_runs.SortedRun(store, task.wanted, NEEDED) as opened:
        needed = np.unique(opened.all()[0]).astype(np.int64)  # several pieces may need the same document
    return needed, component[np.searchsorted(rows, needed)]


def weights(ctx: Context, params: MinHash, lengths: Sequence[Part], size: int) -> Column | None:
    """Return the number of documents that each document counts as, from the size of its shingle set. The result is None
    for signatures, which have one size.

    Args:
        lengths: by part of documents, the part with their `text_bytes`.
        size: bytes of a shingle set that counts as one document.
    """
    if params.verify == "signature":
        return None
    most = 4 * params.max_characters if params.max_characters else None
    unit = size / set_bytes(params)
    step = Step(name="dedup/minhash/weights", version=PAYLOADS_VERSION, params={"most": most, "unit": str(unit)})
    items = [Item((part.blob.sha256,), (part, most, unit), part.rows) for part in lengths]
    made = [parts[0] for parts in run_items(ctx, step, _weights, items, label="dedup/minhash weights")]
    return sidecars.joined(ctx, "dedup/minhash weights", made, "<u4")


def _weights(store: Store, task: tuple[Part, int | None, float]) -> tuple[Part, ...]:
    part, most, unit = task
    found = [np.empty(0, np.uint32)]
    for batch in iter_batches(store, part, ["text_bytes"]):
        read = np.minimum(batch.column("text_bytes").to_numpy(), most or np.iinfo(np.int64).max)
        found.append(np.maximum(1, read / unit).astype(np.uint32))
    return (sidecars.write(store, "weights.flat", np.concatenate(found)),)


def set_bytes(params: MinHash) -> float:
    """Return the bytes of a shingle set per byte of text: eight per character, or per word of about six characters."""
    return 8.0 if params.shingle_characters else 4 / 3


def values_of(params: MinHash) -> ValuesFn:
    """Return a function that reads the shingle sets of documents if the parameter `verify` is `text`, or else their
    signatures."""
    return partial(_values, params)


def _values(params: MinHash, store: Store, part: Part, rows: I64) -> Iterator[Sequence[U64] | U64]:
    if params.verify == "text":
        for batch in sorted_runs.iter_rows(store, part, ["text"], rows):
            yield linking.sets(batch.column("text"), params)
        return
    width = params.bands * params.rows
    for batch in sorted_runs.iter_rows(store, part, ["signature"], rows):
        signed = raw_signatures(batch.column("signature"), width)
        yield np.pad(signed, ((0, 0), (0, width % 2))).view(np.uint64)


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
    store: Store, stored: Iterator[tuple[Part, tuple[U64, ...]]], documents: U64, minima: int
) -> Iterator[Payload]:
    """Load the shingle sets or signatures of documents.

    Args:
        stored: values, and which documents have them, from `Payloads`.
        documents: [N] numbers of the documents to compare, ascending.
        minima: length of a signature, if the values are signatures.

    Raises:
        IntegrityError: values differ from those that were written.
    """
    wanted = []
    for part, (number, start, size, check) in stored if documents.size else ():
        node = np.minimum(np.searchsorted(documents, number), documents.size - 1)
        mine = np.flatnonzero(documents[node] == number)
        wanted.append((part, node[mine], start[mine], size[mine], check[mine]))
    total = sum(int(size.sum()) for _, _, _, size, _ in wanted)
    with store.staging(".scratch") as path:
        large = total * 8 > IN_MEMORY
        values: U64 = np.memmap(path, np.uint64, "w+", shape=(total,)) if large else np.empty(total, np.uint64)
        payload = Payload(np.zeros(documents.size, np.int64), np.zeros(documents.size, np.int64), values, minima)
        at = 0
        for part, node, first, size, check in wanted:
            sizes = size.astype(np.int64)
            end = at + int(sizes.sum())
            rearrange(sidecars.open_flat(store, part, "<u8"), first.astype(np.int64), sizes, values[at:end])
            payload.start[node] = at + np.cumsum(sizes) - sizes
            payload.size[node] = sizes
            if is_corrupted(values, payload.start[node], payload.size[node], check):
                raise IntegrityError(
                    f"{part.name} ({part.blob.md5}) has changed since it was written",
                    found="a different checksum",
                    expected=f"SHA-256 {part.blob.sha256}",
                    remedy="delete the blob from the store and run the same command again",
                )
            at = end
        yield payload


@compiled
def is_corrupted(values: U64, start: I64, size: I64, check: U64) -> bool:
    """Return True if the checksum of any slice of values differs from its expected checksum in `check`."""
