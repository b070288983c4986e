"""Pairing of document parts with parts of their sidecars; numbering of all documents; samples of documents."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.errors import IntegrityError
from plinth.records import Manifest, Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.parts import iter_batches
from plinth.storage.store import CHUNK_BYTES, Store
from plinth_text.arrays import U64
from plinth_text.compiled import compiled

# Parts of documents over all buckets: matched with the parts of their sidecars, and their documents numbered.

# Match the parts of documents, over all buckets, with the parts of their sidecars.
#
# A sidecar's part has the same rows in the same order. A stage over one bucket names its parts
# `part-00000.parquet`; one over all buckets `{bucket}/part-00000.parquet`.


@dataclass(frozen=True)
class Slot:
    """One part of documents with the matching parts of its sidecars.

    Args:
        number: index among all slots. Slots are sorted by bucket name, and then by position in the manifest.
        bucket: name of the bucket.
        documents: the part of documents.
        sides: the parts of the sidecars, by the name that the caller gave.
    """

    number: int
    bucket: str
    documents: Part
    sides: Mapping[str, Part]

    @property
    def name(self) -> str:
        """Name that the part has in a manifest over all buckets."""
        return f"{self.bucket}/{self.documents.name}"


def slots(documents: Mapping[str, Manifest], **sides: Manifest | Mapping[str, Manifest]) -> tuple[Slot, ...]:
    """Return every part of documents with its sidecars.

    Args:
        documents: manifests of documents by bucket.
        sides: sidecars by name, each as a manifest over all buckets or as one manifest per bucket.

    Raises:
        IntegrityError: a sidecar is missing or belongs to other documents.
    """
    found: list[Slot] = []
    for bucket in sorted(documents):
        parts = documents[bucket].named("part-")
        columns = {name: _parts(side, bucket, name, parts) for name, side in sides.items()}
        for i, part in enumerate(parts):
            found.append(Slot(len(found), bucket, part, {name: column[i] for name, column in columns.items()}))
    return tuple(found)


def _parts(
    side: Manifest | Mapping[str, Manifest], bucket: str, name: str, documents: Sequence[Part]
) -> tuple[Part, ...]:
    if isinstance(side, Manifest):
        parts = side.named(f"{bucket}/part-")
    else:
        parts = side[bucket].named("part-") if bucket in side else ()
    if [part.rows for part in parts] != [part.rows for part in documents]:
        raise IntegrityError(
            f"{name} of bucket {bucket} does not belong to its documents",
            found=f"parts of {[part.rows for part in parts]} rows",
            expected=f"parts of {[part.rows for part in documents]} rows",
            remedy=f"recompute {name} from the current documents",
        )
    return parts


def summed(parts: Iterable[Part], names: Sequence[str]) -> dict[str, object]:
    """Return the sums of part statistics over all buckets (`{bucket}/part-*`). The key `buckets` has the sums of each
    bucket."""
    total = dict.fromkeys(names, 0)
    buckets: dict[str, dict[str, int]] = {}
    for part in parts:
        own = buckets.setdefault(part.name.split("/", 1)[0], dict.fromkeys(names, 0))
        for name in names:
            own[name] += int(part.stats[name])
            total[name] += int(part.stats[name])
    return {**total, "buckets": buckets}


# Documents of all slots under one number each, and columns over all of them as flat files.
#
# The number of a document is the number of documents in the slots before its own, plus its row. A column over
# all documents is a row of files of fixed-width values in that order. A reader maps one file at a time into memory.

VERSION = "1"


@dataclass(frozen=True)
class SlotNumbers:
    """Consecutive numbers of all documents. `bases[s]` is the number of the first document in part s, and the last
    value in `bases` is the number of all documents."""

    bases: tuple[int, ...]

    @property
    def documents(self) -> int:
        """Return the number of all documents."""
        return self.bases[-1]

    @property
    def key(self) -> str:
        """Text that identifies the document numbers, for the inputs of a task."""
        return "-".join(map(str, self.bases))


def layout(places: Sequence[Slot]) -> SlotNumbers:
    """Return the consecutive numbers of the documents in these parts."""
    return SlotNumbers((0, *accumulate(slot.documents.rows for slot in places)))


def write(store: Store, name: str, values: npt.NDArray[Any]) -> Part:
    """Write a flat column as a part, whose `rows` is the length of the column's first axis."""
    with store.staging(".flat") as path:
        with named_failures(path):
            values.tofile(path)
        blob = store.put_file(path)
    return Part(name=name, blob=blob, rows=len(values))


