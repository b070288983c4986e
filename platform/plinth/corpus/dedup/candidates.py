"""Candidate pairs: documents that share the key of a band.

    bands   per part: the band keys of documents that exact deduplication left, sorted
    pairs   per range of keys: pairs of documents under one key, in both directions
    own     per part: its documents' partners, once each

Under one key every document is paired with every other while they are at most `ALL_PAIRS`. A larger crowd
(boilerplate, templates) would cost its square: there each document is paired with the next `NEIGHBOURS` in an
order keyed by id and band, and with the smallest id. The orders of different bands are independent, so the
true clusters among the crowd stay connected. Pairs are only nominated here; `verify` decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from plinth.compute.stage import Item, run_items
from plinth.context import Context
from plinth.corpus.dedup import shuffle
from plinth.corpus.sidecars import Slot
from plinth.recipe.dedup import MinHash
from plinth.records import Part, Step
from plinth.storage.parts import iter_aligned
from plinth.storage.store import Store
from plinth.text.minhash import band_keys
from plinth.text.ngrams import mix

U64 = shuffle.U64
I64 = npt.NDArray[np.int64]

ALL_PAIRS = 32
NEIGHBOURS = 8

_BANDS = pa.schema([("key", pa.uint64()), ("id", pa.binary(16)), ("row", pa.uint32())])
_PAIRS = pa.schema([("at", pa.uint64()), ("other", pa.uint64())])


@dataclass(frozen=True)
class Own:
    """The candidates of one slot: its rows that have partners, and the pairs (at < other) with all of them."""

    rows: Part
    pairs: Part

    @property
    def others(self) -> tuple[int, ...]:
        """Numbers of the slots where the partners are, in order."""
        return tuple(self.pairs.stats["slots"])


def find(ctx: Context, params: MinHash, places: tuple[Slot, ...], version: str, range_rows: int) -> list[Own]:
    """The candidates of every slot.

    Args:
        places: slots with sides `signatures` and `exact`.
        range_rows: band keys one reduce task holds.
    """
    shape = {"bands": params.bands, "rows": params.rows}
    step = Step(name="dedup/minhash/bands", version=version, params=shape)
    items = [
        Item(
            tuple(part.blob.sha256 for part in (slot.documents, slot.sides["signatures"], slot.sides["exact"])),
            _Bands(slot, params.bands, params.rows),
            slot.documents.rows,
        )
        for slot in places
    ]
    ordered = tuple(parts[0] for parts in run_items(ctx, step, _bands, items, label="dedup/minhash bands"))
    keys = tuple(part.blob.sha256 for part in ordered)
    spans = shuffle.ranges(sum(part.rows for part in ordered), range_rows)
    step = Step(name="dedup/minhash/pairs", version=version)
    items = [Item((f"{low}-{high}", *keys), _Range(ordered, low, high)) for low, high in spans]
    pairs = tuple(parts[0] for parts in run_items(ctx, step, _pairs, items, label="dedup/minhash pairs"))
    step = Step(name="dedup/minhash/own", version=version)
    found = tuple(part.blob.sha256 for part in pairs)
    items = [Item((str(slot.number), *found), _Mine(slot.number, pairs)) for slot in places]
    return [Own(*parts) for parts in run_items(ctx, step, _own, items, label="dedup/minhash candidates")]


@dataclass(frozen=True)
class _Bands:
    slot: Slot
    bands: int
    rows: int


def _bands(store: Store, task: _Bands) -> tuple[Part, ...]:
    table = pa.concat_tables([_BANDS.empty_table(), *_band_tables(store, task)])
    return (shuffle.write_sorted(store, task.slot.documents.name, table, ["key", "id", "row"]),)


def _band_tables(store: Store, task: _Bands) -> Iterator[pa.Table]:
    first, width = 0, task.bands * task.rows
    sides = task.slot.sides
    sources = ((task.slot.documents, ["id"]), (sides["signatures"], ["signature"]), (sides["exact"], ["survivor"]))
    for ids, signed, exact in iter_aligned(store, *sources):
        column = signed.column("signature")
        wanted = exact.column("survivor").to_numpy(zero_copy_only=False) & column.is_valid().to_numpy(
            zero_copy_only=False
        )
        rows = np.flatnonzero(wanted)
        raw = np.frombuffer(column.buffers()[1], dtype="<u4")[column.offset * width :]
        signatures = raw[: len(column) * width].reshape(-1, width)[rows]
        keys = band_keys(np.ascontiguousarray(signatures, dtype=np.uint32), task.bands, task.rows)
        repeated = np.repeat(rows, task.bands)
        yield pa.table(
            [
                pa.array(keys.reshape(-1)),
                ids.column("id").take(pa.array(repeated)),
                pa.array((repeated + first).astype(np.uint32)),
            ],
            schema=_BANDS,
        )
        first += ids.num_rows


@dataclass(frozen=True)
class _Range:
    ordered: tuple[Part, ...]
    low: int
    high: int


def _pairs(store: Store, task: _Range) -> tuple[Part, ...]:
    keys, highs, lows, ats = [], [], [], []
    for slot, part in enumerate(task.ordered):
        table = shuffle.read_range(store, part, "key", task.low, task.high)
        high, low = shuffle.halves(table.column("id"))
        keys.append(table.column("key").to_numpy())
        highs.append(high)
        lows.append(low)
        ats.append(shuffle.address(slot, table.column("row").to_numpy()))
    left, right = nominate(*(np.concatenate([np.empty(0, np.uint64), *c]) for c in (keys, highs, lows, ats)))
    table = _unique(np.concatenate([left, right]), np.concatenate([right, left]))
    return (shuffle.write_sorted(store, "pairs.parquet", table, ["at", "other"]),)


def nominate(key: U64, high: U64, low: U64, at: U64) -> tuple[U64, U64]:
    """Pairs of addresses to verify, from entries (key, id as two halves, address) in any order; repeats may occur."""
    ordered = np.sort(key)
    crowded = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    listed = np.flatnonzero(np.isin(key, crowded))
    order = listed[np.lexsort((at[listed], low[listed], high[listed], key[listed]))]
    key, low, at = key[order], low[order], at[order]
    starts = np.flatnonzero(np.r_[True, key[1:] != key[:-1]][: key.size])
    ends = np.append(starts[1:], key.size)
    sizes = ends - starts
    total = int(np.where(sizes <= ALL_PAIRS, sizes * (sizes - 1) // 2, sizes * (NEIGHBOURS + 1)).sum())
    left, right = np.empty(total, dtype=np.uint64), np.empty(total, dtype=np.uint64)
    count = _nominate(key, low, at, starts, ends, left, right)
    return left[:count], right[:count]


@njit(nogil=True, cache=True)
def _nominate(key: U64, low: U64, at: U64, starts: I64, ends: I64, left: U64, right: U64) -> int:
    count = 0
    for group in range(starts.size):
        start, end = starts[group], ends[group]
        if end - start <= ALL_PAIRS:
            for i in range(start, end):
                for j in range(i + 1, end):
                    left[count], right[count] = at[i], at[j]
                    count += 1
            continue
        shuffled = np.empty(end - start, dtype=np.uint64)
        for i in range(start, end):
            shuffled[i - start] = mix(low[i] ^ key[i])
        order = np.argsort(shuffled)
        for i in range(order.size):
            here = at[start + order[i]]
            if order[i] > 0:
                left[count], right[count] = at[start], here
                count += 1
            for j in range(i + 1, min(order.size, i + 1 + NEIGHBOURS)):
                left[count], right[count] = here, at[start + order[j]]
                count += 1
    return count


@dataclass(frozen=True)
class _Mine:
    slot: int
    pairs: tuple[Part, ...]


def _own(store: Store, task: _Mine) -> tuple[Part, ...]:
    tables = [shuffle.read_range(store, part, "at", *shuffle.slot_range(task.slot)) for part in task.pairs]
    table = pa.concat_tables([_PAIRS.empty_table(), *tables])
    at, other = table.column("at").to_numpy(), table.column("other").to_numpy()
    rows = np.unique(at) & np.uint64(0xFFFFFFFF)
    forward = at < other
    pairs = _unique(at[forward], other[forward])
    slots = np.unique(pairs.column("other").to_numpy() >> np.uint64(32))
    rows_part = shuffle.write_sorted(store, "rows.parquet", pa.table({"row": rows}), ["row"])
    pairs_part = shuffle.write_sorted(store, "pairs.parquet", pairs, ["at", "other"])
    return rows_part, pairs_part.model_copy(update={"stats": {"slots": [int(slot) for slot in slots]}})


def _unique(at: U64, other: U64) -> pa.Table:
    """Pairs in order, once each."""
    order = np.lexsort((other, at))
    at, other = at[order], other[order]
    new = np.ones(at.size, dtype=np.bool_)
    new[1:] = (at[1:] != at[:-1]) | (other[1:] != other[:-1])
    return pa.table({"at": at[new], "other": other[new]}, schema=_PAIRS)
