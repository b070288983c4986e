"""The documents of a step, and the steps of a document. Both are computed from the manifests and never logged.

The timeline of a run has the steps that it actually took, and the curated parts have the text of a document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.corpus import planted_canaries
from plinth.corpus.canaries import BUCKET
from plinth.errors import MissingError, TrainingError
from plinth.records import Manifest, Part, bucket_of
from plinth.tokens.order.order import Order, SequenceRef
from plinth.tokens.order.steps import Steps
from plinth.tokens.packing import PackedPieces
from plinth.tokens.packing_layout import PackingLayout, open_layout
from plinth.tokens.shards.index import DocumentIndex, DocumentSpan
from plinth.tokens.shards.reader import ShardReader


class DocumentPiece(NamedTuple):
    """Tokens of a document within a sequence.

    Attributes:
        document: span of the whole document in its stream.
        first: position in the sequence at which the piece begins.
        tokens: number of the document's tokens in the piece; if the piece continues a document, the first token is only
            context.
    """

    document: DocumentSpan
    first: int
    tokens: int


class BatchSequence(NamedTuple):
    """Sequence in a step's global batch: its row, and its documents in order.

    The tokens of the documents add up to S + 1 with packing `concatenate`. With `best-fit`, an end-of-text token may
    come before them, and padding after them.
    """

    row: int
    sequence: SequenceRef
    documents: tuple[DocumentPiece, ...]


@dataclass(frozen=True)
class DocumentUse:
    """Use of a document's tokens in training: step, row, and the sequence that contains them."""

    step: int
    row: int
    epoch: int
    sequence: int
    tokens: int


def documents_of_step(
    ctx: Context, mixture: Manifest, shards: Mapping[str, Manifest] | None, step: int, batches: int | Steps
) -> list[BatchSequence]:
    """Return the sequences of a step's global batch with their documents, in the order of the batch.

    Args:
        shards: shards of the mixture's buckets; an error is raised if the mixture was made from other shards. If None,
            nothing is compared, and no manifest whose size grows with the corpus is loaded.

    Raises:
        MissingError: the run has no such step, or a bucket's shards are missing or differ.
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
    """Return every use of a document (hexadecimal id), in order of steps. The list is empty if no step trains on it.

    If `part` is given, only the index of the curated part with this number is searched.

    Raises:
        MissingError: the bucket's shards are missing, or differ from those of the mixture.
    """
    order = Order(mixture)
    seen: list[DocumentUse] = []
    for name in (stream for stream in order.streams if bucket_of(stream) == bucket):
        stream = _open(ctx, mixture, shards, name)
        for span in stream.index.find(bytes.fromhex(document), part):
            seen += _uses(order, stream.layout, name, span.start, span.tokens, batches)
    return sorted(seen, key=lambda use: (use.step, use.row))


class SpanSteps:
    """Look-up of the steps that use spans of tokens. Manifests are read once for all look-ups."""

    def __init__(self, ctx: Context, mixture: Manifest, batches: int | Steps) -> None:
        self._ctx, self._mixture, self._batches = ctx, mixture, batches
        self._order = Order(mixture)
        self._streams: dict[str, _Stream] = {}

    def of(self, stream: str, start: int, tokens: int) -> list[DocumentUse]:
        """Return every use of the `tokens` tokens that begin at `start` in a stream, in order of steps.

        The list is empty if the mixture has no such stream.
        """
        if stream not in self._order.streams:
            return []
        seen = _uses(self._order, self._stream(stream).layout, stream, start, tokens, self._batches)
        return sorted(seen, key=lambda use: (use.step, use.row))

    def find(self, bucket: str, document: str) -> list[tuple[str, DocumentSpan]]:
        """Return the locations of a document (hexadecimal id) in the run's streams of a bucket."""
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
    """Open the document index and the packing layout of a stream, from the parts that the mixture names."""
    if shards is not None:
        _require_same(mixture, shards, bucket_of(stream))
    named = mixture.stats["buckets"][stream]["index"]
    index = DocumentIndex(ctx.store, [Part.model_validate(part) for part in named["parts"]])
    return _Stream(index, open_layout(ctx.store, ctx.refs.load, mixture, stream, int(named["tokens"])))


