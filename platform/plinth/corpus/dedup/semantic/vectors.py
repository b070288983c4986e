"""A vector for every document that is compared: hashed TF-IDF learned here, or the user's own.

    frequencies   per part: in how many documents each word is
    weights       once: their sum
    vectors       per part: a row for each document that has a vector

Memory is one part's vectors, 2 bytes for each number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup.span_parameters import Semantic
from plinth.corpus.sidecars import Slot
from plinth.errors import SourceError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned, read_table, write_table
from plinth.storage.store import Store
from plinth.text.words import bags

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Vectors:
    """Vectors of one slot.

    Args:
        table: a row for each document that has one: `row`, `id`, `text_bytes`, `vector` (int16 as bytes).
        total: their sum, int64 as bytes.
    """

    table: Part
    total: Part


def schema(dimensions: int) -> pa.Schema:
    """Columns of a table of vectors."""
    return pa.schema(
        [
            ("row", pa.uint32()),
            ("id", pa.binary(16)),
            ("text_bytes", pa.int64()),
            ("vector", pa.binary(2 * dimensions)),
        ]
    )


def make(
    ctx: Context, params: Semantic, places: tuple[Slot, ...], given: Manifest | None, version: str
) -> list[Vectors]:
    """Vectors of all slots, which are those of the chosen buckets.

    Args:
        given: files of the user's vectors.

    Raises:
        SourceError: the user's vectors cannot be read, or differ in length.
    """
    if given is None:
        return _learned(ctx, params, places, version)
    step = Step(
        name="dedup/semantic/given",
        version=version,
        params={"min_words": params.min_words},
        libraries=fingerprint.UNICODE,
    )
    files = tuple(part.blob.sha256 for part in given.parts)
    items = [Item((*_inputs(slot), *files), _Given(slot, given.parts), slot.documents.rows) for slot in places]
    return [Vectors(*made) for made in run_items(ctx, step, _given, items, label="dedup/semantic vectors")]


def load(store: Store, part: Part) -> tuple[pa.Table, bags.I16]:
    """A table of vectors, and the vectors themselves [N, dimensions]."""
    table = read_table(store, part).combine_chunks()
    column = table.column("vector").combine_chunks()
    width = column.type.byte_width
    raw = np.frombuffer(column.buffers()[1], dtype="<i2") if len(column) else np.zeros(0, dtype="<i2")
    return table, raw[: len(column) * width // 2].reshape(-1, width // 2)


def _inputs(slot: Slot) -> tuple[str, str]:
    return slot.documents.blob.sha256, slot.sides["before"].blob.sha256


def _learned(ctx: Context, params: Semantic, places: tuple[Slot, ...], version: str) -> list[Vectors]:
    step = Step(
        name="dedup/semantic/frequencies",
        version=version,
        params={"min_words": params.min_words},
        libraries=fingerprint.UNICODE,
    )
    items = [Item(_inputs(slot), _Learn(slot, params, None), slot.documents.rows) for slot in places]
    counted = tuple(made[0] for made in run_items(ctx, step, _frequencies, items, label="dedup/semantic words"))
    step = Step(name="dedup/semantic/weights", version=version)
    item = Item(tuple(part.blob.sha256 for part in counted), counted)
    weights = run_items(ctx, step, _weights, [item], label="dedup/semantic weights")[0][0]
    shape = {"dimensions": params.dimensions, "min_words": params.min_words}
    step = Step(name="dedup/semantic/vectors", version=version, params=shape, libraries=fingerprint.UNICODE)
    items = [
        Item((*_inputs(slot), weights.blob.sha256), _Learn(slot, params, weights), slot.documents.rows)
        for slot in places
    ]
    return [Vectors(*made) for made in run_items(ctx, step, _vectors, items, label="dedup/semantic vectors")]


@dataclass(frozen=True)
class _Learn:
    slot: Slot
    params: Semantic
    weights: Part | None


def _read(store: Store, slot: Slot, columns: list[str]) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
    """Rows of surviving documents, and those documents with `text_bytes`."""
    first = 0
    for documents, before in iter_aligned(
        store, (slot.documents, ["id", *columns]), (slot.sides["before"], ["survivor", "text_bytes"])
    ):
        alive = before.column("survivor")
        rows = np.flatnonzero(alive.to_numpy(zero_copy_only=False)) + first
        yield rows, documents.append_column("text_bytes", before.column("text_bytes")).filter(alive)
        first += documents.num_rows


def _frequencies(store: Store, task: _Learn) -> tuple[Part, ...]:
    total, texts = np.zeros(1 << bags.TABLE_BITS, dtype=np.int64), 0
    for _, documents in _read(store, task.slot, ["text"]):
        found, count = bags.frequencies(documents.column("text"), task.params.min_words)
        total += found
        texts += count
    return (Part(name="words.bin", blob=store.put_bytes(total.astype("<i8").tobytes()), rows=texts),)


def numbers(store: Store, part: Part) -> npt.NDArray[np.int64]:
    """Whole numbers that were stored as bytes."""
    return np.frombuffer(store.open_path(part.blob).read_bytes(), dtype="<i8").astype(np.int64)


def _weights(store: Store, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    total = np.zeros(1 << bags.TABLE_BITS, dtype=np.int64)
    for part in parts:
        total += numbers(store, part)
    rows = sum(part.rows for part in parts)
    return (Part(name="words.bin", blob=store.put_bytes(total.astype("<i8").tobytes()), rows=rows),)


def _vectors(store: Store, task: _Learn) -> tuple[Part, ...]:
    assert task.weights is not None
    df, params = numbers(store, task.weights), task.params
    batches = []
    for rows, documents in _read(store, task.slot, ["text"]):
        texts = documents.column("text")
        found, has = bags.vectors(texts, df, task.weights.rows, params.dimensions, params.min_words)
        batches.append((rows, documents, found, has))
    return _written(store, batches, params.dimensions)


def _written(
    store: Store, batches: list[tuple[npt.NDArray[np.int64], pa.RecordBatch, bags.I16, Bools]], dimensions: int
) -> tuple[Part, ...]:
    columns = schema(dimensions)
    tables, total = [columns.empty_table()], np.zeros(dimensions, dtype=np.int64)
    for rows, documents, found, has in batches:
        has = has & found.any(axis=1)  # a vector of zeros points nowhere
        mine, raw = documents.filter(pa.array(has)), np.ascontiguousarray(found[has], dtype="<i2")
        total += raw.sum(axis=0, dtype=np.int64)
        packed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(2 * dimensions), raw.shape[0], [None, pa.py_buffer(raw.tobytes())]
        )
        arrays = [pa.array(rows[has].astype(np.uint32)), mine.column("id"), mine.column("text_bytes"), packed]
        tables.append(pa.Table.from_arrays(arrays, schema=columns))
    table = write_table(store, "vectors.parquet", pa.concat_tables(tables))
    return table, Part(name="total.bin", blob=store.put_bytes(total.astype("<i8").tobytes()), rows=table.rows)


@dataclass(frozen=True)
class _Given:
    slot: Slot
    files: tuple[Part, ...]


def _given(store: Store, task: _Given) -> tuple[Part, ...]:
    """The user's vectors of one slot: its URIs are held, the files are streamed past them."""
    listed = list(_read(store, task.slot, ["uri"]))
    where = {uri: (i, j) for i, (_, docs) in enumerate(listed) for j, uri in enumerate(docs.column("uri").to_pylist())}
    found: dict[tuple[int, int], npt.NDArray[np.float64]] = {}
    for file in task.files:
        for uris, vectors in _embeddings(store, file):
            for row in [row for row, uri in enumerate(uris) if uri in where]:
                found[where[uris[row]]] = vectors[row]
    lengths = {vector.size for vector in found.values()} or {1}
    if len(lengths) > 1:
        raise SourceError("vectors differ in length", found=sorted(lengths), expected="one length in all files")
    dimensions = lengths.pop()
    batches = []
    for i, (rows, documents) in enumerate(listed):
        values = np.zeros((rows.size, dimensions))
        has = np.array([(i, j) in found for j in range(rows.size)], dtype=np.bool_)
        for j in np.flatnonzero(has):
            values[j] = found[i, int(j)]
        batches.append((rows, documents, bags.quantised(values), has))
    return _written(store, batches, dimensions)


def _embeddings(store: Store, file: Part) -> Iterator[tuple[list[str], npt.NDArray[np.float64]]]:
    """Batches of URIs and vectors."""
    try:
        with pq.ParquetFile(store.open_path(file.blob)) as opened:
            for batch in opened.iter_batches(batch_size=4096, columns=["uri", "embedding"]):
                lists = batch.column("embedding")
                width = len(lists[0]) if len(lists) else 0
                flat = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
                if flat.size != width * len(lists) or not np.isfinite(flat).all():
                    raise SourceError(
                        f"{file.name}: vectors cannot be used",
                        found="lists of several lengths, nulls, or numbers that are not finite",
                        expected="one length, finite numbers, none missing",
                    )
                yield batch.column("uri").to_pylist(), flat.reshape(len(lists), width)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise SourceError(
            f"{file.name}: no Parquet file of vectors", found=error, expected="columns `uri` and `embedding`"
        ) from error