def open_flat(store: Store, part: Part, dtype: str, width: int = 1) -> npt.NDArray[Any]:
    """Memory-map a flat column, [rows] or [rows, width].

    Raises:
        MissingError, IntegrityError: the column is missing, incomplete, or has a different length than its rows.
    """
    path, kind = _path(store, part, dtype, width), np.dtype(dtype)
    shape = (part.rows,) if width == 1 else (part.rows, width)
    if part.rows == 0:
        return np.empty(shape, kind)
    return np.memmap(path, dtype=kind, mode="r", shape=shape)


def read_flat(store: Store, part: Part, dtype: str, first: int, count: int) -> npt.NDArray[Any]:
    """Read `count` values of a flat column from number `first` on. The memory that a mapped column takes grows with
    every page that is read; these values are read into memory that is freed.

    Raises:
        MissingError, IntegrityError: as in `open_flat`.
    """
    return np.fromfile(_path(store, part, dtype, 1), dtype, count, offset=first * np.dtype(dtype).itemsize)


def _path(store: Store, part: Part, dtype: str, width: int) -> Path:
    """Return the file of a flat column that is complete."""
    path, size = store.open_path(part.blob), width * np.dtype(dtype).itemsize
    if part.blob.bytes != part.rows * size:
        raise IntegrityError(
            f"the size of column {part.name} ({part.blob.md5}) does not match its number of rows",
            found=f"{part.blob.bytes} bytes",
            expected=f"{part.rows} rows of {size} bytes",
            remedy="delete the blob from the store and run the same command again",
        )
    return path


@dataclass(frozen=True)
class Column:
    """Flat column over all documents, stored in pieces of consecutive documents.

    A task opens one piece at a time, so that its memory does not depend on the number of documents. A column is pickled
    for tasks, and its size does not grow with the number of pieces.

    Args:
        listing: the pieces in order, as JSON.
    """

    listing: Part
    dtype: str
    width: int = 1

    @classmethod
    def of(cls, store: Store, pieces: Sequence[Part], dtype: str, width: int = 1) -> Column:
        """Return the column that consists of flat columns of consecutive documents."""
        data = fingerprint.canonical([piece.model_dump(mode="json") for piece in pieces])
        return cls(Part(name="column.json", blob=store.put_bytes(data), rows=len(pieces)), dtype, width)

    @property
    def key(self) -> str:
        """Digest that identifies the values."""
        return self.listing.blob.sha256

    def take(self, store: Store, numbers: U64) -> npt.NDArray[Any]:
        """Return the values of some documents, whose numbers are in ascending order."""
        found = [np.empty((0,) if self.width == 1 else (0, self.width), np.dtype(self.dtype))]
        first = 0
        for piece in map(Part.model_validate, json.loads(store.read_bytes(self.listing.blob))):
            begin, end = np.searchsorted(numbers, np.array([first, first + piece.rows], dtype=np.uint64))
            if begin < end:
                values = open_flat(store, piece, self.dtype, self.width)
                found.append(np.array(values[numbers[begin:end] - np.uint64(first)]))
            first += piece.rows
        taken: npt.NDArray[Any] = np.concatenate(found)
        return taken


#: Documents in one piece of a column, unless a single part has more: 192 MB of ranks.
PIECE_ROWS = 8_000_000


def joined(ctx: Context, name: str, parts: Sequence[Part], dtype: str, width: int = 1) -> Column:
    """Concatenate the flat columns of all parts of documents, in order, into pieces of about `PIECE_ROWS` rows."""
    groups: list[list[Part]] = []
    held = 0
    for part in parts:
        if not groups or held + part.rows > PIECE_ROWS:
            groups.append([])
            held = 0
        groups[-1].append(part)
        held += part.rows
    step = Step(name="dedup/flat", version=VERSION)
    items = [
        Item(tuple(part.blob.sha256 for part in group), tuple(group), sum(part.rows for part in group))
        for group in groups
    ]
    made = run_items(ctx, step, _join, items, label=name)
    return Column.of(ctx.store, [parts[0] for parts in made], dtype, width)


