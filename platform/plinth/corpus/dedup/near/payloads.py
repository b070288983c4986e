"""Shingle sets or signatures for verification, carried from parts of documents to partitions of components.

Per part: the shingle sets (or the signatures) of the documents that are wanted, in order of component, so that a
partition reads one stretch of every part's file. Memory is one part's; a partition that would hold more than
`IN_MEMORY` lays its values into a scratch file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from plinth import fingerprint
from plinth.compiled import njit
from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup import document_numbers, shuffle, sorted_runs
from plinth.corpus.dedup.near import shingles
from plinth.corpus.dedup.near.candidates import ALONE, CandidatePairs
from plinth.corpus.dedup.near.index import raw_signatures
from plinth.corpus.dedup.near.linking import Payload
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.sidecars import Slot
from plinth.errors import IntegrityError
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth.text.words.word_hashes import mix

U64 = sorted_runs.U64
I64 = sorted_runs.I64

VERSION = "1"
#: Runs of (component, row, start, values, checksum), and of the rows that are wanted.
PAYLOAD, NEEDED = "payload", "needed"
IN_MEMORY = 512 * 2**20


@dataclass(frozen=True)
class Carried:
    """The payload of one slot: the run with the place of each document, and the flat column of values."""

    places: Part
    values: Part


def carry(
    ctx: Context, params: MinHash, slots: Sequence[Slot], found: CandidatePairs, needed: Sequence[Part | None] | None
) -> list[Carried]:
    """The payload of every slot.

    Args:
        slots: with the side `signatures`.
        needed: by slot, a run of the rows that are wanted; by default all that are in a component.
    """
    layout = document_numbers.layout(slots)
    step = Step(
        name=f"dedup/minhash/{params.verify}",
        version=VERSION,
        params=params.similarity(),
        libraries=fingerprint.UNICODE,
    )
    items, every = [], needed if needed is not None else [None] * len(slots)
    for slot, base, wanted in zip(slots, layout.bases, every, strict=False):
        read = slot.documents if params.verify == "text" else slot.sides["signatures"]
        keys: tuple[str, ...] = (
            read.blob.sha256,
            str(base),
            (wanted or found.components).blob.sha256,
            found.components.blob.sha256,
        )
        if wanted is not None and wanted.rows == 0:
            keys = ("nothing",)  # reads nothing, whatever the part is
        items.append(Item(keys, _Carry(read, params, found, base, wanted), wanted.rows if wanted else read.rows))
    made = run_items(ctx, step, _carry, items, label="dedup/minhash sets")
    return [Carried(*parts) for parts in made]


@dataclass(frozen=True)
class _Carry:
    read: Part
    params: MinHash
    found: CandidatePairs
    base: int
    wanted: Part | None


def _carry(store: Store, task: _Carry) -> tuple[Part, ...]:
    rows, component = _wanted(store, task)
    order = np.argsort(component, kind="stable")
    values = list(_values(store, task, rows))
    sizes = np.array([one.size for one in values], dtype=np.uint64)
    checks = np.array([checksum(one) for one in values], dtype=np.uint64)
    starts = np.zeros(rows.size, dtype=np.uint64)
    starts[1:] = np.cumsum(sizes[order])[:-1] if rows.size else starts[1:]
    columns = (component[order], rows[order].astype(np.uint64), starts, sizes[order], checks[order])
    places = sorted_runs.write(store, "places.run", PAYLOAD, [columns], 5)
    flat = np.concatenate([np.empty(0, np.uint64), *(values[i] for i in order)])
    return places, document_numbers.write(store, "values.flat", flat)


def _wanted(store: Store, task: _Carry) -> tuple[I64, U64]:
    """The rows that are wanted and their components."""
    if task.wanted is not None and task.wanted.rows == 0:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    column = document_numbers.open_flat(store, task.found.components, task.found.width)
    mine = np.asarray(column[task.base : task.base + task.read.rows])
    if task.wanted is None:
        rows = np.flatnonzero(mine != ALONE[task.found.width])
    else:
        with sorted_runs.SortedRun(store, task.wanted, NEEDED) as opened:
            rows = opened.all()[0].astype(np.int64)
    return rows, mine[rows].astype(np.uint64)


def _values(store: Store, task: _Carry, rows: I64) -> Iterator[U64]:
    if task.params.verify == "text":
        for batch in shuffle.iter_rows(store, task.read, ["text"], rows):
            yield from shingles.sets(batch.column("text"), task.params)
        return
    width = task.params.bands * task.params.rows
    for batch in shuffle.iter_rows(store, task.read, ["signature"], rows):
        signed = raw_signatures(batch.column("signature"), width)
        yield from np.pad(signed, ((0, 0), (0, width % 2))).view(np.uint64)


@njit(nogil=True, cache=True)
def checksum(values: U64) -> np.uint64:
    """64 bits over values in their order."""
    state = np.uint64(values.size)
    for value in values:
        state = mix(state ^ value)
    return state


@contextmanager
def load(
    store: Store, carried: Sequence[Carried], bases: Sequence[int], low: int, high: int, documents: U64, minima: int
) -> Iterator[Payload]:
    """The payload of the components low <= c < high.

    Args:
        documents: [N] numbers of the partition's documents, ascending.
        minima: length of a signature, where the values are signatures.

    Raises:
        IntegrityError: values are not those that were written.
    """
    wanted = []
    for one, base in zip(carried, bases, strict=False):
        if one.places.rows == 0:
            continue
        with sorted_runs.SortedRun(store, one.places, PAYLOAD) as opened:
            _, row, start, size, check = opened.slice(low, high)
        if row.size:
            wanted.append((one.values, np.searchsorted(documents, row + np.uint64(base)), start, size, check))
    total = sum(int(size.sum()) for _, _, _, size, _ in wanted)
    with store.staging(".scratch") as path:
        large = total * 8 > IN_MEMORY
        values: U64 = np.memmap(path, np.uint64, "w+", shape=(total,)) if large else np.empty(total, np.uint64)
        payload = Payload(np.zeros(documents.size, np.int64), np.zeros(documents.size, np.int64), values, minima)
        at = 0
        for part, node, start, size, check in wanted:
            first, count = int(start[0]), int(size.sum())
            values[at : at + count] = document_numbers.open_flat(store, part, "<u8")[first : first + count]
            payload.start[node] = (start - start[0]).astype(np.int64) + at
            payload.size[node] = size
            if _spoilt(values, payload.start[node], payload.size[node], check):
                raise IntegrityError(
                    f"{part.name} ({part.blob.md5}) has changed since it was written",
                    found="another checksum",
                    expected=f"SHA-256 {part.blob.sha256}",
                    remedy="delete the blob from the store and run the same command again",
                )
            at += count
        yield payload


@njit(nogil=True, cache=True)
def _spoilt(values: U64, start: I64, size: I64, check: U64) -> bool:
    bad = False
    for i in range(start.size):
        bad |= checksum(values[start[i] : start[i] + size[i]]) != check[i]
    return bad
