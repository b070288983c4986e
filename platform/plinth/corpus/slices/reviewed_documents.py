"""Documents of the corpus that reviewers labelled, as labelled documents of the slice `review/{bucket}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.compute.stage import Item, run_items
from plinth.corpus.slices.generate import Labelled
from plinth.corpus.slices.review_labels import Review
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store

VERSION = "1"
SCHEMA = pa.schema([pa.field("id", pa.binary(16), nullable=False), pa.field("text", pa.large_string(), nullable=False)])


@dataclass(frozen=True)
class _Task:
    ids: tuple[bytes, ...]
    documents: Part


def rows(
    ctx: Context, gate: str, reviews: Sequence[Review], documents: Mapping[str, Manifest]
) -> tuple[tuple[str, Part], ...]:
    """Id and text of the labelled documents, one part for every part of documents, with its bucket. Nothing is read
    where there are no labels."""
    ids = tuple(sorted({bytes.fromhex(review.id) for review in reviews}))
    if not ids:
        return ()
    step = Step(name="slices/reviewed", version=VERSION, params={"ids": [one.hex() for one in ids]})
    parts = [(bucket, part) for bucket in sorted(documents) for part in documents[bucket].named("part-")]
    items = [Item((part.blob.sha256,), _Task(ids, part), part.rows) for _, part in parts]
    made = run_items(ctx, step, _chosen, items, label=f"slices/{gate} reviews")
    return tuple((bucket, done[0]) for (bucket, _), done in zip(parts, made, strict=True) if done[0].rows)


def labelled(store: Store, found: Sequence[tuple[str, Part]], reviews: Sequence[Review]) -> list[Labelled]:
    """The documents with the reviewers' labels; one that was labelled for two reasons is there twice."""
    words: dict[str, list[Review]] = {}
    for review in reviews:
        words.setdefault(review.id, []).append(review)
    return [
        Labelled(row["text"], review.label == "bad", f"review/{bucket}", review.reason)
        for bucket, part in found
        for batch in iter_batches(store, part)
        for row in batch.to_pylist()
        for review in words.get(row["id"].hex(), ())
    ]


def _chosen(store: Store, task: _Task) -> tuple[Part, ...]:
    wanted = pa.array(task.ids, pa.binary(16))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(store, task.documents, ("id", "text")):
            some = batch.filter(pc.is_in(batch.column("id"), value_set=wanted))
            if some.num_rows:
                yield some

    return (write_batches(store, "part.parquet", SCHEMA, batches()),)
