"""What a step saw, and when a document was seen: computed from the manifests, never logged.

Does not belong here: which steps a run really took (its timeline), and what a document says (curated parts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from plinth.context import Context
from plinth.errors import MissingError
from plinth.records import Manifest
from plinth.tokens.order import Order, SequenceRef
from plinth.tokens.packing_layout import Layout, open_layout
from plinth.tokens.reader import DocumentSpan, ShardReader
from plinth.tokens.steps import Steps
from plinth.tokens.streams import bucket_of


@dataclass(frozen=True)
class Piece:
    """The tokens of a document that lie in a sequence.

    Args:
        document: the whole document in its bucket's stream.
        first: position in the sequence of its first token there.
        tokens: how many of its tokens are there; where it goes on in its middle, the first is only its context.
    """

    document: DocumentSpan
    first: int
    tokens: int


@dataclass(frozen=True)
class BatchSequence:
    """One row of a step's global batch with the documents in it, in order.

    Concatenated, their tokens add up to S + 1. Packed best-fit, an end-of-text may come before them, and padding after.
    """

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
    streams = {name: _open(ctx, mixture, shards, name) for name in sorted({ref.bucket for ref in refs})}
    laid = [_laid(streams[ref.bucket].layout, ref) for ref in refs]
    wanted = [
        (ref.bucket, start, row, number) for row, ref in enumerate(refs) for number, (start, *_) in enumerate(laid[row])
    ]
    documents: list[dict[int, tuple[Piece, ...]]] = [{} for _ in refs]
    for stream, start, row, number in sorted(wanted):  # so that each part of an index is read once
        _, tokens, first = laid[row][number]
        spans = streams[stream].reader.documents(start, start + tokens)
        documents[row][number] = tuple(_piece(span, start, tokens, first) for span in spans)
    return [
        BatchSequence(row, ref, tuple(piece for _, pieces in sorted(documents[row].items()) for piece in pieces))
        for row, ref in enumerate(refs)
    ]


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
    steps = order.steps(batches)
    seen = []
    for name in (stream for stream in order.buckets if bucket_of(stream) == bucket):
        stream = _open(ctx, mixture, shards, name)
        for span in stream.reader.find(document, part):
            for held in stream.layout.holding(span.start, span.tokens):
                for epoch, position in order.positions(name, held.sequence):
                    taken = steps.step_of(position)
                    if taken is not None:
                        seen.append(Sighting(*taken, epoch, held.sequence, held.tokens))
    return sorted(seen, key=lambda sighting: (sighting.step, sighting.row))


@dataclass(frozen=True)
class _Stream:
    reader: ShardReader
    layout: Layout


def _open(ctx: Context, mixture: Manifest, shards: Mapping[str, Manifest], stream: str) -> _Stream:
    opened = reader(ctx, mixture, shards, stream)
    return _Stream(opened, open_layout(ctx.store, ctx.refs.load, mixture, stream, opened.tokens))


def _laid(layout: Layout, ref: SequenceRef) -> list[tuple[int, int, int]]:
    """Start in the stream, tokens, and place in the sequence of its pieces."""
    pieces = layout.pieces(np.array([ref.index]))
    lengths = pieces.tokens.tolist()
    place = int(not lengths or lengths[0] <= layout.width)  # after an end-of-text, but for what fills a whole row
    places = accumulate(lengths, initial=place)
    return list(zip(pieces.starts.tolist(), lengths, places, strict=False))


def reader(ctx: Context, mixture: Manifest, shards: Mapping[str, Manifest], stream: str) -> ShardReader:
    """The tokens of a stream, if they are those the mixture was made from.

    Raises:
        MissingError: they are not given, or are others.
    """
    bucket = bucket_of(stream)
    expected = mixture.inputs.get(f"{bucket}/shards")
    found = shards[bucket].digest if bucket in shards else None
    if found is None or found != expected:
        raise MissingError(
            f"the shards of {bucket} are not those of the mixture",
            found=found or "none",
            expected=expected,
            remedy="load the manifests that the mixture names as its inputs",
        )
    return ShardReader(ctx.store, shards[bucket], stream)


def _piece(span: DocumentSpan, start: int, tokens: int, place: int) -> Piece:
    """What of a document lies in the span `start` to `start + tokens`, which is laid from `place` on."""
    first, stop = max(span.start, start), min(span.start + span.tokens, start + tokens)
    return Piece(span, place + first - start, stop - first)
