"""The user's vectors, each with the documents of its address.

    addresses   per part of documents and per file, once and for all: hashes of their addresses, sorted
    matched     per range of hashes: the row of a file for each document; of several the last one
    sources     per part: its documents' rows, by file
    given       per part: the vectors of its documents, read from the files that have any

A part is worked again when its own documents or its own vectors change, not when files come for other parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.dedup import clusters, document_numbers, shuffle, sorted_runs
from plinth.corpus.dedup.document_numbers import SlotNumbers
from plinth.corpus.dedup.edits import I64
from plinth.corpus.dedup.run_tree import Range, RangeReader, reduce, tree
from plinth.corpus.sidecars import Slot
from plinth.errors import SourceError
from plinth.records import Part, Step
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store

VERSION = "2"
LABEL = "dedup/semantic vectors"

#: Runs of (upper half, row, lower half) of hashes of addresses; of (document, row among all files); of (row of the
#: part, position of the file among those of the part, row of the file).
ADDRESSES, MATCHED, ROWS = "addresses", "vectors of documents", "rows of vectors"


@dataclass(frozen=True)
class Given:
    """The vectors of one part of documents.

    Args:
        rows: run of `ROWS`.
        files: those that it counts.
    """

    documents: Part
    rows: Part
    files: tuple[Part, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Digests of what is read."""
        return (str(self.documents.rows), self.rows.blob.sha256, *(file.blob.sha256 for file in self.files))


def find(ctx: Context, places: Sequence[Slot], files: Sequence[Part], range_rows: int) -> list[Given]:
    """Where the vectors of every slot's documents are.

    Raises:
        SourceError: a file is not one of vectors.
    """
    documents = [slot.documents for slot in places]
    step = Step(name="dedup/semantic/addresses", version=VERSION)
    tasks = [*((part, False) for part in documents), *((file, True) for file in files)]
    items = [Item((part.blob.sha256, str(is_file)), (part, is_file), part.rows) for part, is_file in tasks]
    leaves = [made[0] for made in run_items(ctx, step, _addresses, items, label=f"{LABEL} (addresses)")]
    numbers = SlotNumbers((0, *accumulate(leaf.rows for leaf in leaves)))
    reader = RangeReader.over(ctx.store, ADDRESSES, tree(ctx, ADDRESSES, 3, leaves), numbers)
    layout = document_numbers.layout(places)
    step = Step(name="dedup/semantic/matched", version=VERSION, params={"documents": layout.documents})
    pairs = reduce(ctx, step, partial(_matched, layout.documents), reader, range_rows, f"{LABEL} (matched)")
    mine = clusters.gather(ctx, LABEL, pairs, layout, MATCHED, 2)
    bases = tuple(base - layout.documents for base in numbers.bases[len(documents) :])
    column = document_numbers.write(ctx.store, "bases.flat", np.array(bases, dtype=np.uint64))
    step = Step(name="dedup/semantic/sources", version=VERSION)
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
    return (shuffle.write_halves(store, "addresses.run", ADDRESSES, pa.chunked_array(found)),)


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
    bases = np.asarray(document_numbers.open_flat(store, column, "<u8"))
    files, position = np.unique(np.searchsorted(bases, among_all, side="right") - 1, return_inverse=True)
    columns = row, position.astype(np.uint64), among_all - bases[files[position]] if row.size else row
    stats = {"files": files.tolist()}
    return (sorted_runs.write(store, "rows.run", ROWS, [columns], 3, stats=stats),)


def read(store: Store, given: Given) -> tuple[npt.NDArray[np.float64], I64]:
    """Vectors [found, dimensions], and for every document of the part its place among them, or -1.

    Raises:
        SourceError: vectors differ in length, or cannot be used.
    """
    with sorted_runs.SortedRun(store, given.rows, ROWS) as opened:
        row, position, in_file = (column.astype(np.int64) for column in opened.all())
    order = np.lexsort((in_file, position))
    found, places = list[npt.NDArray[np.float64]](), np.full(given.documents.rows, -1, dtype=np.int64)
    places[row[order]] = np.arange(row.size)
    for number, file in enumerate(given.files):
        wanted = in_file[order][position[order] == number]
        found += _rows(store, file, wanted)
    lengths = sorted({vectors.shape[1] for vectors in found})
    if len(lengths) > 1:
        raise SourceError("vectors differ in length", found=lengths, expected="one length in all files")
    return np.concatenate(found or [np.empty((0, 1))]), places


def _rows(store: Store, file: Part, wanted: I64) -> Iterator[npt.NDArray[np.float64]]:
    """The vectors of some rows of a file, ascending; a row may be wanted for several documents."""
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
                    expected="one length, finite numbers, none missing",
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
            f"{file.name}: no Parquet file of vectors", found=error, expected="columns `uri` and `embedding`"
        ) from error
