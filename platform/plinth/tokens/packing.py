"""Packing of documents into sequences of S tokens.

Packings are `concatenate` and `best-fit`. Best-fit-decreasing is computed once per bucket and stored as an index. The
module `packing_layout` maps sequences to pieces of documents, and spans to sequences, for both packings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.compute.context import Context, Item, add_stats, manifest, run_items
from plinth.errors import MissingError
from plinth.records import Frozen, Manifest, Part, Step
from plinth.storage.store import Store
from plinth.tokens.shards.index import open_part, write_mapped
from plinth.tokens.shards.parameters import Stream, streams_of
from plinth.tokens.shards.reader import ShardReader
from plinth_text.compiled import compiled

# How documents fill sequences: where sequences begin, which tokens are targets, what is dropped.
#
# S is the recipe's `sequence_tokens`. A sequence has S + 1 places: the tokens in the first S are inputs, those in
# the last S are targets. It is laid out of *pieces*, spans of its bucket's stream.
#
# `concatenate`: sequence k is tokens k S to k S + S of the stream, both included. Neighbors share one token, the
# last target of one and the first input of the next, so that every token but the stream's first is a target
# exactly once in an epoch. The tail that fills no sequence is dropped. Nothing is padded.
#
# `best-fit`: a sequence begins with end-of-text, then come pieces (see `pack`): whole documents, and the rests of
# longer ones; then padding, which is end-of-text too. A document longer than S first fills whole sequences with S of
# its tokens each; those after its first begin with the token before them instead of end-of-text. The rest also begins
# with the token before it, as its context. Every token of the stream is a target exactly once in an epoch, and always
# after the token that it follows in its document, or after an end-of-text if it is the document's first. Padding and
# context are not scored.
#
# With document masks a token attends to its own document only, padding to padding. The first token of a document
# is a target like any other, though it can only be predicted from the end of another document: the model learns how
# texts begin. Starts are counted, so that the cost of leaving them out is known.

class PackingCounts(Frozen):
    """Sequences, targets and documents of a packed stream, per epoch.

    Attributes:
        sequences: number of whole sequences.
        targets: number of targets, S per sequence.
        padding: targets that are padding.
        masked: targets that are left out of the loss because they are context before a piece.
        starts: targets that are the first token of a document.
        dropped: tokens at the end of the stream that do not fill a sequence.
        documents: number of documents.
        split_documents: documents in the inputs of more than one sequence.
        split_fitting: split documents that would fit into one sequence.
    """

    tokens: int
    sequences: int
    targets: int
    padding: int
    masked: int
    starts: int
    dropped: int
    documents: int
    split_documents: int
    split_fitting: int = 0


def sequence_count(tokens: int, sequence_tokens: int) -> int:
    """Return the number of whole sequences in a concatenated stream."""
    return max(0, tokens - 1) // sequence_tokens


def sequences_of(start: int, tokens: int, sequence_tokens: int, sequences: int) -> range:
    """Return the sequences of a concatenated stream that contain any token of a span, as input or as target."""
    first = max(0, start - 1) // sequence_tokens
    return range(min(first, sequences), min((start + tokens - 1) // sequence_tokens + 1, sequences))


def measure(reader: ShardReader, sequence_tokens: int) -> PackingCounts:
    """Return the packing counts of a concatenated stream, computed from its document index."""
    sequences = sequence_count(reader.tokens, sequence_tokens)
    covered = sequences * sequence_tokens
    starts = split = fitting = 0
    for first, lengths in reader.index_batches():
        starts += int(((first >= 1) & (first <= covered)).sum())
        last = np.minimum(first + lengths, covered) - 1
        cut = (first < covered) & (first // sequence_tokens != last // sequence_tokens)
        split += int(cut.sum())
        fitting += int((cut & (lengths <= sequence_tokens)).sum())
    return PackingCounts(
        tokens=reader.tokens,
        sequences=sequences,
        targets=covered,
        padding=0,
        masked=0,
        starts=starts,
        dropped=reader.tokens - min(reader.tokens, covered + 1),
        documents=reader.documents_count,
        split_documents=split,
        split_fitting=fitting,
    )


# The pieces of every sequence of a best-fit bucket, made once: `{bucket}/packed`.
#
#     index parts of a stream  -> windows of at least WINDOW_SEQUENCES sequences, in stream order
#     window                   -> blocks of at least BLOCK_SEQUENCES, of whole stretches of STRETCH_DOCUMENTS
#     block                    -> sequences (`pack`)
#     window                   -> `packed-00000.arrow`                                            (cached per window)
#
# Memory is one window, a new part at the end costs only the last, and windows are packed side by side. A sequence takes
# its documents from one block, so that they lie near each other in the shards and in the index. A part is an Arrow file
# with one row per sequence, uncompressed: the loader maps it and finds any sequence in constant time.

VERSION = "2"

WINDOW_SEQUENCES = 2048

#: The last sequences of a block are filled in part. Padding of log-normal lengths (mean 1,000 tokens) in blocks of
#: 128, 512 and 2,048 sequences of 4,096: 0.5%, 0.2%, 0.06%.
BLOCK_SEQUENCES = 512
#: Documents after which a block may end.
STRETCH_DOCUMENTS = 4096

PIECE = pa.struct(
    [
        pa.field("start", pa.int64(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("context", pa.int8(), nullable=False),
    ]
)
SCHEMA = pa.schema([pa.field("pieces", pa.list_(pa.field("item", PIECE, nullable=False)), nullable=False)])

_COUNTS = tuple(PackingCounts.model_fields)


@dataclass(frozen=True)
class _Window:
    index: tuple[Part, ...]
    sequence_tokens: int


def run(ctx: Context, bucket: str, sequence_tokens: int, shards: Manifest) -> Manifest:
    """Pack every stream of a bucket by best fit.

    The parts are `packed-*.arrow` with `SCHEMA` and one row per sequence; streams with a label use
    `{label}/packed-*.arrow`. The stats of a part are `first` (number of its first sequence in the stream), and `start`
    and `tokens` (its span of the stream). The stats of the manifest are `sequence_tokens`, `packing`, and the counts of
    `PackingCounts` for every stream, by label.
    """
    asset = f"{bucket}/packed"
    step = Step(name="tokens.packing", version=VERSION, params={"sequence_tokens": sequence_tokens})
    parts: list[Part] = []
    counts: dict[str, dict[str, int]] = {}
    for stream in streams_of(shards):
        made = _pack(ctx, asset, step, stream, shards, sequence_tokens)
        parts += made
        sums = add_stats(made)
        counts[stream.label] = {name: int(sums.get(name, 0)) for name in _COUNTS}
    stats = {"packing": "best-fit", "sequence_tokens": sequence_tokens, "streams": counts}
    return manifest(asset, step, {f"{bucket}/shards": shards}, parts, stats)


def counts_of(sequence_tokens: int, shards: Manifest, stream: Stream, packed: Manifest | None) -> PackingCounts:
    """Return the packing counts of a stream that is packed by best fit.

    Raises:
        MissingError: `packed` is missing, or derives from other shards or another sequence length.
    """
    found = "none" if packed is None else f"{packed.inputs}, sequences of {packed.stats['sequence_tokens']}"
    if (
        packed is None
        or packed.inputs.get(shards.asset) != shards.digest
        or packed.stats["sequence_tokens"] != sequence_tokens
    ):
        raise MissingError(
            f"no packed index of {shards.asset}",
            found=found,
            expected=f"{shards.digest}, sequences of {sequence_tokens}",
            remedy=f"run `plinth run --select {stream.bucket}/packed`",
        )
    return PackingCounts.model_validate(packed.stats["streams"][stream.label])


def measure_best_fit(store: Store, shards: Manifest, stream: Stream, sequence_tokens: int) -> PackingCounts:
    """Return the packing counts that `run` would compute for a stream, without storing anything.

    Only one window is in memory at a time.
    """
    total = dict.fromkeys(_COUNTS, 0)
    for window in _windows(shards.named(f"{stream.folder}index-"), WINDOW_SEQUENCES * sequence_tokens):
        pieces, _, lengths = _packed(store, _Window(window, sequence_tokens))
        for name, count in _counts(pieces, lengths, sequence_tokens).items():
            total[name] += count
    return PackingCounts(**total)


def _pack(ctx: Context, asset: str, step: Step, stream: Stream, shards: Manifest, sequence_tokens: int) -> list[Part]:
    windows = _windows(shards.named(f"{stream.folder}index-"), WINDOW_SEQUENCES * sequence_tokens)
    items = [
        Item(tuple(part.blob.sha256 for part in window), _Window(window, sequence_tokens), sum(p.rows for p in window))
        for window in windows
    ]
    done = [parts[0] for parts in run_items(ctx, step, _window, items, label=f"{asset}: {stream.name}")]
    firsts = [0, *accumulate(part.rows for part in done)]
    return [
        part.model_copy(
            update={"name": f"{stream.folder}packed-{i:05d}.arrow", "stats": {**part.stats, "first": firsts[i]}}
        )
        for i, part in enumerate(done)
    ]


def _windows(index: Sequence[Part], tokens: int) -> list[tuple[Part, ...]]:
    """Group index parts into windows of at least `tokens` tokens. If parts remain at the end, they join the last
    window."""
    windows: list[tuple[Part, ...]] = []
    group: tuple[Part, ...] = ()
    for part in index:
        group = (*group, part)
        if sum(int(one.stats["tokens"]) for one in group) >= tokens:
            windows, group = [*windows, group], ()
    if group and windows:
        return [*windows[:-1], windows[-1] + group]
    return [*windows, group] if group else windows


def _window(store: Store, task: _Window) -> tuple[Part, ...]:
    pieces, starts, lengths = _packed(store, task)
    stats = {"start": int(starts[0]) if len(starts) else 0, **_counts(pieces, lengths, task.sequence_tokens)}
    return (write_mapped(store, "packed.arrow", _batch(pieces), stats),)


def _packed(store: Store, task: _Window) -> tuple[PackedPieces, NDArray[np.int64], NDArray[np.int64]]:
    """Return the packed sequences of a window, with the starts and lengths of its documents."""
    starts, lengths, stretches = _documents(store, task.index)
    edges = _blocks(lengths, stretches, BLOCK_SEQUENCES * task.sequence_tokens)
    blocks = [pack(starts[first:stop], lengths[first:stop], task.sequence_tokens) for first, stop in pairwise(edges)]
    return concatenate_pieces(blocks), starts, lengths


def _documents(store: Store, index: Sequence[Part]) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
    """Return the starts and lengths of the documents in index parts, and the document numbers where a block may end."""
    parts = [open_part(store, part) for part in index]
    stretches: list[int] = []
    for first, stop in pairwise([0, *accumulate(len(part) for part in parts)]):
        stretches += [*range(first + STRETCH_DOCUMENTS, stop, STRETCH_DOCUMENTS), stop]
    nothing = np.empty(0, np.int64)
    starts, lengths = ([nothing, *(getattr(part, name) for part in parts)] for name in ("starts", "tokens"))
    return np.concatenate(starts), np.concatenate(lengths), stretches


def _blocks(lengths: NDArray[np.int64], stretches: Sequence[int], tokens: int) -> list[int]:
    """Return the document numbers at which blocks begin and end.

    Each block joins whole stretches until it has at least `tokens` tokens. The stretches that are left at the end join
    the last block.
    """
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    edges = [0]
    for end in stretches:
        if before[end] - before[edges[-1]] >= tokens:
            edges.append(end)
    if edges[-1] < len(lengths):
        edges[1 if len(edges) == 1 else -1 :] = [len(lengths)]
    return edges


def _batch(pieces: PackedPieces) -> pa.RecordBatch:
    columns = [pa.array(pieces.starts), pa.array(pieces.tokens), pa.array(pieces.context)]
    items = pa.StructArray.from_arrays(columns, fields=list(PIECE))
    return pa.RecordBatch.from_arrays(
        [pa.ListArray.from_arrays(pa.array(pieces.offsets), items, type=SCHEMA.field("pieces").type)], schema=SCHEMA
    )


def _counts(pieces: PackedPieces, lengths: NDArray[np.int64], sequence_tokens: int) -> dict[str, int]:
    """Return the counts of one window, as in `PackingCounts`."""
    tokens, targets = int(lengths.sum()), len(pieces) * sequence_tokens
    alone = pieces.tokens > sequence_tokens  # their context is the first input and takes no target
    masked = int(pieces.context[~alone].sum())
    return {
        "tokens": tokens,
        "sequences": len(pieces),
        "targets": targets,
        "padding": targets - tokens - masked,
        "masked": masked,
        "starts": int((lengths > 0).sum()),
        "dropped": 0,
        "documents": len(lengths),
        "split_documents": int((lengths > sequence_tokens).sum()),
        "split_fitting": 0,
    }


# Best-fit-decreasing: documents to sequences of S targets, no document cut that fits.
#
# After Ding et al., "Fewer Truncations Improve Language Modeling" (arXiv:2404.10830): documents longer than S
# are cut into pieces of S; their rests and all shorter documents are packed, longest first, each into the
# open sequence with the least space that holds it. Sizes are whole numbers up to S, so open sequences are kept by
# their space and found in a tree over 0 … S: O(n log S), whatever the number of sequences.
#
# A *piece* is a span of the stream that is copied into a sequence. A piece that continues a document in its middle
# begins with the token before it, which is its context and no target, and takes a place of its own: the rest of a
# document of n S + r tokens takes r + 1 places.

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PackedPieces:
    """Pieces of documents in sequences, as columns; sequence i has the pieces `offsets[i]` to `offsets[i + 1]`
    (exclusive).

    n  sequences    m  pieces

    Attributes:
        offsets: [n + 1] int32.
        starts: [m] int64, first token of a piece in the stream, including its context.
        tokens: [m] int32, number of tokens in a piece, including its context.
        context: [m] int8, 1 if the first token is only context, else 0.
    """

    offsets: NDArray[np.int32]
    starts: NDArray[np.int64]
    tokens: NDArray[np.int32]
    context: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def scored(self) -> NDArray[np.int64]:
        """Number of targets in each sequence [n] that are neither padding nor context."""
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.tokens - self.context, dtype=np.int64)])
        return np.asarray(total[self.offsets[1:]] - total[self.offsets[:-1]])


def pack(starts: NDArray[np.int64], lengths: NDArray[np.int64], sequence_tokens: int) -> PackedPieces:
    """Pack whole documents into sequences of S tokens.

    Sequences that a single piece fills come first. The other sequences follow in the order in which they were opened.
    Within a sequence, pieces keep the order of the stream. The result is deterministic.

    Args:
        starts, lengths: [documents] spans of the stream, including end-of-text, in stream order.
        sequence_tokens: S.
    """
    item_starts, sizes, full = _items(starts, lengths, sequence_tokens)
    bins, opened = _best_fit(sizes, sequence_tokens, 1 << sequence_tokens.bit_length())
    return PackedPieces(*_columns(starts, lengths, item_starts, sizes, bins, opened, full, sequence_tokens))


def concatenate_pieces(many: Sequence[PackedPieces]) -> PackedPieces:
    """Join the sequences of several `PackedPieces`, one after another."""
    before = np.cumsum([0, *(len(pieces.starts) for pieces in many)])
    offsets = [pieces.offsets[1:] + before[i] for i, pieces in enumerate(many)]
    return PackedPieces(
        np.concatenate([np.zeros(1, np.int32), *offsets]).astype(np.int32),
        np.concatenate([np.empty(0, np.int64), *(pieces.starts for pieces in many)]),
        np.concatenate([np.empty(0, np.int32), *(pieces.tokens for pieces in many)]),
        np.concatenate([np.empty(0, np.int8), *(pieces.context for pieces in many)]),
    )


def _items(starts: Ints, lengths: Ints, capacity: int) -> tuple[Ints, NDArray[np.int32], int]:
    """Return start (context included) and size of each item to pack, and the number of pieces that fill a sequence."""
    item_starts, sizes = np.empty(len(lengths), np.int64), np.empty(len(lengths), np.int32)
    found, full = items(starts, lengths, capacity, item_starts, sizes)
    return item_starts[:found], sizes[:found], full


def _best_fit(sizes: NDArray[np.int32], capacity: int, leaves: int) -> tuple[Ints, int]:
    """Return the bin of every item, and the number of bins. Of bins with equal free space, the newest is filled.

    `leaves` is a power of two above `capacity`.
    """
    older, order, bins = (np.empty(len(sizes), np.int64) for _ in range(3))
    held, head = np.zeros(2 * leaves, np.bool_), np.full(capacity + 1, -1, np.int64)
    opened = best_fit(sizes, capacity, leaves, held, head, older, order, np.zeros(capacity + 2, np.int64), bins)
    return bins, opened


def _columns(
    starts: Ints, lengths: Ints, item_starts: Ints, sizes: NDArray[np.int32], bins: Ints, opened: int, full: int,
    capacity: int,
) -> tuple[NDArray[np.int32], Ints, NDArray[np.int32], NDArray[np.int8]]:  # fmt: skip
    """Return the columns of `PackedPieces` for items that are assigned to bins."""
    pieces = full + len(sizes)
    offsets, begins = np.zeros(full + opened + 1, np.int32), np.empty(pieces, np.int64)
    tokens, context = np.empty(pieces, np.int32), np.zeros(pieces, np.int8)
    free = np.empty(opened, np.int32)
    columns(
        starts, lengths, item_starts, sizes, bins, opened, full, capacity, free, offsets, begins, tokens, context
    )  # fmt: skip
    return offsets, begins, tokens, context


@compiled
def items(starts: Ints, lengths: Ints, capacity: int, item_starts: Ints, sizes: NDArray[np.int32]) -> tuple[int, int]:
    """Write the start and size of each item to pack into `item_starts` and `sizes`.

    Return the number of items, and the number of pieces that fill a sequence alone.
    """


@compiled
def best_fit(
    sizes: NDArray[np.int32], capacity: int, leaves: int, held: NDArray[np.bool_], head: Ints, older: Ints,
    order: Ints, places: Ints, bins: Ints,
) -> int:  # fmt: skip
    """Write the bin of every item into `bins`, and return the number of bins.

    The arrays from `held` to `places` are scratch memory (`packing.c`).
    """


@compiled
def columns(
    starts: Ints, lengths: Ints, item_starts: Ints, sizes: NDArray[np.int32], bins: Ints, opened: int, full: int,
    capacity: int, free_places: NDArray[np.int32], offsets: NDArray[np.int32], begins: Ints, tokens: NDArray[np.int32],
    context: NDArray[np.int8],
) -> None:  # fmt: skip
    """Write the columns of `PackedPieces` into the output arrays. `free_places` is scratch memory, [bins]."""
