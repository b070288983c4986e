"""Vectors of documents: hashed TF-IDF fitted on the same buckets, or the user's own vectors.

    frequencies   per part of `training_documents`: number of documents that contain each word
    weights       sum of the frequencies over these parts
    vectors       per part: a vector for each document that is long enough, aligned with the documents

Word weights are fitted on the first parts of each bucket. These parts are chosen so that they contain at least P
documents, where P is the largest power of two that is not above the bucket's number of documents. Therefore vectors are
recomputed only if a bucket grows past the next power of two. Vectors are computed for all documents. A mask selects the
documents to compare.

The stage keeps the vectors of one part in memory, with 2 bytes per number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.corpus import sidecars
from plinth.corpus.dedup import clusters, run_tree, sorted_runs
from plinth.corpus.dedup.parameters import Semantic
from plinth.corpus.dedup.run_tree import Range, RangeReader, reduce, tree
from plinth.corpus.sidecars import Slot, SlotNumbers
from plinth.errors import SourceError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store
from plinth_text import similarity
from plinth_text.arrays import F64, I16, I64, U64, Bools

VERSION = "2"


@dataclass(frozen=True)
class Vectors:
    """Vectors of all documents in the chosen buckets.

    Args:
        parts: by part of documents, and aligned with it: columns `has` and `vector` (int16 as bytes, zero-padded).
        source: digest of the weights or of the user's files.
        total, count: sum and number of the vectors in the parts from `training_documents`.
    """

    parts: tuple[Part, ...]
    source: str
    total: I64
    count: int


def make(ctx: Context, params: Semantic, places: Sequence[Slot], files: Manifest | None, range_rows: int) -> Vectors:
    """Return the vectors of all documents in the chosen buckets.

    Args:
        files: manifest of the user's vectors; None for built-in vectors.
        range_rows: number of addresses per reduce task.

    Raises:
        SourceError: the user's vectors cannot be read, or differ in length.
    """
    oldest = training_documents(places)
    if files is None:
        source, made = _learned(ctx, params, places, oldest)
    else:
        found, step = (
            find(ctx, places, files.parts, range_rows),
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


def training_documents(places: Sequence[Slot]) -> list[int]:
    """Return the indices of the first parts of each bucket, as many as are needed to contain the largest power of two
    that is not above the bucket's number of documents."""
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
    """Return the vectors in a column as uint64 [rows, dimensions / 4], in which each value packs four numbers. Rows
    without a vector contain undefined values."""
    width = column.type.byte_width // 8
    values = np.frombuffer(column.buffers()[1], dtype="<u8") if len(column) else np.empty(0, np.uint64)
    return values[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def values(store: Store, part: Part, rows: I64) -> Iterator[U64]:
    """Yield the vectors of the rows in `rows`, as `near.candidates` needs them."""
    for batch in sorted_runs.iter_rows(store, part, ["vector"], rows):
        yield raw(batch.column("vector"))


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
    total, texts = np.zeros(1 << similarity.TABLE_BITS, dtype=np.int64), 0
    for batch in iter_batches(store, task.documents, ["text"]):
        found, count = similarity.frequencies(batch.column("text"), task.params.min_words)
        total += found
        texts += count
    return (_numbers(store, total, texts),)


def numbers(store: Store, part: Part) -> I64:
    """Return the int64 numbers that are stored in a part as bytes."""
    return np.frombuffer(store.open_path(part.blob).read_bytes(), dtype="<i8").astype(np.int64)


def _numbers(store: Store, total: I64, rows: int) -> Part:
    return Part(name="numbers.bin", blob=store.put_bytes(total.astype("<i8").tobytes()), rows=rows)


def _sum(ctx: Context, parts: Sequence[Part]) -> Part | None:
    """Add up columns of numbers and their row counts. Each task adds a few columns."""
    step, found = Step(name="dedup/semantic/sum", version=VERSION), list(parts)
    while len(found) > 1:
        some = [tuple(found[at : at + run_tree.LEVEL_FAN]) for at in range(0, len(found), run_tree.LEVEL_FAN)]
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

    def batches() -> Iterator[tuple[I16, Bools]]:
        for batch in iter_batches(store, task.documents, ["text"]):
            yield similarity.vectors(batch.column("text"), df, weights.rows, params.dimensions, params.min_words)

    return _written(store, task.documents, params.dimensions, batches())


def _written(
    store: Store, documents: Part, dimensions: int, found: Iterator[tuple[I16, Bools]]
) -> tuple[Part, ...]:
    """Write the vectors of a part of documents, and the sum of these vectors. In the sum, `rows` is the number of
    documents that have a vector."""
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


def _given(store: Store, task: Given) -> tuple[Part, ...]:
    vectors, places = read(store, task)

    def batches() -> Iterator[tuple[I16, Bools]]:
        for first in range(0, places.size, 4096):
            mine = places[first : first + 4096]
            rows = np.zeros((mine.size, vectors.shape[1]))
            rows[mine >= 0] = vectors[mine[mine >= 0]]
            yield similarity.quantised(rows), mine >= 0

    return _written(store, task.documents, vectors.shape[1], batches())


# The user's vectors, each with the documents of its address.
#
#     addresses   per part of documents and per file, once and for all: hashes of their addresses, sorted
#     matched     per range of hashes: the row of a file for each document; of several the last one
#     sources     per part: its documents' rows, by file
#     given       per part: the vectors of its documents, read from the files that have any
#
# A part is worked again when its own documents or its own vectors change, not when files come for other parts.

GIVEN_VERSION = "2"
LABEL = "dedup/semantic vectors"

#: Runs of (upper half, row, lower half) of hashes of addresses; of (document, row among all files); of (row of the
#: part, position of the file among those of the part, row of the file).
ADDRESSES, MATCHED, ROWS = "addresses", "vectors of documents", "rows of vectors"


@dataclass(frozen=True)
class Given:
    """Locations of the user's vectors for one part of documents.

    Args:
        rows: sorted run of kind `ROWS`.
        files: files that `rows` refers to by position.
    """

    documents: Part
    rows: Part
    files: tuple[Part, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Digests of the rows and files that `read` reads."""
        return (str(self.documents.rows), self.rows.blob.sha256, *(file.blob.sha256 for file in self.files))


def find(ctx: Context, places: Sequence[Slot], files: Sequence[Part], range_rows: int) -> list[Given]:
    """Return the locations of the user's vectors for every part of documents.

    Raises:
        SourceError: a file does not contain vectors.
    """
    documents = [slot.documents for slot in places]
    step = Step(name="dedup/semantic/addresses", version=GIVEN_VERSION)
    tasks = [*((part, False) for part in documents), *((file, True) for file in files)]
    items = [Item((part.blob.sha256, str(is_file)), (part, is_file), part.rows) for part, is_file in tasks]
    leaves = [made[0] for made in run_items(ctx, step, _addresses, items, label=f"{LABEL} (addresses)")]
    numbers = SlotNumbers((0, *accumulate(leaf.rows for leaf in leaves)))
    reader = RangeReader.over(ctx.store, ADDRESSES, tree(ctx, ADDRESSES, 3, leaves), numbers)
    layout = sidecars.layout(places)
    step = Step(name="dedup/semantic/matched", version=GIVEN_VERSION, params={"documents": layout.documents})
    pairs = reduce(ctx, step, partial(_matched, layout.documents), reader, range_rows, f"{LABEL} (matched)")
    mine = clusters.gather(ctx, LABEL, pairs, layout, MATCHED, 2)
    bases = tuple(base - layout.documents for base in numbers.bases[len(documents) :])
    column = sidecars.write(ctx.store, "bases.flat", np.array(bases, dtype=np.uint64))
    step = Step(name="dedup/semantic/sources", version=GIVEN_VERSION)
    items = [Item((part.blob.sha256, column.blob.sha256), (part, column), part.rows) for part in mine]
    found = [made[0] for made in run_items(ctx, step, _sources, items, label=f"{LABEL} (sources)")]
    return [
        Given(part, rows, tuple(files[i] for i in rows.stats["files"]))
        for part, rows in zip(documents, found, strict=True)
    ]


def _addresses(store: Store, task: tuple[Part, bool]) -> tuple[Part, ...]:
    part, is_file = task
    batches = _batches(store, part, ["uri"]) if is_file else iter_batches(store, part, ["uri"])
    found = [pa.array([], pa.binary(16))]
    for batch in batches:
        hashes = [hashlib.sha256(str(uri).encode()).digest()[:16] for uri in batch.column("uri").to_pylist()]
        found.append(pa.array(hashes, pa.binary(16)))
    return (sorted_runs.write_halves(store, "addresses.run", ADDRESSES, pa.chunked_array(found)),)


def _matched(documents: int, store: Store, task: Range) -> tuple[Part, ...]:
    first, (_, number, _) = task.read(store)  # under one address documents come before the rows of files
    ends = np.append(np.flatnonzero(first)[1:], number.size)[: int(first.sum())]
    last = number[ends - 1][np.cumsum(first) - 1]
    wanted = (number < documents) & (last >= documents)
    columns = number[wanted], last[wanted] - np.uint64(documents)
    order = sorted_runs.in_order(*columns)
    return (sorted_runs.write(store, "matched.run", MATCHED, [[column[order] for column in columns]], 2),)


def _sources(store: Store, task: tuple[Part, Part]) -> tuple[Part, ...]:
    matched, column = task
    with sorted_runs.SortedRun(store, matched, MATCHED) as opened:
        row, among_all = opened.all()
    bases = np.asarray(sidecars.open_flat(store, column, "<u8"))
    files, position = np.unique(np.searchsorted(bases, among_all, side="right") - 1, return_inverse=True)
    columns = row, position.astype(np.uint64), among_all - bases[files[position]] if row.size else row
    stats = {"files": files.tolist()}
    return (sorted_runs.write(store, "rows.run", ROWS, [columns], 3, stats=stats),)


def read(store: Store, given: Given) -> tuple[F64, I64]:
    """Return the user's vectors [found, dimensions], and for every document of the part the row of its vector, or -1.

    Raises:
        SourceError: vectors differ in length, or cannot be used.
    """
    with sorted_runs.SortedRun(store, given.rows, ROWS) as opened:
        row, position, in_file = (column.astype(np.int64) for column in opened.all())
    order = np.lexsort((in_file, position))
    found, places = list[F64](), np.full(given.documents.rows, -1, dtype=np.int64)
    places[row[order]] = np.arange(row.size)
    for number, file in enumerate(given.files):
        wanted = in_file[order][position[order] == number]
        found += _rows(store, file, wanted)
    lengths = sorted({vectors.shape[1] for vectors in found})
    if len(lengths) > 1:
        raise SourceError("vectors differ in length", found=lengths, expected="one length in all files")
    return np.concatenate(found or [np.empty((0, 1))]), places


def _rows(store: Store, file: Part, wanted: I64) -> Iterator[F64]:
    """Yield the vectors in the rows `wanted` of a file. Row numbers ascend and may be repeated, because several
    documents may use the same row."""
    first = 0
    for batch in _batches(store, file, ["embedding"]):
        begin, end = np.searchsorted(wanted, [first, first + batch.num_rows])
        if end > begin:
            lists = batch.column("embedding").take(pa.array(wanted[begin:end] - first))
            width = len(lists[0]) if lists[0].is_valid else 0
            flat = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
            if flat.size != width * len(lists) or lists.null_count or not width or not np.isfinite(flat).all():
                raise SourceError(
                    f"{file.name}: vectors cannot be used",
                    found="lists of several lengths, nulls, or numbers that are not finite",
                    expected="vectors of one length with finite numbers and no nulls",
                )
            yield flat.reshape(len(lists), width)
        first += batch.num_rows


def _batches(store: Store, file: Part, columns: list[str]) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(store.open_path(file.blob)) as opened:
            if missing := {"uri", "embedding"} - set(opened.schema_arrow.names):
                raise KeyError(*missing)
            yield from opened.iter_batches(batch_size=4096, columns=columns)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise SourceError(
            f"{file.name}: not a Parquet file of vectors", found=error, expected="columns `uri` and `embedding`"
        ) from error
