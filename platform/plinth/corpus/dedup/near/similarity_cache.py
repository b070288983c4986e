"""Similarity cache: similarities of pairs of documents, computed once and valid for ever.

An id names its text, so what two ids' texts have in common never changes. A later run over more documents looks
a pair up before it reads a text again; losing the cache costs time and nothing else. It is kept in the step cache
under the definition of a similarity (shingles and the like), is only ever added to, and is checked against its
SHA-256 before it is used.

A pair is 64 bits of hash over both ids; 32 further bits stand beside the similarity (FP32), 96 in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.run_tree import keyed, narrow
from plinth.corpus.dedup.sorted_runs import ranges
from plinth.errors import StorageError
from plinth.records import Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.store import Store
from plinth_text.arrays import U64
from plinth_text.compiled import compiled

VERSION = "1"
#: Runs of (pair, check << 32 | bits of the similarity), as verification leaves them.
SIMILARITIES = "facts"
MERGE_ROWS = 4_000_000


@dataclass(frozen=True)
class KnownSimilarities:
    """All cached similarities: two flat columns of uint64, sorted by the first."""

    pairs: Part
    values: Part

    @property
    def keys(self) -> tuple[str, str]:
        """Digests that identify them."""
        return self.pairs.blob.sha256, self.values.blob.sha256

    def open(self, store: Store) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Both columns, mapped into memory."""
        pairs, values = (sidecars.open_flat(store, part, "<u8") for part in (self.pairs, self.values))
        return pairs, values


def recall(ctx: Context, definition: Mapping[str, Any]) -> KnownSimilarities | None:
    """The similarities cached under a definition, or None when there are none or the cache is damaged."""
    parts = ctx.cache.get(_key(definition))
    if not parts or parts[0].rows == 0:
        return None
    try:
        for part in parts:
            ctx.store.verify(part.blob)
    except StorageError:
        return None
    return KnownSimilarities(*parts)


def remember(
    ctx: Context, definition: Mapping[str, Any], known: KnownSimilarities | None, fresh: Sequence[Part]
) -> None:
    """Add the similarities that verification computed."""
    if not any(part.rows for part in fresh):
        return
    few = narrow(ctx, SIMILARITIES, 2, fresh, "dedup/minhash facts")
    item = Item((*(known.keys if known else ()), keyed(few)), _Merge(known, few), sum(part.rows for part in few))
    step = Step(name="dedup/facts/merge", version=VERSION)
    ctx.cache.put(_key(definition), run_items(ctx, step, _merge, [item], label="dedup/minhash facts")[0])


def _key(definition: Mapping[str, Any]) -> str:
    return Step(name="dedup/facts", version=VERSION, params=definition).key(())


@dataclass(frozen=True)
class _Merge:
    known: KnownSimilarities | None
    fresh: tuple[Part, ...]


def _merge(store: Store, task: _Merge) -> tuple[Part, ...]:
    old = task.known.open(store) if task.known else (np.empty(0, np.uint64), np.empty(0, np.uint64))
    rows = old[0].size + sum(part.rows for part in task.fresh)
    with ExitStack() as stack:
        opened = [stack.enter_context(sorted_runs.SortedRun(store, part, SIMILARITIES)) for part in task.fresh]
        paths = [stack.enter_context(store.staging(".flat")) for _ in old]
        with ExitStack() as files:
            targets = [files.enter_context(path.open("wb")) for path in paths]
            for low, high in ranges(rows, MERGE_ROWS):
                begin, end = np.searchsorted(old[0], np.array([low, min(high, 2**64 - 1)], dtype=np.uint64))
                end = old[0].size if high > 2**64 - 1 else end
                slices = [tuple(column[begin:end] for column in old), *(one.slice(low, high) for one in opened)]
                table = [np.concatenate(column) for column in zip(*slices, strict=True)]
                order = sorted_runs.in_order(table[0], table[1])
                for path, target, column in zip(paths, targets, table, strict=True):
                    with named_failures(path):
                        column[order].tofile(target)
        names = ("pairs.flat", "values.flat")
        return tuple(Part(name=n, blob=store.put_file(p), rows=rows) for n, p in zip(names, paths, strict=True))


def ends(high: U64, low: U64) -> U64:
    """Each document's share of the hash of its pairs, from the halves of its id."""
    out = np.empty(high.size, dtype=np.uint64)
    pair_ends(high, low, out)
    return out


@compiled
def pair_ends(high: U64, low: U64, out: U64) -> None:
    """As `ends`, into `out`."""
