"""The survivor of a cluster: the rule of the recipe as one number per document, smaller is better.

    smallest_id    nothing but the id
    longest        the most UTF-8 bytes
    earliest       the first capture; a document without a time comes after all others
    best_quality   the highest value of an annotation's column; no value comes last

Before any of them goes the bucket: those named in `prefer`, in that order, then all others. After them goes the
id, so the choice depends on the members alone, never on the order of parts or the number of workers.

The number: 8 bits for the bucket's place, 56 for the rule. Times are microseconds; of a float's 64 bits the
upper 56 count, about 13 decimal digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, run_items
from plinth.corpus.dedup import document_numbers
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.dedup.shuffle import halves
from plinth.corpus.sidecars import Slot, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_aligned
from plinth.storage.store import Store
from plinth_text.arrays import F64, U64

VERSION = "1"
WIDTH = 3  # columns of the table: the id's big-endian halves, the rank

_VALUE_BITS = 56
_LAST = np.uint64(2**_VALUE_BITS - 1)


def build(
    ctx: Context,
    params: Dedup,
    documents: Mapping[str, Manifest],
    lengths: Sequence[Part],
    quality: Mapping[str, Manifest] | None,
) -> Part:
    """Id and rank of every document as a flat column of `WIDTH` uint64.

    Args:
        lengths: by slot, the part with its documents' `text_bytes`.
        quality: by bucket, the annotation that `best_quality` looks at.
    """
    places = slots(documents, **({"quality": quality} if quality else {}))
    items = []
    for slot, length in zip(places, lengths, strict=True):
        read = {"longest": length, "best_quality": slot.sides.get("quality")}.get(params.keep)
        place = params.prefer.index(slot.bucket) if slot.bucket in params.prefer else len(params.prefer)
        column = params.quality.split(".", 1)[1] if params.quality else ""
        keys = (slot.documents.blob.sha256, read.blob.sha256 if read else "", str(place), column)
        items.append(Item(keys, _Rank(slot, read, place, column, params.keep), slot.documents.rows))
    step = Step(name="dedup/rank", version=VERSION, params={"keep": params.keep})
    parts = [made[0] for made in run_items(ctx, step, _rank, items, label="dedup ranks")]
    return document_numbers.joined(ctx, "dedup rank table", parts)


@dataclass(frozen=True)
class _Rank:
    slot: Slot
    read: Part | None
    place: int
    column: str
    keep: str


def _rank(store: Store, task: _Rank) -> tuple[Part, ...]:
    chunks = [np.empty((0, WIDTH), np.uint64)]
    for ids, values in _columns(store, task):
        high, low = halves(ids)
        chunks.append(np.stack([high, low, np.uint64(task.place << _VALUE_BITS) | values], axis=1))
    return (document_numbers.write(store, "ranks.flat", np.concatenate(chunks)),)


def _columns(store: Store, task: _Rank) -> Iterator[tuple[pa.Array, U64]]:
    wanted = ["id", "captured_at"] if task.keep == "earliest" else ["id"]
    column = {"longest": "text_bytes", "best_quality": task.column}.get(task.keep)
    sources: list[tuple[Part, list[str]]] = [(task.slot.documents, wanted)]
    if task.read is not None and column:
        sources.append((task.read, [column]))
    for first, *rest in iter_aligned(store, *sources):
        if task.keep == "earliest":
            values = _times(first.column("captured_at"))
        elif rest and column:
            values = _descending(_nested(rest[0], column))
        else:
            values = np.zeros(first.num_rows, dtype=np.uint64)
        yield first.column("id"), values


def _nested(batch: pa.RecordBatch, column: str) -> pa.Array:
    return batch.column(column)


def _times(column: pa.Array) -> U64:
    """Microseconds, as a number that is never negative; none is last."""
    micros = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    bounded = np.clip(micros, -(2**54), 2**54) + 2**54
    return np.where(pc.is_valid(column).to_numpy(zero_copy_only=False), bounded.astype(np.uint64), _LAST)


def _descending(column: pa.Array) -> U64:
    """The larger the value, the smaller the number; no value, or none that compares, is last."""
    floats = pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy(zero_copy_only=False)
    return np.where(np.isnan(floats), _LAST, _LAST - np.uint64(1) - np.minimum(_ordered(floats), _LAST - np.uint64(1)))


def _ordered(floats: F64) -> U64:
    """The upper bits of each float as an unsigned number that compares like it (IEEE 754)."""
    bits = (floats + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    negative = bits >> np.uint64(63) == 1
    flipped = np.where(negative, ~bits, bits | np.uint64(1 << 63))
    return flipped >> np.uint64(64 - _VALUE_BITS)
