"""What a step saw, and when a document was seen: computed from the manifests, never logged.

Does not belong here: which steps a run really took (its timeline), and what a document says (curated parts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plinth.context import Context
from plinth.errors import MissingError
from plinth.records import Manifest
from plinth.tokens.order import Order, SequenceRef
from plinth.tokens.packing import sequences_of
from plinth.tokens.reader import DocumentSpan, ShardReader
from plinth.tokens.steps import Steps


@dataclass(frozen=True)
class Piece:
    """The tokens of a document that lie in a sequence.

    Args:
        document: the whole document in its bucket's stream.
        first: position in the sequence of its first token there.
        tokens: how many of its tokens are there.
    """

    document: DocumentSpan
    first: int
    tokens: int


@dataclass(frozen=True)
class BatchSequence:
    """One row of a step's global batch with the documents in it, in order; their tokens add up to S + 1."""

    row: int
    sequence: SequenceRef
    documents: tuple[Piece, ...]


@dataclass(frozen=True)
class Sighting:
    """One sequence of a step that holds tokens of a document."""

    step: int
    row: int
    epoch: int
    sequence: int
    tokens: int


def documents_of_step(
    ctx: Context, mixture: Manifest, shards: Mapping[str, Manifest], step: int, batches: int | Steps
) -> list[BatchSequence]:
    """The sequences of a step's global batch with their documents, in the order of the batch.

    Raises:
        MissingError: the run has no such step, or a bucket's shards are not given.
    """
    refs = Order(mixture).step(step, batches)
    readers = {bucket: reader(ctx, mixture, shards, bucket) for bucket in sorted({ref.bucket for ref in refs})}
    found: dict[int, BatchSequence] = {}
    for row, ref in sorted(enumerate(refs), key=lambda item: (item[1].bucket, item[1].start)):  # each index part once
        spans = readers[ref.bucket].documents(ref.start, ref.start + ref.tokens)
        found[row] = BatchSequence(row, ref, tuple(_piece(span, ref) for span in spans))
    return [found[row] for row in range(len(refs))]


def steps_of_document(
    ctx: Context,
    mixture: Manifest,
    shards: Mapping[str, Manifest],
    bucket: str,
    document: str,
    batches: int | Steps,
    *,
    part: int | None = None,
) -> list[Sighting]:
    """Every step that saw a document (hexadecimal id), in order of steps; empty when none did.

    With `part`, the number of its curated part, only that part of the index is searched.

    Raises:
        MissingError: the bucket's shards are not given.
    """
    order = Order(mixture)
    if bucket not in order.buckets:
        return []
    available = order.available[order.buckets.index(bucket)]
    steps = order.steps(batches)
    seen = []
    for span in reader(ctx, mixture, shards, bucket).find(document, part):
        for index in sequences_of(span.start, span.tokens, order.sequence_tokens, available):
            first = index * order.sequence_tokens
            inside = min(span.start + span.tokens, first + order.sequence_tokens + 1) - max(span.start, first)
            for epoch, position in order.positions(bucket, index):
                taken = steps.step_of(position)
                if taken is not None:
                    seen.append(Sighting(*taken, epoch, index, inside))
    return sorted(seen, key=lambda sighting: (sighting.step, sighting.row))


def reader(ctx: Context, mixture: Manifest, shards: Mapping[str, Manifest], bucket: str) -> ShardReader:
    """The shards of a bucket, if they are those the mixture was made from.

    Raises:
        MissingError: they are not given, or are others.
    """
    expected = mixture.inputs.get(f"{bucket}/shards")
    found = shards[bucket].digest if bucket in shards else None
    if found is None or found != expected:
        raise MissingError(
            f"the shards of {bucket} are not those of the mixture",
            found=found or "none",
            expected=expected,
            remedy="load the manifests that the mixture names as its inputs",
        )
    return ShardReader(ctx.store, shards[bucket])


def _piece(span: DocumentSpan, ref: SequenceRef) -> Piece:
    first = max(span.start, ref.start)
    stop = min(span.start + span.tokens, ref.start + ref.tokens)
    return Piece(span, first - ref.start, stop - first)
