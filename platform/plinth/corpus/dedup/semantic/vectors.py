"""A vector for every document: hashed TF-IDF learned here, or the user's own (`given`).

    frequencies   per part of `learnt`: in how many documents each word is
    weights       their sum
    vectors       per part: a vector for each document long enough, aligned with the documents

Words are weighed by the oldest parts of each bucket, at least half of its documents: those that were there when it had
grown to a power of two. So a snapshot that does not double a bucket leaves all vectors as they are; one that does
has them made again. Vectors are of all documents; which are compared is a mask.

Memory is one part's vectors, 2 bytes for each number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup import run_merge, shuffle
from plinth.corpus.dedup.edits import I64, U64, Bools
from plinth.corpus.dedup.semantic import given
from plinth.corpus.dedup.span_parameters import Semantic
from plinth.corpus.sidecars import Slot
from plinth.errors import SourceError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store
from plinth_text.words import bags

VERSION = "2"


@dataclass(frozen=True)
class Vectors:
    """Vectors of all slots.

    Args:
        parts: by slot, aligned with the documents: `has`, `vector` (int16 as bytes, in eights).
        source: digest of the weights or the user's files.
        total, count: sum of the vectors of `learnt` slots, and how many they are.
    """

    parts: tuple[Part, ...]
    source: str
    total: I64
    count: int


def make(ctx: Context, params: Semantic, places: Sequence[Slot], files: Manifest | None, range_rows: int) -> Vectors:
    """Vectors of all slots, which are those of the chosen buckets.

    Args:
        files: the user's vectors.
        range_rows: addresses that one reduce task holds.

    Raises:
        SourceError: the user's vectors cannot be read, or differ in length.
    """
    oldest = learnt(places)
    if files is None:
        source, made = _learned(ctx, params, places, oldest)
    else:
        found, step = (
            given.find(ctx, places, files.parts, range_rows),
            Step(name="dedup/semantic/given", version=VERSION),
        )
        items = [Item(one.inputs, one, one.documents.rows) for one in found]
        source, made = files.digest, run_items(ctx, step, _given, items, label=f"{_LABEL} vectors")
    lengths = sorted({total.blob.bytes // 8 for _, total in made if total.rows})
    if len(lengths) > 1:
        raise SourceError("vectors differ in length", found=lengths, expected="one length in all files")
    total = _sum(ctx, [made[i][1] for i in oldest if made[i][1].rows])
    sums = numbers(ctx.store, total) if total else np.zeros(lengths[0] if lengths else 1, np.int64)
    return Vectors(tuple(part for part, _ in made), source, sums, total.rows if total else 0)


_LABEL = "dedup/semantic"


def learnt(places: Sequence[Slot]) -> list[int]:
    """Positions of each bucket's first parts: as many as have the largest power of two of its documents."""
    found = []
    for bucket in sorted({slot.bucket for slot in places}):
        mine = [i for i, slot in enumerate(places) if slot.bucket == bucket]
        rows = sum(places[i].documents.rows for i in mine)
        wanted, held = 1 << max(0, rows.bit_length() - 1), 0
        for i in mine:
            if held < wanted:
                found.append(i)
                held += places[i].documents.rows
    return found


