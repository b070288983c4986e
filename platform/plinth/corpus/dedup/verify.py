"""Verification: the true Jaccard similarity of every candidate pair, from the texts themselves.

    sets     per part: the n-gram sets of its candidates, from the text read again
    verify   per part: its pairs that reach the threshold; one other part's sets are held at a time
    join     once: clusters by union-find over the verified pairs

Memory is the n-gram sets of two parts; joining holds about 60 bytes for each candidate and no text.
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
from plinth.corpus.dedup import clusters, shuffle
from plinth.corpus.dedup.candidates import Own
from plinth.corpus.sidecars import Slot
from plinth.recipe.dedup import Dedup
from plinth.records import Part, Step
from plinth.storage.parts import iter_batches, read_table, write_batches
from plinth.storage.store import Store
from plinth.text.ngrams import ngram_sets, shared

U64 = shuffle.U64
I64 = npt.NDArray[np.int64]

_SETS = pa.schema(
    [
        ("row", pa.uint64()),
        ("id", pa.binary(16)),
        ("text_bytes", pa.int64()),
        ("grams", pa.large_list(pa.field("item", pa.uint64(), nullable=False))),
    ]
)
_EDGES = pa.schema([("at", pa.uint64()), ("other", pa.uint64())])
_NODES = pa.schema([("at", pa.uint64()), ("id", pa.binary(16)), ("text_bytes", pa.int64())])


def cluster(ctx: Context, params: Dedup, places: tuple[Slot, ...], found: list[Own], version: str) -> Part:
    """The members of all near-duplicate clusters, as a part of `clusters.MEMBERS`."""
    sets = _all_sets(ctx, params, places, found, version)
    threshold = params.minhash.threshold
    step = Step(name="dedup/minhash/verify", version=version, params={"threshold": threshold})
    items = []
    for slot, own in zip(places, found, strict=True):
        others = {number: sets[number] for number in own.others}
        inputs = (own.pairs.blob.sha256, sets[slot.number].blob.sha256, *(p.blob.sha256 for p in others.values()))
        items.append(Item(inputs, _Verify(slot.number, own.pairs, sets[slot.number], others, threshold)))
    edges = tuple(parts[0] for parts in run_items(ctx, step, _verify, items, label="dedup/minhash verify"))
    step = Step(name="dedup/minhash/join", version=version, params={"keep": params.keep})
    inputs = tuple(part.blob.sha256 for part in (*edges, *sets))
    item = Item(inputs, _Join(edges, sets, params.keep))
    return run_items(ctx, step, _join, [item], label="dedup/minhash clusters")[0][0]


def _all_sets(
    ctx: Context, params: Dedup, places: tuple[Slot, ...], found: list[Own], version: str
) -> tuple[Part, ...]:
    words = params.minhash.shingle_words
    step = Step(name="dedup/minhash/sets", version=version, params={"shingle_words": words})
    items = [
        Item((slot.documents.blob.sha256, own.rows.blob.sha256), _Sets(slot.documents, own.rows, words), own.rows.rows)
        for slot, own in zip(places, found, strict=True)
    ]
    return tuple(parts[0] for parts in run_items(ctx, step, _sets, items, label="dedup/minhash n-grams"))


@dataclass(frozen=True)
class _Sets:
    documents: Part
    rows: Part
    words: int


def _sets(store: Store, task: _Sets) -> tuple[Part, ...]:
    wanted = read_table(store, task.rows).column("row").to_numpy()
    return (write_batches(store, "sets.parquet", _SETS, _set_batches(store, task, wanted)),)


def _set_batches(store: Store, task: _Sets, wanted: U64) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in iter_batches(store, task.documents, ["id", "text"]) if wanted.size else ():
        begin, end = np.searchsorted(wanted, [first, first + batch.num_rows])
        rows = wanted[begin:end]
        picked = batch.take(pa.array((rows - np.uint64(first)).astype(np.int64)))
        first += batch.num_rows
        texts = picked.column("text")
        grams = ngram_sets(texts, task.words)
        offsets = np.zeros(len(grams) + 1, dtype=np.int64)
        np.cumsum([one.size for one in grams], out=offsets[1:])
        values = pa.array(np.concatenate([np.empty(0, np.uint64), *grams]))
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), values, type=_SETS.field("grams").type)
        lengths = np.diff(np.frombuffer(texts.buffers()[1], dtype=np.int64)[: len(texts) + 1])
        yield pa.RecordBatch.from_arrays([pa.array(rows), picked.column("id"), pa.array(lengths), lists], schema=_SETS)


@dataclass(frozen=True)
class _Verify:
    slot: int
    pairs: Part
    sets: Part
    others: dict[int, Part]
    threshold: float


@dataclass(frozen=True)
class _Sorted:
    """n-gram sets of a slot's candidates: rows [N], offsets [N + 1] into the hashes."""

    rows: U64
    offsets: I64
    grams: U64


