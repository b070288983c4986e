"""Sequences of one rank, from any step on.

The state of a loader is the number of its next step: nothing is saved but that. Rank r of W takes rows
r G / W to (r + 1) G / W of each step's global batch of G sequences, so the global batch is the same on any
number of ranks, and no rank reads what another reads. No random generator is drawn from, no buffer is kept.

A step's sequences are laid out in one compiled pass (`packing_gather`), by a background thread, ahead of use, as they
are stored and with the places where documents begin (`rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError, RecipeError
from plinth.tokens.order.order import Order
from plinth.tokens.order.steps import Steps
from plinth.tokens.packing.best_fit import Pieces
from plinth.tokens.packing.gather import Gather
from plinth.tokens.packing.joint_layout import Joint
from plinth.tokens.packing.layout import Concatenated, Layout
from plinth.tokens.reading.buffer_pool import Arrays
from plinth.tokens.reading.prefetch import ahead, timed
from plinth.tokens.reading.reader import ShardReader
from plinth.tokens.reading.rows import Rows

#: Sequences of all ranks whose places are worked out together: a position costs 2 us alone, and a tenth of that here.
KNOWN_AHEAD = 8192


@dataclass(frozen=True, eq=False)
class Batch(Rows):
    """Sequences of one step on one rank: a micro-batch, or all that the rank takes of the step.

    Attributes:
        tokens, starts, unscored: see `Rows`; all targets count where no packing pads.
        step, micro: the step, and which of its micro-batches on this rank; 0 where it is all.
        buckets: [B] number of each sequence's bucket in `Order.buckets`.
        scored_tokens: how many targets count in the whole step, over all ranks.
        wait_s: how long the consumer waited for this batch.
    """

    step: int
    micro: int
    buckets: NDArray[np.int16]
    scored_tokens: int
    wait_s: float = 0.0

    def micro_batch(self, micro: int, size: int) -> Batch:
        """The sequences of a micro-batch of so many sequences."""
        first, stop = micro * size, (micro + 1) * size
        return Batch(*self.part(first, stop), self.step, micro, self.buckets[first:stop], self.scored_tokens)


class Loader:
    """Batches of one rank.

    Args:
        order: the run's order.
        readers: the shards of every bucket of the order.
        layouts: how each bucket's documents fill sequences; concatenated where nothing is said.
        global_batch: sequences of a step over all ranks, or the steps of a run where it changes.
        rank, world: which rank this is, of how many.
        micro_batch: sequences of one array.
        prefetch: steps made ahead by a background thread; 0 makes them when asked.

    Raises:
        RecipeError: the global batch does not divide into ranks and micro-batches.
        IntegrityError: a bucket has no shards, or others than the order assumes.
    """

    def __init__(
        self,
        order: Order,
        readers: Mapping[str, ShardReader],
        layouts: Mapping[str, Layout] | None = None,
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
        self.order, self.schedule, self.micro_batch = order, schedule, micro_batch
        self.rank, self.world, self.prefetch = rank, world, prefetch
        self._layouts = [layouts[bucket] for bucket in order.buckets]
        self.readers = [readers[bucket] for bucket in order.buckets]
        self._joint = Joint(self._layouts)
        self._gather = Gather(self.readers, many=self._joint.many)
        self._arrays = Arrays(self._gather.dtype)
        self._known = _Known(0, (), np.empty(0, np.int16), np.empty(0, np.int64))

    @property
    def steps(self) -> int:
        """Whole steps of the run."""
        return self.schedule.total

    def micro_batches(self, step: int) -> int:
        """Micro-batches of a step on this rank."""
        return self.schedule.batch(step) // (self.world * self.micro_batch)

    def shares(self, first_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """All this rank takes of each of the steps `first_step` to `stop_step` (the end of the run when None)."""
        made = map(self.share, range(first_step, self.steps if stop_step is None else stop_step))
        return ahead(made, self.prefetch) if self.prefetch else timed(made)

    def batches(self, first_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """The micro-batches of the same steps; the first of a step tells how long the step was waited for."""
        shares = self.shares(first_step, stop_step)
        try:
            for share in shares:
                first, *others = self._micro(share)
                yield replace(first, wait_s=share.wait_s)
                yield from others
        finally:
            shares.close()  # type: ignore[attr-defined]  # ends the thread

    def step(self, step: int) -> list[Batch]:
        """All micro-batches of one step on this rank.

        Raises:
            MissingError: the run has no such step.
        """
        return self._micro(self.share(step))

    def share(self, step: int) -> Batch:
        """All this rank takes of one step.

        Raises:
            MissingError: the run has no such step.
        """
        buckets, indices = self._sequences(step)
        pieces = self._joint.pieces(buckets, indices)
        tokens = self._arrays.take((len(indices), self.order.sequence_tokens + 1))
        starts, unscored = self._gather.lay(buckets, pieces, tokens)
        if not self._joint.padded:
            total = self.schedule.batch(step) * self.order.sequence_tokens
            return Batch(tokens, starts, None, step, 0, buckets, total)
        if self.world > 1:  # from the indices, so that no rank has to ask another
            window = self.order.step_window(step, self.schedule)
            pieces = self._joint.pieces(window.buckets, window.indices)
        return Batch(tokens, starts, unscored, step, 0, buckets, int((pieces.tokens - pieces.context).sum()))

    def pieces(self, step: int) -> Iterator[tuple[ShardReader, NDArray[np.int64], Pieces]]:
        """What this rank reads in a step: by stream, its reader, rows of the share, and their pieces.

        Raises:
            MissingError: the run has no such step.
        """
        positions = self._positions(step)
        buckets, _, indices = self.order.drawn(positions)
        for stream in np.unique(buckets).tolist():
            rows = np.flatnonzero(buckets == stream)
            yield self.readers[stream], rows, self._layouts[stream].pieces(indices[rows])

    def _positions(self, step: int) -> NDArray[np.int64]:
        """Of this rank in a step."""
        first, batch = self.schedule.take(step)
        count = batch // self.world
        return np.arange(first + self.rank * count, first + (self.rank + 1) * count, dtype=np.int64)

    def _sequences(self, step: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Bucket and index of this rank's sequences of a step; where steps are taken in turn, of some at once."""
        known = self._known
        if not known.first <= step < known.stop:
            count = max(1, KNOWN_AHEAD // self.schedule.batch(step)) if step == known.stop else 1
            taken = [self._positions(each) for each in range(step, max(step + 1, min(step + count, self.steps)))]
            buckets, _, indices = self.order.drawn(np.concatenate(taken))
            edges = (0, *accumulate(len(own) for own in taken))
            self._known = known = _Known(step, edges, buckets, indices)
        return known.of(step)

    def _micro(self, share: Batch) -> list[Batch]:
        size = self.micro_batch
        return [share.micro_batch(micro, size) for micro in range(len(share) // size)]


@dataclass(frozen=True)
class _Known:
    """Sequences of consecutive steps from `first` on; those of its n-th step are `edges[n]` to `edges[n + 1]`."""

    first: int
    edges: tuple[int, ...]
    buckets: NDArray[np.int16]
    indices: NDArray[np.int64]

    @property
    def stop(self) -> int:
        return self.first + max(0, len(self.edges) - 1)

    def of(self, step: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        own = slice(*self.edges[step - self.first : step - self.first + 2])
        return self.buckets[own], self.indices[own]


def _check(order: Order, readers: Mapping[str, ShardReader], layouts: Mapping[str, Layout]) -> None:
    for bucket, sequences in zip(order.buckets, order.available, strict=True):
        found = layouts[bucket].sequences if bucket in readers and bucket in layouts else 0
        tokens = readers[bucket].tokens if bucket in readers else 0
        if found < sequences or (sequences and layouts[bucket].tokens != tokens):
            raise IntegrityError(
                f"the shards of {bucket} are not those the mixture was made from",
                found=f"{tokens} tokens in {found} sequences",
                expected=f"{sequences} sequences",
                remedy="open the shards and the packed index that the mixture names as its inputs",
            )
    if len({(readers[bucket].end_of_text, readers[bucket].dtype) for bucket in order.buckets}) > 1:
        raise IntegrityError("buckets of one mixture were made with different tokenizers")
