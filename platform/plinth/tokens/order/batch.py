"""The documents of a step, and the steps of a document: computed from the manifests, never logged.

Does not belong here: the steps that a run really took (its timeline), and the text of a document (curated parts).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.records import Manifest, Part, bucket_of
from plinth.tokens.order.order import Order, SequenceRef
from plinth.tokens.order.steps import Steps
from plinth.tokens.packing.best_fit import PackedPieces
from plinth.tokens.packing.layout import PackingLayout, open_layout
from plinth.tokens.shards.index import DocumentIndex, DocumentSpan


class DocumentPiece(NamedTuple):
    """The tokens of a document that lie in a sequence.

    Attributes:
        document: the whole document in its stream.
        first: position in the sequence of its first token there.
        tokens: how many of its tokens are there; where it continues in its middle, the first is only context.
    """

    document: DocumentSpan
    first: int
    tokens: int


class BatchSequence(NamedTuple):
    """One row of a step's global batch with its documents, in order.

    Concatenated, their tokens add up to S + 1. Packed best-fit, an end-of-text may come before them, and padding after.
    """

    row: int
    sequence: SequenceRef
    documents: tuple[DocumentPiece, ...]


@dataclass(frozen=True)
class DocumentUse:
    """One sequence of a step that holds tokens of a document."""

    step: int
    row: int
    epoch: int
    sequence: int
    tokens: int


def documents_of_step(
    ctx: Context, mixture: Manifest, shards: Mapping[str, Manifest] | None, step: int, batches: int | Steps
) -> list[BatchSequence]:
    """The sequences of a step's global batch with their documents, in the order of the batch.

    Args:
        shards: of the mixture's buckets, to be compared with those of the mixture; None to compare nothing and to
            load no manifest whose size grows with the corpus.

    Raises:
        MissingError: the run has no such step, or a bucket's shards are not given.
    """
    order = Order(mixture)
    window = order.step_window(step, batches)
    documents: list[tuple[DocumentPiece, ...]] = [()] * len(window)
    for number in np.unique(window.streams).tolist():
        stream = _open(ctx, mixture, shards, order.streams[number])
        rows = np.flatnonzero(window.streams == number)
        for row, own in zip(rows.tolist(), _documents(stream, window.indices[rows]), strict=True):
            documents[row] = own
    return list(map(BatchSequence, range(len(window)), order.refs(window), documents))


def steps_of_document(
    ctx: Context,
    mixture: Manifest,
    shards: Mapping[str, Manifest],
    bucket: str,
    document: str,
    batches: int | Steps,
    *,
    part: int | None = None,
) -> list[DocumentUse]:
    """Every step that saw a document (hexadecimal id), in order of steps; empty when none did.

    With `part`, the number of its curated part, only that part of the index is searched.

    Raises:
        MissingError: the bucket's shards are not given.
    """
    order = Order(mixture)
    seen: list[DocumentUse] = []
    for name in (stream for stream in order.streams if bucket_of(stream) == bucket):
        stream = _open(ctx, mixture, shards, name)
        for span in stream.index.find(bytes.fromhex(document), part):
            seen += _uses(order, stream.layout, name, span.start, span.tokens, batches)
    return sorted(seen, key=lambda use: (use.step, use.row))


class SpanSteps:
    """The steps of tokens of a stream: for many spans of one run, whose manifests are read once."""

    def __init__(self, ctx: Context, mixture: Manifest, batches: int | Steps) -> None:
        self._ctx, self._mixture, self._batches = ctx, mixture, batches
        self._order = Order(mixture)
        self._streams: dict[str, _Stream] = {}

    def of(self, stream: str, start: int, tokens: int) -> list[DocumentUse]:
        """Every sequence of a step that holds some of the tokens, in order of steps; none where the mixture has no
        such stream."""
        if stream not in self._order.streams:
            return []
        seen = _uses(self._order, self._stream(stream).layout, stream, start, tokens, self._batches)
        return sorted(seen, key=lambda use: (use.step, use.row))

    def find(self, bucket: str, document: str) -> list[tuple[str, DocumentSpan]]:
        """Where the run's streams of a bucket have a document (hexadecimal id)."""
        own = (stream for stream in self._order.streams if bucket_of(stream) == bucket)
        return [(name, span) for name in own for span in self._stream(name).index.find(bytes.fromhex(document))]

    def _stream(self, name: str) -> _Stream:
        if name not in self._streams:
            self._streams[name] = _open(self._ctx, self._mixture, None, name)
        return self._streams[name]


def _uses(
    order: Order, layout: PackingLayout, stream: str, start: int, tokens: int, batches: int | Steps
) -> Iterator[DocumentUse]:
    steps = order.steps(batches)
    for held in layout.placements(start, tokens):
        for epoch, position in order.positions(stream, held.sequence):
            for taken in steps.steps_of(position):
                yield DocumentUse(*taken, epoch, held.sequence, held.tokens)


@dataclass(frozen=True)
class _Stream:
    index: DocumentIndex
    layout: PackingLayout


def _open(ctx: Context, mixture: Manifest, shards: Mapping[str, Manifest] | None, stream: str) -> _Stream:
    """The index and the layout of a stream, from the parts that the mixture names."""
    if shards is not None:
        _require_same(mixture, shards, bucket_of(stream))
    named = mixture.stats["buckets"][stream]["index"]
    index = DocumentIndex(ctx.store, [Part.model_validate(part) for part in named["parts"]])
    return _Stream(index, open_layout(ctx.store, ctx.refs.load, mixture, stream, int(named["tokens"])))


def _documents(stream: _Stream, indices: NDArray[np.int64]) -> Iterator[tuple[DocumentPiece, ...]]:
    """The documents of sequences of a stream: one search for all of them."""
    pieces = stream.layout.pieces(indices)
    starts, lengths = pieces.starts, pieces.tokens.astype(np.int64)
    first = _positions(pieces, stream.layout.width)
    owners, spans = stream.index.within(starts, starts + lengths)
    begins = np.maximum(spans.starts, starts[owners])
    counts = np.minimum(spans.starts + spans.tokens, (starts + lengths)[owners]) - begins
    positions = first[owners] + begins - starts[owners]
    made = list(map(DocumentPiece, spans.records(), positions.tolist(), counts.tolist()))
    edges = np.searchsorted(owners, pieces.offsets)
    return (tuple(made[begin:end]) for begin, end in pairwise(edges.tolist()))


def _positions(pieces: PackedPieces, width: int) -> NDArray[np.int64]:
    """Position of each piece in its sequence: after an end-of-text, except a piece that fills the whole row."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(pieces.tokens, dtype=np.int64)])
    opens = pieces.offsets[:-1]
    held = np.diff(pieces.offsets)
    alone = np.zeros(len(pieces), np.bool_)
    alone[held > 0] = pieces.tokens[opens[held > 0]] > width
    return np.asarray(before[:-1] + np.repeat(np.where(alone, 0, 1) - before[opens], held))


def _require_same(mixture: Manifest, shards: Mapping[str, Manifest], bucket: str) -> None:
    expected = mixture.inputs.get(f"{bucket}/shards")
    found = shards[bucket].digest if bucket in shards else None
    if found is None or found != expected:
        raise MissingError(
            f"the shards of {bucket} are not those of the mixture",
            found=found or "none",
            expected=expected,
            remedy="load the manifests that the mixture names as its inputs",
        )