def raw(column: pa.Array) -> U64:
    """Vectors [rows, dimensions / 4], as the bits of four numbers each; rows without one hold anything."""
    width = column.type.byte_width // 8
    values = np.frombuffer(column.buffers()[1], dtype="<u8") if len(column) else np.empty(0, np.uint64)
    return values[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def values(store: Store, part: Part, rows: I64) -> Iterator[U64]:
    """The vectors of some rows, for `payloads`."""
    for batch in shuffle.iter_rows(store, part, ["vector"], rows):
        yield from raw(batch.column("vector"))


def _learned(
    ctx: Context, params: Semantic, places: Sequence[Slot], oldest: Sequence[int]
) -> tuple[str, list[tuple[Part, ...]]]:
    few = {"min_words": params.min_words}
    step = Step(name="dedup/semantic/frequencies", version=VERSION, params=few, libraries=fingerprint.UNICODE)
    tasks = [_Learn(places[i].documents, params, None) for i in oldest]
    items = [Item((task.documents.blob.sha256,), task, task.documents.rows) for task in tasks]
    counted = [made[0] for made in run_items(ctx, step, _frequencies, items, label=f"{_LABEL} words")]
    weights = _sum(ctx, counted)
    shape = few | {"dimensions": params.dimensions}
    step = Step(name="dedup/semantic/vectors", version=VERSION, params=shape, libraries=fingerprint.UNICODE)
    tasks = [_Learn(slot.documents, params, weights) for slot in places]
    read = weights.blob.sha256 if weights else ""
    items = [Item((task.documents.blob.sha256, read), task, task.documents.rows) for task in tasks]
    return read, run_items(ctx, step, _vectors, items, label=f"{_LABEL} vectors")


@dataclass(frozen=True)
class _Learn:
    documents: Part
    params: Semantic
    weights: Part | None


def _frequencies(store: Store, task: _Learn) -> tuple[Part, ...]:
    total, texts = np.zeros(1 << bags.TABLE_BITS, dtype=np.int64), 0
    for batch in iter_batches(store, task.documents, ["text"]):
        found, count = bags.frequencies(batch.column("text"), task.params.min_words)
        total += found
        texts += count
    return (_numbers(store, total, texts),)


def numbers(store: Store, part: Part) -> I64:
    """Whole numbers that were stored as bytes."""
    return np.frombuffer(store.open_path(part.blob).read_bytes(), dtype="<i8").astype(np.int64)


def _numbers(store: Store, total: I64, rows: int) -> Part:
    return Part(name="numbers.bin", blob=store.put_bytes(total.astype("<i8").tobytes()), rows=rows)


def _sum(ctx: Context, parts: Sequence[Part]) -> Part | None:
    """The sum of columns of numbers and of their rows, a few at a time."""
    step, found = Step(name="dedup/semantic/sum", version=VERSION), list(parts)
    while len(found) > 1:
        some = [tuple(found[at : at + run_merge.FAN]) for at in range(0, len(found), run_merge.FAN)]
        items = [Item(tuple(f"{part.blob.sha256}:{part.rows}" for part in group), group) for group in some]
        found = [made[0] for made in run_items(ctx, step, _added, items, label=f"{_LABEL} sums")]
    return found[0] if found else None


def _added(store: Store, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    total = numbers(store, parts[0])
    for part in parts[1:]:
        total += numbers(store, part)
    return (_numbers(store, total, sum(part.rows for part in parts)),)


def _vectors(store: Store, task: _Learn) -> tuple[Part, ...]:
    params, weights = task.params, task.weights
    assert weights is not None
    df = numbers(store, weights)

    def batches() -> Iterator[tuple[bags.I16, Bools]]:
        for batch in iter_batches(store, task.documents, ["text"]):
            yield bags.vectors(batch.column("text"), df, weights.rows, params.dimensions, params.min_words)

    return _written(store, task.documents, params.dimensions, batches())


def _written(
    store: Store, documents: Part, dimensions: int, found: Iterator[tuple[bags.I16, Bools]]
) -> tuple[Part, ...]:
    """The vectors of a slot, and their sum; `rows` of the sum are the documents that have one."""
    width = -(-dimensions // 4) * 4
    schema = pa.schema([("has", pa.bool_()), ("vector", pa.binary(2 * width))])
    total, count = np.zeros(dimensions, dtype=np.int64), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for vectors, long_enough in found:
            has = long_enough & vectors.any(axis=1)  # a vector of zeros points nowhere
            total[:] += vectors[has].sum(axis=0, dtype=np.int64)
            count += int(has.sum())
            padded = np.zeros((has.size, width), dtype="<i2")
            padded[has, :dimensions] = vectors[has]
            column = pa.FixedSizeBinaryArray.from_buffers(schema.field(1).type, has.size, [None, pa.py_buffer(padded)])
            yield pa.RecordBatch.from_arrays([pa.array(has), column], schema=schema)

    part = write_batches(store, documents.name, schema, batches())
    return part, _numbers(store, total, count)


def _given(store: Store, task: given.Given) -> tuple[Part, ...]:
    vectors, places = given.read(store, task)

    def batches() -> Iterator[tuple[bags.I16, Bools]]:
        for first in range(0, places.size, 4096):
            mine = places[first : first + 4096]
            rows = np.zeros((mine.size, vectors.shape[1]))
            rows[mine >= 0] = vectors[mine[mine >= 0]]
            yield bags.quantised(rows), mine >= 0

    return _written(store, task.documents, vectors.shape[1], batches())
