"""Pieces of candidates that one task compares, and the crowds of large components, divided into such pieces.

    weigh    per group that is larger than a piece: its band keys, and the number and weight of the documents of each
    order    per band key of these and a few sorted runs: the documents, sorted by their places in the crowd's order
    read     a piece of a crowd: a range of places, the next documents, and the document with the smallest id

Each document of a crowd is paired with the next `NEIGHBOURS` in an order keyed by id and band, and with the smallest id
(`linking`). A range of places with at least as many documents after it has all pairs of its documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.near import linking, sample
from plinth.corpus.dedup.near.candidates import LARGE, ROUTED, CandidatePairs, read_routed, weights_of
from plinth.corpus.dedup.near.components import CHUNK_ROWS
from plinth.corpus.dedup.near.linking import ALL_PAIRS, NEIGHBOURS
from plinth.corpus.dedup.run_tree import keyed, narrow
from plinth.corpus.sidecars import Column
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth_text.arrays import U64
from plinth_text.compiled import compiled

VERSION = "2"
#: Runs of (number of a crowd and `PLACE_BITS` of the place, document).
CROWD, PLACE_BITS = "crowd", 36
#: Groups that weigh more than this share of a piece are divided if they are adjacent to a crowd.
SHARE = 16
#: Documents of a crowd that a task sorts into its order, unless there are too few sorted runs.
ORDER_ROWS = 4_000_000


@dataclass(frozen=True)
class CandidatePiece:
    """Rows that one task compares: those with a key in [low, high) in `runs`.

    Args:
        runs: sorted runs of `ROUTED`, or of `CROWD` if the piece is part of a crowd.
        without: band keys to leave out.
        crowd: band key of the crowd, the document with the smallest id in it, and the end of its keys in `runs`.
    """

    runs: tuple[Part, ...]
    low: int
    high: int
    without: tuple[int, ...] = ()
    crowd: tuple[int, int, int] | None = None

    @property
    def name(self) -> str:
        """Text that identifies the rows in `runs`."""
        return "-".join(map(str, (self.low, self.high, *self.without, *(self.crowd or ()))))

    @property
    def is_partial(self) -> bool:
        """True if the piece is part of a large component."""
        return self.crowd is not None or self.low >= LARGE

    @property
    def all_pairs(self) -> int:
        """Number of documents of a group up to which all pairs are compared."""
        return 0 if self.crowd else ALL_PAIRS

    def read(self, store: Store) -> tuple[U64, U64]:
        """Return band keys and documents, sorted by key and document."""
        if self.crowd:
            return self._read_crowd(store, *self.crowd)
        key, at = read_routed(store, self.runs, self.low, self.high)
        if not self.without:
            return key, at
        kept = ~np.isin(key, np.array(self.without, dtype=np.uint64))
        return key[kept], at[kept]

    def _read_crowd(self, store: Store, key: int, least: int, end: int) -> tuple[U64, U64]:
        found = [np.array([least], dtype=np.uint64), *self._documents(store, self.low, self.high)]
        ahead, high, width = 0, self.high, 1 + (self.high - self.low >> 8)
        while ahead < NEIGHBOURS and high < end:
            low, high, width = high, min(end, high + width), 2 * width
            more = list(self._documents(store, low, high))
            ahead += sum(one.size for one in more)
            found += more
        at = np.unique(np.concatenate(found))
        return np.full(at.size, key, dtype=np.uint64), at

    def _documents(self, store: Store, low: int, high: int) -> Iterator[U64]:
        for part in self.runs:  # one after the other: the footers of all are more than a task should hold
            with sorted_runs.SortedRun(store, part, CROWD) as opened:
                yield opened.slice(low, high)[1]


class Crowd(NamedTuple):
    """Group that is divided: its key in `ROUTED`, its band key, and the number and weight of its documents."""

    code: int
    band: int
    rows: int
    weight: int


def pieces(
    ctx: Context, asset: str, found: CandidatePairs, ranks: Column, below: int
) -> tuple[list[CandidatePiece], list[Part], str]:
    """Return all pieces of the candidates, rows of crowds from which the accuracy of removal is measured, and a digest
    of the rows of all pieces.

    Args:
        asset: name of the asset that the stage writes.
        ranks: ids and ranks of documents, from `clusters.build`.
        below: hash below which a document is drawn to measure accuracy (`sample.limit`).
    """
    made = [CandidatePiece(found.routed, low, high) for low, high in (*found.partitions, *found.pieces)]
    most, crowds = max(ALL_PAIRS, found.piece_rows // SHARE), list[Crowd]()
    step, weights = Step(name=f"{asset}/weigh", version=VERSION, params={"most": most}), found.weights
    key = keyed((*found.routed, *([weights.listing] if weights else ())))
    items = [Item((str(code), key), _Weigh(found.routed, code, most, weights)) for code in found.crowded]
    for code, (part,) in zip(found.crowded, run_items(ctx, step, _weigh, items, label=f"{asset} weigh"), strict=True):
        weighed = sidecars.open_flat(ctx.store, part, "<u8", 3).tolist()
        crowds += [Crowd(code, *one) for one in weighed]
        if part.stats["others"]:
            made.append(CandidatePiece(found.routed, code, code + 1, tuple(band for band, *_ in weighed)))
    runs, drawn, least = _ordered(ctx, asset, found, crowds, ranks, below)
    for number, (crowd, smallest) in enumerate(zip(crowds, least, strict=True)):
        count, end = min(crowd.rows, -(-crowd.weight // found.piece_rows)), number + 1 << PLACE_BITS
        bounds = [(number << PLACE_BITS) + (i << PLACE_BITS) // count for i in range(count)]
        made += [
            CandidatePiece(runs, low, high, crowd=(crowd.band, smallest, end))
            for low, high in zip(bounds, [*bounds[1:], end], strict=True)
        ]
    return made, drawn, keyed((*found.routed, *runs))


@dataclass(frozen=True)
class _Weigh:
    routed: tuple[Part, ...]
    code: int
    most: int
    weights: Column | None


def _weigh(store: Store, task: _Weigh) -> tuple[Part, ...]:
    """Write the band keys that weigh more than `most` among the rows with one key in `ROUTED`, with their numbers of
    rows and their weights, and count the rows of the others. A group is never divided if all its pairs are compared."""
    band, rows, weights = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
    for part in task.routed:
        with sorted_runs.SortedRun(store, part, ROUTED) as opened:
            for _, key, at in opened.chunks(CHUNK_ROWS, task.code, task.code + 1):
                order = np.argsort(at)
                weight = weights_of(store, task.weights, at[order])
                band, place = np.unique(np.concatenate([band, key[order]]), return_inverse=True)
                rows = np.bincount(place, np.append(rows, np.ones(at.size)), band.size).astype(np.int64)
                weights = np.bincount(place, np.append(weights, weight), band.size).astype(np.int64)
    heavy = (weights > task.most) & (rows > ALL_PAIRS)
    table = np.stack([band[heavy], rows[heavy].astype(np.uint64), weights[heavy].astype(np.uint64)], axis=1)
    part = sidecars.write(store, "weights.flat", table)
    return (part.model_copy(update={"stats": {"others": int(rows[~heavy].sum())}}),)


def _ordered(
    ctx: Context, asset: str, found: CandidatePairs, crowds: Sequence[Crowd], ranks: Column, below: int
) -> tuple[tuple[Part, ...], list[Part], list[int]]:
    """Return the documents of all crowds as a few sorted runs of `CROWD`, rows from which accuracy is measured, and the
    document with the smallest id of each crowd."""
    step = Step(name=f"{asset}/crowds", version=VERSION, params={"below": str(below)})
    tasks = list[_Order]()
    for number, crowd in enumerate(crowds):
        count = min(len(found.routed), -(-crowd.rows // ORDER_ROWS))
        tasks += [_Order(found.routed[i::count], crowd.code, crowd.band, number, ranks, below) for i in range(count)]
    items = [Item((f"{task.code}-{task.band}-{task.number}", keyed(task.routed), ranks.key), task) for task in tasks]
    made = run_items(ctx, step, _order, items, label=f"{asset} crowds")
    runs = narrow(ctx, CROWD, 2, [part for parts in made for part in parts[2:]], f"{asset} crowds")
    least: dict[int, list[int]] = {}
    for task, parts in zip(tasks, made, strict=True):
        for ids in sidecars.open_flat(ctx.store, parts[0], "<u8", 3).tolist():
            least[task.number] = min(ids, least.get(task.number, ids))
    return runs, [parts[1] for parts in made if parts[1].rows], [least[number][2] for number in range(len(crowds))]


@dataclass(frozen=True)
class _Order:
    routed: tuple[Part, ...]
    code: int
    band: int
    number: int
    ranks: Column
    below: int


def _order(store: Store, task: _Order) -> tuple[Part, ...]:
    least, runs = np.empty((0, 3), np.uint64), list[Part]()
    near, hashes = np.empty(0, np.uint64), np.empty(0, np.uint64)
    for at in _documents(store, task):
        high, low, _ = np.ascontiguousarray(task.ranks.take(store, at).T)
        ids = np.concatenate([least, np.stack([high, low, at], axis=1)])
        least = ids[np.lexsort(ids.T[::-1])[:1]]
        if task.below:
            near, hashes = np.concatenate([near, at]), np.concatenate([hashes, linking.ends(high, low)])
            kept = sample.nearest(hashes, task.below)
            near, hashes = near[kept], hashes[kept]
        place = np.empty(at.size, dtype=np.uint64)
        crowd_places(low, task.band, place)
        place = np.uint64(task.number << PLACE_BITS) | place >> np.uint64(64 - PLACE_BITS)
        order = sorted_runs.in_order(place, at)
        runs.append(sorted_runs.write(store, "crowd.run", CROWD, [(place[order], at[order])], 2))
    key = np.full(near.size, task.band, dtype=np.uint64)
    return sidecars.write(store, "least.flat", least), sample.write_near(store, key, near), *runs


def _documents(store: Store, task: _Order) -> Iterator[U64]:
    """Yield the documents of a crowd in some sorted runs, some of them at a time, in ascending order."""
    for part in task.routed:
        with sorted_runs.SortedRun(store, part, ROUTED) as opened:
            for _, key, at in opened.chunks(CHUNK_ROWS, task.code, task.code + 1):
                if (mine := at[key == np.uint64(task.band)]).size:
                    yield np.sort(mine)


@compiled
def crowd_places(low: U64, key: int, out: U64) -> None:
    """Write the places of documents in the order of the crowd that shares a band key to `out`. `low` has the lower
    halves of their ids."""