def _load(store: Store, part: Part) -> _Sorted:
    table = read_table(store, part, ["row", "grams"]).combine_chunks()
    column = table.column("grams")
    if column.num_chunks == 0:
        return _Sorted(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.uint64))
    lists = column.chunk(0)
    return _Sorted(table.column("row").to_numpy(), lists.offsets.to_numpy(), lists.values.to_numpy())


def _verify(store: Store, task: _Verify) -> tuple[Part, ...]:
    pairs = read_table(store, task.pairs)
    at, other = pairs.column("at").to_numpy(), pairs.column("other").to_numpy()
    mine = _load(store, task.sets)
    passed = np.zeros(at.size, dtype=np.bool_)
    slots = (other >> np.uint64(32)).astype(np.int64)
    for number, part in task.others.items():
        theirs = mine if number == task.slot else _load(store, part)
        here = np.flatnonzero(slots == number)
        left = np.searchsorted(mine.rows, at[here] & np.uint64(0xFFFFFFFF))
        right = np.searchsorted(theirs.rows, other[here] & np.uint64(0xFFFFFFFF))
        passed[here] = _similar(mine.offsets, mine.grams, theirs.offsets, theirs.grams, left, right, task.threshold)
    table = pa.table({"at": at[passed], "other": other[passed]}, schema=_EDGES)
    return (shuffle.write_sorted(store, "edges.parquet", table, ["at", "other"]),)


@njit(nogil=True, cache=True)
def _similar(
    a_offsets: I64, a_grams: U64, b_offsets: I64, b_grams: U64, left: I64, right: I64, threshold: float
) -> npt.NDArray[np.bool_]:
    """Whether each pair of sets has |A ∩ B| / |A ∪ B| >= threshold; two empty sets never do."""
    out = np.zeros(left.size, dtype=np.bool_)
    for pair in range(left.size):
        a = a_grams[a_offsets[left[pair]] : a_offsets[left[pair] + 1]]
        b = b_grams[b_offsets[right[pair]] : b_offsets[right[pair] + 1]]
        if min(a.size, b.size) < threshold * max(a.size, b.size) - 1e-6:
            continue  # the intersection cannot be large enough
        common = shared(a, b)
        union = a.size + b.size - common
        out[pair] = union > 0 and common / union >= threshold
    return out


@dataclass(frozen=True)
class _Join:
    edges: tuple[Part, ...]
    sets: tuple[Part, ...]
    keep: str


def _join(store: Store, task: _Join) -> tuple[Part, ...]:
    tables = []
    for slot, part in enumerate(task.sets):
        table = read_table(store, part, ["row", "id", "text_bytes"])
        at = np.uint64(slot << 32) | table.column("row").to_numpy()
        tables.append(pa.table({"at": at, "id": table.column("id"), "text_bytes": table.column("text_bytes")}))
    table = pa.concat_tables([_NODES.empty_table(), *tables])
    table = table.sort_by([("id", "ascending"), ("at", "ascending")]).combine_chunks()
    high, low = shuffle.halves(table.column("id"))
    nodes = clusters.Nodes(table.column("at").to_numpy(), high, low, table.column("text_bytes").to_numpy())
    left, right = _ends(store, task.edges, nodes.at)
    roots = clusters.connect(nodes.at.size, left, right)
    return (clusters.write_members(store, nodes, roots, task.keep),)


def _ends(store: Store, edges: tuple[Part, ...], at: U64) -> tuple[I64, I64]:
    """The edges' ends as indices of nodes."""
    order = np.argsort(at)
    ends = []
    for name in ("at", "other"):
        columns = [read_table(store, part, [name]).column(name).to_numpy() for part in edges]
        values = np.concatenate([np.empty(0, np.uint64), *columns])
        ends.append(order[np.searchsorted(at[order], values)].astype(np.int64))
    return ends[0], ends[1]
