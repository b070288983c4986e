"""Many runs to a bounded number, so that no reduce task opens a file per part of the corpus.

A global step has as many runs as there are parts or ranges, and as many reduce tasks. If every task opened every run,
the opens would grow with the square of the corpus. Runs are merged, `FAN` at a time, until `MOST_RUNS` are left:
an open per run and level, and `MOST_RUNS` per reduce task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup import sorted_runs
from plinth.records import Part, Step
from plinth.storage.store import Store

U64 = sorted_runs.U64
T = TypeVar("T")
VERSION = "1"

#: So many runs a reader opens at most; above that they merge, so many at a time.
MOST_RUNS, FAN = 64, 32
#: Rows that one merging task holds.
MERGE_ROWS = 2_000_000


def keyed(parts: Iterable[Part]) -> str:
    """One digest for many parts, for tasks that depend on all: a key per task and part would grow with the square."""
    return fingerprint.digest([part.blob.sha256 for part in parts])


def narrow(ctx: Context, kind: str, columns: int, runs: Sequence[Part], label: str) -> tuple[Part, ...]:
    """At most `MOST_RUNS` runs with the rows of all, each in order of its columns.

    Args:
        kind, columns: of the runs.
        label: of the progress.
    """
    step = Step(name="dedup/narrow", version=VERSION, params={"kind": kind})

    def merged(groups: Sequence[Sequence[Part]]) -> list[Part]:
        items = [
            Item(tuple(p.blob.sha256 for p in some), _Merge(tuple(some), columns), sum(p.rows for p in some))
            for some in groups
        ]
        return [made[0] for made in run_items(ctx, step, _merge, items, label=f"{label} merge")]

    return tuple(levels(runs, merged))


def levels(runs: Sequence[T], merged: Callable[[Sequence[Sequence[T]]], list[T]]) -> list[T]:
    """Merge neighbours, level by level, until `MOST_RUNS` are left.

    Args:
        merged: one for each group of neighbours.
    """
    found = list(runs)
    while len(found) > MOST_RUNS:
        found = merged([found[at : at + FAN] for at in range(0, len(found), FAN)])
    return found


@dataclass(frozen=True)
class _Merge:
    runs: tuple[Part, ...]
    columns: int


def _merge(store: Store, task: _Merge) -> tuple[Part, ...]:
    with ExitStack() as stack:
        opened = [stack.enter_context(sorted_runs.SortedRun(store, part)) for part in task.runs]
        merged = in_order(opened, MERGE_ROWS)
        return (sorted_runs.write(store, "merged.run", opened[0].kind, merged, task.columns, opened[0].identity),)


def in_order(opened: Sequence[sorted_runs.SortedRun], rows: int) -> Iterator[tuple[U64, ...]]:
    """The rows of all runs in order of their columns, about so many at a time."""
    for low, high in cuts(opened, rows):
        slices = [one.slice(low, high) for one in opened]
        table = [np.concatenate(column) for column in zip(*slices, strict=True)]
        order = sorted_runs.in_order(*table)
        yield tuple(column[order] for column in table)


def cuts(opened: Sequence[sorted_runs.SortedRun], rows: int) -> list[tuple[int, int]]:
    """Ranges of keys, half open, with about so many rows each, whatever keys there are; one key is never cut."""
    firsts = np.sort(np.concatenate([np.empty(0, np.uint64), *(one.first for one in opened)]))
    every = max(1, rows // sorted_runs.BLOCK_ROWS)
    inner = np.unique(firsts[every::every]).tolist()
    return [(low, high) for low, high in pairwise([0, *inner, sorted_runs.END]) if low < high]
