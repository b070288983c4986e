"""Tree of sorted runs with one leaf per part of documents. If there are too many runs, they are merged. Therefore a
reduce task opens only a few files, even if the corpus has many parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.sorted_runs import END, ranges
from plinth.corpus.sidecars import Column, SlotNumbers
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth_text.arrays import U64, Bools

# Many runs to a bounded number, so that no reduce task opens a file per part of the corpus.
#
# A global step has as many runs as there are parts or ranges, and as many reduce tasks. If every task opened every run,
# the opens would grow with the square of the corpus. Runs are merged, `FAN` at a time, until `MOST_RUNS` are left:
# an open per run and level, and `MOST_RUNS` per reduce task.

T = TypeVar("T")
LEVEL_VERSION = "1"

#: Maximum number of runs that a reader opens, and number of runs per merge.
MOST_RUNS, LEVEL_FAN = 64, 32
#: Rows that one merging task holds, that a task sorts in memory at most, and that it reads at a time of a single key.
MERGE_ROWS, HEAVY_ROWS, CHUNK_ROWS = 2_000_000, 8_000_000, 2**20


def keyed(parts: Iterable[Part]) -> str:
    """Return one digest over many parts, for tasks that depend on all of them. If every task's key listed the digest of
    every part, the total size of the keys would grow with the square of the number of parts."""
    return fingerprint.digest([part.blob.sha256 for part in parts])


def narrow(ctx: Context, kind: str, columns: int, runs: Sequence[Part], label: str) -> tuple[Part, ...]:
    """Merge sorted runs until at most `MOST_RUNS` are left, and return the merged runs.

    Args:
        kind, columns: kind of the sorted runs, and their number of columns.
        label: name shown in the progress display.
    """
    step = Step(name="dedup/narrow", version=LEVEL_VERSION, params={"kind": kind})

    def merged(groups: Sequence[Sequence[Part]]) -> list[Part]:
        items = [
            Item(tuple(p.blob.sha256 for p in some), _LevelMerge(tuple(some), columns), sum(p.rows for p in some))
            for some in groups
        ]
        return [made[0] for made in run_items(ctx, step, _merge_level, items, label=f"{label} merge")]

    return tuple(levels(runs, merged))


def levels(runs: Sequence[T], merged: Callable[[Sequence[Sequence[T]]], list[T]]) -> list[T]:
    """Merge adjacent sorted runs, level by level, until at most `MOST_RUNS` are left.

    Args:
        merged: function that merges each group of adjacent runs.
    """
    found = list(runs)
    while len(found) > MOST_RUNS:
        found = merged([found[at : at + LEVEL_FAN] for at in range(0, len(found), LEVEL_FAN)])
    return found


def sorted_here(store: Store, runs: Sequence[Part], columns: int) -> list[Part]:
    """Merge sorted runs within a task until at most `MOST_RUNS` are left."""
    return levels(runs, lambda groups: [_merge_level(store, _LevelMerge(tuple(some), columns))[0] for some in groups])


@dataclass(frozen=True)
class _LevelMerge:
    runs: tuple[Part, ...]
    columns: int


def _merge_level(store: Store, task: _LevelMerge) -> tuple[Part, ...]:
    with ExitStack() as stack:
        opened = [stack.enter_context(sorted_runs.SortedRun(store, part)) for part in task.runs]
        merged = in_order(opened, MERGE_ROWS)
        return (sorted_runs.write(store, "merged.run", opened[0].kind, merged, task.columns, opened[0].identity),)


def in_order(
    opened: Sequence[sorted_runs.SortedRun],
    rows: int,
    moved: Callable[[tuple[U64, ...], int], tuple[U64, ...]] = lambda columns, number: columns,
) -> Iterator[tuple[U64, ...]]:
    """Merge sorted runs, and yield their rows in sorted order, about `rows` at a time. The rows of a key that has more
    than four times as many are yielded run by run.

    Args:
        moved: function that changes the columns of a run with a given number.
    """
    for low, high, heavy in pieces([one.first for one in opened], 4 * rows):
        if heavy:
            for number, one in enumerate(opened):
                yield from (moved(columns, number) for columns in one.chunks(CHUNK_ROWS, low, high))
            continue
        slices = [moved(one.slice(low, high), number) for number, one in enumerate(opened)]
        table = [np.concatenate(column) for column in zip(*slices, strict=True)]
        order = sorted_runs.in_order(*table)
        yield tuple(column[order] for column in table)


def cuts(first: Sequence[U64], rows: int, low: int = 0, high: int = END) -> list[tuple[int, int]]:
    """Return half-open key ranges with about `rows` rows each, for any distribution of keys. Rows with the same key are
    always in the same range.

    Args:
        first: by sorted run, the first key of every block.
    """
    firsts = np.sort(np.concatenate([np.empty(0, np.uint64), *first]))
    every = max(1, rows // sorted_runs.BLOCK_ROWS)
    inner = [cut for cut in np.unique(firsts[every::every]).tolist() if low < cut < high]
    return [(begin, end) for begin, end in pairwise([low, *inner, high]) if begin < end]


def pieces(first: Sequence[U64], heavy_rows: int, low: int = 0, high: int = END) -> Iterator[tuple[int, int, bool]]:
    """Divide a range of keys like `cuts`, into ranges of about a quarter of `heavy_rows` rows, and single keys with
    more than `heavy_rows` rows. The last value is True for these."""
    for begin, end in cuts(first, heavy_rows // 4, low, high):
        if most_rows(first, begin, end) > heavy_rows:
            yield begin, begin + 1, True
            yield begin + 1, end, False
        else:
            yield begin, end, False


def most_rows(first: Sequence[U64], low: int, high: int) -> int:
    """Return an upper limit to the number of rows with low <= key < high."""
    ends = np.array([low, min(high, END - 1)], dtype=np.uint64)
    blocks = (1 + int(np.diff(np.searchsorted(keys, ends))[0]) for keys in first if keys.size)
    return sorted_runs.BLOCK_ROWS * sum(blocks)


# A tree of runs: one leaf per part of documents, merged where there are more than a reader should open.
#
# Where branches begin and end follows from the leaves' digests, not from their positions, so a new snapshot leaves
# the branches of the old ones as they are: it adds leaves and merges their neighbors (a log-structured merge tree,
# O'Neil et al. 1996, with boundaries by content as in rsync). The rows of a reader do not depend on the
# shape of the tree.
#
# An address in a branch is (position of the slot in the branch) << 32 | row, so a run is independent of the other
# slots of the corpus and stays valid when they change.

VERSION = "1"

#: A branch has about `FAN` children, at most `WIDEST`.
FAN, WIDEST = 8, 32


@dataclass(frozen=True)
class Branch:
    """Sorted run over several parts of documents. `slots` are the numbers of these parts. An address in the run refers
    to a part by its position in `slots`."""

    part: Part
    slots: tuple[int, ...]


def tree(ctx: Context, kind: str, columns: int, leaves: Sequence[Part]) -> list[Branch]:
    """Return at most `MOST_RUNS` sorted runs over all leaves. More runs are returned only if runs cannot be merged."""
    branches = [Branch(leaf, (number,)) for number, leaf in enumerate(leaves)]
    while len(branches) > MOST_RUNS:
        groups = list(_groups(branches))
        merging = [group for group in groups if len(group) > 1]
        items = [
            Item(
                tuple(f"{branch.part.blob.sha256}:{len(branch.slots)}" for branch in group),
                _Merge(tuple(branch.part for branch in group), tuple(len(b.slots) for b in group), kind, columns),
                sum(branch.part.rows for branch in group),
            )
            for group in merging
        ]
        step = Step(name="dedup/merge", version=VERSION, params={"kind": kind})
        made = iter(run_items(ctx, step, _merge, items, label=f"dedup {kind} merge"))
        branches = [
            group[0]
            if len(group) == 1
            else Branch(next(made)[0], tuple(number for branch in group for number in branch.slots))
            for group in groups
        ]
        if not merging:
            break
    return branches


def _groups(branches: Sequence[Branch]) -> Iterator[list[Branch]]:
    """Yield groups of sorted runs to merge. Whether a group ends after a run depends on the run's digest; on average, a
    group has `FAN` runs."""
    group: list[Branch] = []
    for branch in branches:
        group.append(branch)
        if (int(branch.part.blob.sha256[:8], 16) % FAN == 0 and len(group) > 1) or len(group) == WIDEST:
            yield group
            group = []
    if group:
        yield group


@dataclass(frozen=True)
class _Merge:
    parts: tuple[Part, ...]
    sizes: tuple[int, ...]  # how many slots each has
    kind: str
    columns: int


def _merge(store: Store, task: _Merge) -> tuple[Part, ...]:
    with ExitStack() as stack:
        opened = [stack.enter_context(sorted_runs.SortedRun(store, part, task.kind)) for part in task.parts]
        numbers = (0, *accumulate(task.sizes))

        def moved(columns: tuple[U64, ...], number: int) -> tuple[U64, ...]:
            key, at, *rest = columns
            return key, at + np.uint64(numbers[number] << 32), *rest

        merged = in_order(opened, MERGE_ROWS, moved)
        return (sorted_runs.write(store, "merged.run", task.kind, merged, task.columns, opened[0].identity),)


@dataclass(frozen=True)
class RangeReader:
    """Reader of key ranges from the sorted runs of all parts of documents. The reader is pickled for tasks, and its
    size does not grow with the number of parts.

    Args:
        branches: for each branch, its sorted run, and a flat column with the first document number of each part.
    """

    kind: str
    branches: tuple[tuple[Part, Part], ...]
    identity: Mapping[str, Any] | None = None

    @classmethod
    def over(
        cls,
        store: Store,
        kind: str,
        branches: Sequence[Branch],
        layout: SlotNumbers,
        identity: Mapping[str, Any] | None = None,
    ) -> RangeReader:
        """Return a reader for the branches of a tree."""
        bases = np.array(layout.bases, dtype=np.uint64)
        columns = (sidecars.write(store, "bases.flat", bases[list(branch.slots)]) for branch in branches)
        return cls(kind, tuple(zip((branch.part for branch in branches), columns, strict=True)), identity)

    @property
    def key(self) -> str:
        """Digest of the runs and columns that the reader reads."""
        return keyed(part for branch in self.branches for part in branch)

    @property
    def rows(self) -> int:
        """Number of rows in all branches."""
        return sum(run.rows for run, _ in self.branches)

    def read(self, store: Store, low: int, high: int, mask: Column | None = None) -> list[U64]:
        """Return the key, the document number and the other columns of all rows with low <= key < high. If `mask` is
        set, only documents with a nonzero mask value are included."""
        found = []
        for run, first in self.branches:
            with sorted_runs.SortedRun(store, run, self.kind, self.identity) as opened:
                found.append(_addressed(store, first, mask, opened.slice(low, high)))
        return [np.concatenate(column) for column in zip(*found, strict=True)]

    def chunks(self, store: Store, low: int, high: int, mask: Column | None = None) -> Iterator[tuple[U64, ...]]:
        """Yield the same rows as `read` in any order, about `CHUNK_ROWS` at a time."""
        for run, first in self.branches:
            with sorted_runs.SortedRun(store, run, self.kind, self.identity) as opened:
                for columns in opened.chunks(CHUNK_ROWS, low, high):
                    yield _addressed(store, first, mask, columns)

    def pieces(self, store: Store, low: int, high: int, heavy_rows: int) -> Iterator[tuple[int, int, bool]]:
        """Divide a range of keys into ranges that a task can hold, and single keys with more than `heavy_rows` rows.
        The last value is True for these: read them in chunks."""
        first = []
        for run, _ in self.branches:  # one after the other: the footers of all are more than a task should hold
            with sorted_runs.SortedRun(store, run, self.kind, self.identity) as opened:
                first.append(opened.first_keys(low, high))
        if most_rows(first, low, high) <= heavy_rows:
            return iter([(low, high, False)])
        return pieces(first, heavy_rows, low, high)


def _addressed(store: Store, first: Part, mask: Column | None, columns: tuple[U64, ...]) -> tuple[U64, ...]:
    """Replace addresses in a branch by document numbers, and leave out the documents that the mask does not select."""
    key, at, *rest = columns
    bases = np.asarray(sidecars.open_flat(store, first, "<u8"))
    number = bases[at >> np.uint64(32)] + (at & np.uint64(0xFFFFFFFF))
    columns = (key, number, *rest)
    if mask is None or not number.size:
        return columns
    kept = _masked(store, mask, number)
    return columns if kept.all() else tuple(column[kept] for column in columns)


def _masked(store: Store, mask: Column, number: U64) -> Bools:
    """Return the mask values of some documents, in any order."""
    least = number.min()
    span = int(number.max() - least) + 1
    if span <= number.size:
        values = mask.take(store, least + np.arange(span, dtype=np.uint64))
        of_each: Bools = values[number - least] != 0
        return of_each
    order, kept = np.argsort(number), np.empty(number.size, dtype=np.bool_)
    kept[order] = mask.take(store, number[order])  # a branch may span half of the corpus
    return kept


@dataclass(frozen=True)
class Range:
    """Range of keys that one reduce task reads. A range can be pickled.

    Args:
        mask: column of bytes that selects documents; if None, all documents are included.
        given: other columns that the task reads.
    """

    reader: RangeReader
    low: int
    high: int
    mask: Column | None = None
    given: tuple[Column, ...] = ()

    def read(self, store: Store) -> tuple[Bools, list[U64]]:
        """Return a mask of the rows in which a new key begins, and the columns of the range. Rows are sorted by key,
        document number and the other columns.

        If there are three columns or more, the third column is the other half of the key.
        """
        columns = self.reader.read(store, self.low, self.high, self.mask)
        key, number, *rest = columns
        order = sorted_runs.in_order(key, *rest[:1], number, *rest[1:])
        columns = [column[order] for column in columns]
        first = np.ones(order.size, dtype=np.bool_)
        first[1:] = np.any([column[1:] != column[:-1] for column in (columns[0], *columns[2:3])], axis=0)
        return first, columns

    def pieces(self, store: Store, heavy_rows: int | None = None) -> Iterator[tuple[Range, bool]]:
        """Yield ranges that together have the same rows, and True if a range is a single key with more than
        `heavy_rows` rows, by default `HEAVY_ROWS`, too many for `read`."""
        for low, high, heavy in self.reader.pieces(store, self.low, self.high, heavy_rows or HEAVY_ROWS):
            yield replace(self, low=low, high=high), heavy

    def chunks(self, store: Store) -> Iterator[tuple[U64, ...]]:
        """Yield the columns of the range in any order, a bounded number of rows at a time."""
        return self.reader.chunks(store, self.low, self.high, self.mask)


def reduce(
    ctx: Context,
    step: Step,
    fn: Callable[[Store, Range], tuple[Part, ...]],
    reader: RangeReader,
    range_rows: int,
    label: str,
    mask: Column | None = None,
    given: tuple[Column, ...] = (),
) -> list[Part]:
    """Run a step on each range of keys, with about `range_rows` rows per range unless a key has more, and return all
    parts. Keys must be uniformly distributed."""
    read, runs = [one.key for one in ((mask, *given) if mask else given)], reader.key
    items = [
        Item(
            (f"{low}-{high}", *read, runs),
            Range(reader, low, high, mask, given),
            reader.rows * (high - low) // END,
        )
        for low, high in (ranges(reader.rows, range_rows) if reader.branches else ())
    ]
    return [part for made in run_items(ctx, step, fn, items, label=label) for part in made]
