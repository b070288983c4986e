"""Batches of one rank, starting at any step.

The only state of a loader is the number of its next step. Rank r of W takes rows r G / W to (r + 1) G / W of each
step's global batch of G sequences. The global batch is therefore the same on any number of ranks, and no two ranks read
the same row. There is no random generator and no shuffle buffer.

A background thread gathers the sequences of the next steps, each step in one compiled pass.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError, RecipeError
from plinth.tokens.order.order import Order
from plinth.tokens.order.steps import Steps
from plinth.tokens.packing import PackedPieces
from plinth.tokens.packing_layout import Concatenated, JointLayout, PackingLayout
from plinth.tokens.reading.compact_batch import BufferPool, CompactBatch
from plinth.tokens.shards.reader import ShardReader, Tokens
from plinth_text.compiled import compiled

# Copy the pieces of sequences into rows: one compiled pass over the mapped shards of all streams, without the GIL.
#
#     B  sequences    S  targets of a sequence    p  pieces
#
# Tokens are copied as they are stored, 64 at a time, and compared with the end-of-text in the same registers: the pass
# costs as much as a copy. Rows lie anywhere in the shards, so the first cache lines of a piece are prefetched two
# pieces before, and its others while the piece before it is copied.

Ints = NDArray[np.int64]
Starts = NDArray[np.int32]
Located = tuple[NDArray[np.int64], NDArray[np.int64]]


class SequenceGather:
    """Copier of sequences from the shards of several streams. Shards are mapped when first needed.

    Streams are numbered in the given order, and token positions continue from one stream to the next.

    Args:
        readers: reader of each stream; all streams use the same tokenizer.
        contiguous: True if every sequence is one piece, whose end-of-text tokens separate its documents. If False, each
            piece belongs to a single document.

    Raises:
        MissingError, IntegrityError: a shard is absent, truncated or changed; raised when the shard is first read.
    """

    def __init__(self, readers: Sequence[ShardReader], *, contiguous: bool) -> None:
        self._readers, self._contiguous, self.dtype = readers, contiguous, readers[0].dtype
        self._begins = np.cumsum([0, *(reader.tokens for reader in readers)])
        starts = [np.array(reader.shard_starts, np.int64) + self._begins[i] for i, reader in enumerate(readers)]
        self._bounds = np.concatenate([*starts, self._begins[-1:]])
        self._owners = np.repeat(np.arange(len(readers)), [len(own) for own in starts])
        self._addresses = np.zeros(len(self._owners), np.int64)
        self._mapped: dict[int, Tokens] = {}  # keeps the memory of the addresses
        self._end_of_text = readers[0].end_of_text
        self._capacity = 4096

    def fill(
        self, streams: NDArray[np.int16], pieces: PackedPieces, tokens: Tokens
    ) -> tuple[Starts, NDArray[np.int32]]:
        """Fill the rows of `tokens` with sequences.

        Args:
            streams: [B] stream of each sequence.
            pieces: pieces of the sequences.
            tokens: [B, S + 1], overwritten.

        Returns:
            the starts of documents and the runs of unscored targets, as in `CompactBatch`.
        """
        owners = streams if len(pieces.starts) == len(streams) else np.repeat(streams, np.diff(pieces.offsets))
        held: list[Tokens] = []
        if all(reader.mapped for reader in self._readers):
            starts = pieces.starts + self._begins[owners]
            sources, rests = self._locate(starts, pieces.tokens)
        else:
            starts = pieces.starts
            sources, rests, held = self._fetch(owners, pieces)
        shards = (self._addresses, self._bounds, starts, sources, rests)
        columns = (pieces.offsets, pieces.tokens, pieces.context)
        unscored = np.empty((len(pieces.starts) + len(tokens), 2), np.int32)
        fill = _FILL[self.dtype.itemsize]
        while True:
            begins = np.empty(self._capacity, np.int32)
            documents, runs = fill(*shards, *columns, self._end_of_text, self._contiguous, tokens, begins, unscored)
            if documents <= len(begins):
                break
            self._capacity = documents + documents // 4
        del held  # only once all is copied
        return begins[:documents].copy(), unscored[:runs]

    def _locate(self, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> Located:
        """Return the memory address of each piece, and the number of tokens from there to the end of its shard."""
        sources, rests = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
        if not locate_pieces(self._addresses, self._bounds, self.dtype.itemsize, starts, lengths, sources, rests):
            first = np.searchsorted(self._bounds, starts, side="right") - 1
            last = np.searchsorted(self._bounds, starts + lengths - 1, side="right") - 1
            for begin, end in {*zip(first.tolist(), last.tolist(), strict=True)}:
                for shard in range(begin, end + 1):
                    self._map(shard)
            locate_pieces(self._addresses, self._bounds, self.dtype.itemsize, starts, lengths, sources, rests)
        return sources, rests

    def _map(self, shard: int) -> None:
        if shard not in self._mapped:
            own = int(self._owners[shard])
            start, stop = (self._bounds[shard : shard + 2] - self._begins[own]).tolist()
            self._mapped[shard] = np.ascontiguousarray(self._readers[own].read(start, stop - start))
            self._addresses[shard] = self._mapped[shard].ctypes.data

    def _fetch(
        self, owners: NDArray[np.int16], pieces: PackedPieces
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Tokens]]:
        """Fetch pieces from a remote. Return the memory address and the number of tokens of each piece, and the fetched
        arrays.

        The arrays must be kept until the pieces are copied.
        """
        sources, lengths, held = np.empty(len(owners), np.int64), pieces.tokens.astype(np.int64), []
        for stream in np.unique(owners).tolist():
            own = np.flatnonzero(owners == stream)
            tokens, starts = self._readers[stream].gather(pieces.starts[own], lengths[own])
            sources[own] = tokens.ctypes.data + starts * self.dtype.itemsize
            held.append(tokens)
        return sources, lengths, held


@compiled
def locate_pieces(
    addresses: Ints, bounds: Ints, itemsize: int, starts: Ints, lengths: NDArray[np.int32], sources: Ints, rests: Ints
) -> bool:
    """Write the address of each piece into `sources`, and the number of tokens to the end of its shard into `rests`.

    Return False if a shard is not mapped yet.
    """


@compiled
def fill_u16(
    addresses: Ints, bounds: Ints, starts: Ints, sources: Ints, rests: Ints, offsets: Starts, lengths: Starts,
    context: NDArray[np.int8], end_of_text: int, contiguous: bool, tokens: NDArray[np.uint16], begins: Starts,
    unscored: Starts,
) -> tuple[int, int]:  # fmt: skip
    """Fill the rows of `tokens` with 16-bit token ids, and return the numbers of documents and of unscored runs.

    Documents that do not fit into `begins` are counted but not written.
    """


@compiled
def fill_u32(
    addresses: Ints, bounds: Ints, starts: Ints, sources: Ints, rests: Ints, offsets: Starts, lengths: Starts,
    context: NDArray[np.int8], end_of_text: int, contiguous: bool, tokens: NDArray[np.uint32], begins: Starts,
    unscored: Starts,
) -> tuple[int, int]:  # fmt: skip
    """Fill the rows of `tokens` with 32-bit token ids, and return the numbers of documents and of unscored runs.

    Documents that do not fit into `begins` are counted but not written.
    """


_FILL: dict[int, Any] = {2: fill_u16, 4: fill_u32}

#: Sequences of all ranks that are drawn at once: a position takes 2 us alone, and a tenth of that in a batch.
DRAWN_SEQUENCES = 8192


@dataclass(frozen=True, eq=False)
class RankBatch(CompactBatch):
    """Sequences that one rank takes in a step, or a micro-batch of them.

    Attributes:
        tokens, starts, unscored: see `CompactBatch`; `unscored` is None if the packing never pads.
        step: number of the step, counted from 0.
        streams: [B] number of each sequence's stream in `Order.streams`.
        scored_tokens: number of scored targets in the whole step, over all ranks.
    """

    step: int
    streams: NDArray[np.int16]
    scored_tokens: int

    def micro_batch(self, number: int, size: int) -> RankBatch:
        """Return micro-batch `number`, which has `size` sequences."""
        first, stop = number * size, (number + 1) * size
        return RankBatch(*self.part(first, stop), self.step, self.streams[first:stop], self.scored_tokens)


class Loader:
    """Loader of one rank's batches.

    Args:
        order: the run's order.
        readers: reader of every stream of the order.
        layouts: packing layout of each stream; `concatenate` by default.
        global_batch: number of sequences per step over all ranks, or the steps of a run with schedules.
        micro_batch: number of sequences per micro-batch.
        rank: number of this rank.
        world: number of ranks.
        prefetch: number of steps that a background thread prepares ahead; if 0, steps are prepared on demand.

    Raises:
        RecipeError: the global batch does not divide into ranks and micro-batches.
        IntegrityError: a stream has no shards, or its shards are not those from which the order was made.
    """

    def __init__(
        self,
        order: Order,
        readers: Mapping[str, ShardReader],
        layouts: Mapping[str, PackingLayout] | None = None,
        *,
        global_batch: int | Steps,
        micro_batch: int,
        rank: int = 0,
        world: int = 1,
        prefetch: int = 2,
    ) -> None:
        schedule = order.steps(global_batch)
        uneven = [batch for batch in schedule.batches if batch % (world * micro_batch)]
        if uneven or not 0 <= rank < world:
            raise RecipeError(
                "training.global_batch_sequences does not divide into ranks and micro-batches",
                found=f"{schedule.batches} sequences, rank {rank} of {world}, micro-batches of {micro_batch}",
                expected="a multiple of ranks x training.micro_batch_sequences",
            )
        if layouts is None:
            layouts = {name: Concatenated(reader.tokens, order.sequence_tokens) for name, reader in readers.items()}
        _check(order, readers, layouts)
        self.order, self.schedule = order, schedule
        self.rank, self.world, self.prefetch = rank, world, prefetch
        self._layouts = [layouts[stream] for stream in order.streams]
        self.readers = [readers[stream] for stream in order.streams]
        self._joint = JointLayout(self._layouts)
        self._gather = SequenceGather(self.readers, contiguous=self._joint.contiguous)
        self._pool = BufferPool(self._gather.dtype)
        self._drawn = _DrawnSteps(0, (), np.empty(0, np.int16), np.empty(0, np.int64))

    @property
    def steps(self) -> int:
        """Number of whole steps in the run."""
        return self.schedule.total

    def batches(self, first_step: int = 0, stop_step: int | None = None) -> Iterator[RankBatch]:
        """Yield this rank's batches from `first_step` to `stop_step` (exclusive).

        If `stop_step` is None, the batches go to the end of the run.
        """
        made = map(self.batch, range(first_step, self.steps if stop_step is None else stop_step))
        return prefetched(made, self.prefetch)

    def batch(self, step: int) -> RankBatch:
        """Return this rank's batch of one step.

        Raises:
            MissingError: the run has no such step.
        """
        streams, indices = self._sequences(step)
        pieces = self._joint.pieces(streams, indices)
        tokens = self._pool.take((len(indices), self.order.sequence_tokens + 1))
        starts, unscored = self._gather.fill(streams, pieces, tokens)
        if not self._joint.padded:
            total = self.schedule.batch(step) * self.order.sequence_tokens
            return RankBatch(tokens, starts, None, step, streams, total)
        if self.world > 1:
            pieces = self._pieces_of_all(step)
        return RankBatch(tokens, starts, unscored, step, streams, int((pieces.tokens - pieces.context).sum()))

    def at(self, first: int, stop: int) -> CompactBatch:
        """Return the sequences from position `first` to `stop` (exclusive) of the order, without division into steps or
        ranks.

        Raises:
            MissingError: some positions are outside the run.
        """
        window = self.order.window(first, stop)
        tokens = np.empty((len(window), self.order.sequence_tokens + 1), self._gather.dtype)
        pieces = self._joint.pieces(window.streams, window.indices)
        starts, unscored = self._gather.fill(window.streams, pieces, tokens)
        return CompactBatch(tokens, starts, unscored if self._joint.padded else None)

    def pieces(self, step: int) -> Iterator[tuple[ShardReader, NDArray[np.int64], PackedPieces]]:
        """Yield, for each stream that this rank reads in a step, its reader, its rows in the batch, and their pieces.

        Raises:
            MissingError: the run has no such step.
        """
        streams, _, indices = self.order.drawn(self._positions(step))
        for stream in np.unique(streams).tolist():
            rows = np.flatnonzero(streams == stream)
            yield self.readers[stream], rows, self._layouts[stream].pieces(indices[rows])

    def open_index(self, step: int) -> None:
        """Map the parts of the packed indexes that a step reads."""
        if self._joint.padded:
            self._pieces_of_all(step)

    def _pieces_of_all(self, step: int) -> PackedPieces:
        """Return the pieces of all ranks in a step. Each rank can compute them from the order without communication."""
        window = self.order.step_window(step, self.schedule)
        return self._joint.pieces(window.streams, window.indices)

    def _positions(self, step: int) -> NDArray[np.int64]:
        """Return the positions of the order that this rank takes in a step."""
        every = self.schedule.positions(step)
        first, stop = (len(every) * edge // self.world for edge in (self.rank, self.rank + 1))
        return every[first:stop]

    def _sequences(self, step: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Return the stream and index of this rank's sequences in a step.

        If steps are read one after another, the sequences of several steps are computed at once.
        """
        drawn = self._drawn
        if not drawn.first <= step < drawn.stop:
            several = step == drawn.stop and self.schedule.ascending
            count = max(1, DRAWN_SEQUENCES // self.schedule.batch(step)) if several else 1
            positions = [self._positions(each) for each in range(step, max(step + 1, min(step + count, self.steps)))]
            streams, _, indices = self.order.drawn(np.concatenate(positions))
            edges = (0, *accumulate(len(own) for own in positions))
            self._drawn = drawn = _DrawnSteps(step, edges, streams, indices)
        return drawn.of(step)


@dataclass(frozen=True)
class _DrawnSteps:
    """Sequences of consecutive steps, starting at `first`. Step `first` + n has `edges[n]` to `edges[n + 1]`
    (exclusive)."""

    first: int
    edges: tuple[int, ...]
    streams: NDArray[np.int16]
    indices: NDArray[np.int64]

    @property
    def stop(self) -> int:
        return self.first + max(0, len(self.edges) - 1)

    def of(self, step: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        own = slice(*self.edges[step - self.first : step - self.first + 2])
        return self.streams[own], self.indices[own]


def _check(order: Order, readers: Mapping[str, ShardReader], layouts: Mapping[str, PackingLayout]) -> None:
    for bucket, sequences in zip(order.streams, order.available, strict=True):
        found = layouts[bucket].sequences if bucket in readers and bucket in layouts else 0
        tokens = readers[bucket].tokens if bucket in readers else 0
        if found < sequences or (sequences and layouts[bucket].tokens != tokens):
            raise IntegrityError(
                f"the shards of {bucket} differ from the mixture's shards",
                found=f"{tokens} tokens in {found} sequences",
                expected=f"{sequences} sequences",
                remedy="open the shards and the packed index that the mixture lists as inputs",
            )
    if len({(readers[bucket].end_of_text, readers[bucket].dtype) for bucket in order.streams}) > 1:
        raise IntegrityError("the buckets of the mixture use different tokenizers")


T = TypeVar("T")


def prefetched(made: Iterator[T], depth: int) -> Iterator[T]:
    """Yield the items of `made`, which a thread computes up to `depth` items ahead. If `depth` is 0, no thread is used.

    The thread ends when the consumer of the items ends.
    """
    if not depth:
        yield from made
        return
    ready: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()
    free, stopped = threading.Semaphore(depth), threading.Event()

    def work() -> None:
        try:
            for item in made:
                free.acquire()
                if stopped.is_set():
                    return
                ready.put((item,))
            ready.put(None)
        except BaseException as error:  # an error in the thread must reach its consumer
            ready.put(error)

    thread = threading.Thread(target=work, name="loader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            free.release()
            yield item[0]
    finally:
        stopped.set()
        free.release()
        thread.join()