def _join(store: Store, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    with store.staging(".flat") as path:
        with named_failures(path):
            target = path.open("wb")
        with target:
            for part in parts:
                with store.open_path(part.blob).open("rb") as source:
                    while chunk := source.read(CHUNK_BYTES):
                        with named_failures(path):
                            target.write(chunk)
        blob = store.put_file(path)
    return (Part(name="all.flat", blob=blob, rows=sum(part.rows for part in parts)),)


def mask(ctx: Context, sources: Sequence[tuple[Part, str]]) -> Column:
    """Write a flat column of bytes that are 1 where a boolean column of a sidecar is true.

    The mask is a separate step. If a sidecar changes but its mask does not, later steps are not re-run.
    """
    step = Step(name="dedup/mask", version=VERSION)
    items = [Item((part.blob.sha256, column), (part, column), part.rows) for part, column in sources]
    made = [parts[0] for parts in run_items(ctx, step, _mask, items, label="dedup masks")]
    return joined(ctx, "dedup mask", made, "<u1")


def _mask(store: Store, source: tuple[Part, str]) -> tuple[Part, ...]:
    part, column = source
    chunks = [np.empty(0, np.uint8)]
    for batch in iter_batches(store, part, [column]):
        chunks.append(pc.fill_null(batch.column(column), False).to_numpy(zero_copy_only=False).astype(np.uint8))
    return (write(store, "mask.flat", np.concatenate(chunks)),)


# A sample of documents: those with the smallest keyed hash of their id.
#
# The choice depends on the ids and the key alone, so that it is the same on every machine and stays while documents
# are added; another key gives another, independent choice.

EXCERPT_CHARACTERS = 320


def ranks(ids: pa.Array, seed: int) -> U64:
    """Return the keyed hashes of 16-byte document ids."""
    if not len(ids):
        return np.empty(0, np.uint64)
    halves = np.frombuffer(ids.buffers()[1], dtype="<u8")[2 * ids.offset : 2 * (ids.offset + len(ids))]
    out = np.empty(len(ids), dtype=np.uint64)
    hash_ids(halves.reshape(-1, 2), seed, out)
    return out


def rank(identity: bytes, seed: int) -> int:
    """Return the keyed hash of one document id."""
    return int(ranks(pa.array([identity], pa.binary(16)), seed)[0])


@compiled
def hash_ids(halves: U64, seed: int, out: U64) -> None:
    """Write the hash of each document id to `out`. `halves` has both halves of the ids, [documents, 2]."""


class Smallest:
    """Collection that keeps the `count` items with the smallest ranks. Other items are not kept in memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._heap: list[tuple[int, int, Any]] = []  # negated, so that the largest chosen rank is on top
        self._offered = 0

    @property
    def limit(self) -> int:
        """Return an upper limit for ranks. Only items with a smaller rank can still be kept."""
        return -self._heap[0][0] if len(self._heap) == self.count else 2**64

    def offer(self, rank: int, item: Any) -> None:
        """Add an item if its rank is small enough. If ranks are equal, the earlier item is kept."""
        self._offered += 1
        entry = (-rank, -self._offered, item)
        if len(self._heap) < self.count:
            heapq.heappush(self._heap, entry)
        elif self.count and entry > self._heap[0]:
            heapq.heapreplace(self._heap, entry)

    def extend(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """Offer several pairs of a rank and an item."""
        for one, item in pairs:
            self.offer(one, item)

    def chosen(self) -> list[Any]:
        """Return the items that are kept, smallest rank first."""
        return [item for _, _, item in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))]


def excerpt(text: str, characters: int = EXCERPT_CHARACTERS) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text[: 4 * characters].split())
    return line if len(line) <= characters else line[: characters - 1] + "…"