def _documents(stream: _Stream, indices: NDArray[np.int64]) -> Iterator[tuple[DocumentPiece, ...]]:
    """Yield the documents of each sequence at `indices` of a stream, with one index search for all sequences."""
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
    """Return the position of each piece in its sequence.

    The first piece comes after an end-of-text token, unless it fills the whole sequence.
    """
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
            f"the shards of {bucket} differ from the mixture's shards",
            found=found or "none",
            expected=expected,
            remedy="first load the manifests that the mixture lists as inputs",
        )


# The training steps that take each planted copy, from the arithmetic of packing and order; nothing is trained for it.
#
#     copy -> span of the stream -> sequence (layout) -> positions (order) -> step, row (steps)
#
# A copy counts where all its tokens are targets of one row. Before training, every planted copy must have such a
# step: an exposure of zero would else mean nothing.

#: Copies that an error names.
NAMED = 5


class DrawnCopy(NamedTuple):
    """Planted copy of a canary: numbers of the canary and the copy, and the steps that train on all tokens of the copy.

    Steps are counted from 1. If there is no such step, `fault` has the reason.
    """

    canary: int
    copy: int
    steps: tuple[int, ...]
    fault: str = ""


def draws(ctx: Context, mixture: Manifest, shards: Manifest, canaries: Manifest, steps: Steps) -> list[DrawnCopy]:
    """Return every planted canary copy with the steps that train on it, in the order of the stream.

    Args:
        shards: shards of the bucket `canaries`.
        canaries: manifest from which these shards derive.
        steps: steps of the run.
    """
    reader = ShardReader(ctx.store, shards)
    layout = open_layout(ctx.store, ctx.refs.load, mixture, BUCKET, reader.tokens)
    spans = [span for starts, tokens in reader.index_batches() for span in zip(starts, tokens, strict=True)]
    documents = planted_canaries.planted_documents(ctx.store, canaries)
    order, found = Order(mixture), []
    for (canary, copy), (start, tokens) in zip(documents, spans, strict=True):
        if canary != planted_canaries.FILLER:
            found.append(_drawn(canary, copy, int(start), int(tokens) - 1, layout, order, steps))
    return found


def require_drawn(copies: Sequence[DrawnCopy]) -> None:
    """Check that the run trains on every planted copy.

    Raises:
        TrainingError: the run never trains on some copies; the error names them.
    """
    lost = [one for one in copies if not one.steps]
    if lost:
        named = "; ".join(f"canary {one.canary}, copy {one.copy}: {one.fault}" for one in lost[:NAMED])
        raise TrainingError(
            f"{len(lost)} canary copies would receive no loss, so their exposure would be meaningless",
            found=named + (f"; and {len(lost) - NAMED} more" if len(lost) > NAMED else ""),
            expected=f"all {len(copies)} copies, each entirely within a row of a training step",
            remedy="make mixture.total_tokens a multiple of every step's tokens, keep changed sequence lengths at "
            "multiples of each other, or remove corpus.canaries",
        )


def seen_through(copies: Sequence[DrawnCopy], step: int, skipped: Sequence[int] = ()) -> dict[int, int]:
    """Return the number of copies of each canary on which the run has trained by the end of `step`.

    Skipped steps are not counted.
    """
    left_out = set(skipped)
    counts = Counter(one.canary for one in copies for taken in one.steps if taken <= step and taken not in left_out)
    return dict(counts)


def _drawn(
    canary: int, copy: int, start: int, tokens: int, layout: PackingLayout, order: Order, steps: Steps
) -> DrawnCopy:
    # The token at position p of a sequence is the target of position p - 1, so position 0 is not a target.
    places = [place for place in layout.placements(start, tokens) if place.first >= 1 and place.tokens == tokens]
    if not places:
        return DrawnCopy(canary, copy, (), "no sequence has all its tokens as targets")
    taken, cut, unused = [], 0, 0
    for place in places:
        for _, position in order.positions(BUCKET, place.sequence):
            at = steps.step_of(position)
            if at is None:
                unused += 1
            elif (place.first - 1) // (row := steps.length(at[0])) != (place.first + tokens - 2) // row:
                cut += 1
            else:
                taken.append(at[0] + 1)
    if taken:
        return DrawnCopy(canary, copy, tuple(sorted(taken)))
    fault = (
        "a row ends in the middle of the copy"
        if cut
        else "its sequence is not part of a whole step"
        if unused
        else "the run never reads its sequence"
    )
    return DrawnCopy(canary, copy, (), fault)
