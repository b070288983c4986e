"""Token arrays of one rank, from any step on.

The state of a loader is the number of its next step: nothing is saved but that. Rank r of W takes rows
r G / W to (r + 1) G / W of each step's global batch of G sequences, so the global batch is the same on any
number of ranks, and no rank reads what another reads. No random generator is drawn from, no buffer is kept.

A step's sequences are laid out in one compiled pass (`packing_gather`), by a background thread, ahead of use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError, RecipeError
from plinth.tokens.ahead import ahead, timed
from plinth.tokens.arrays import Arrays
from plinth.tokens.order import Order, Window
from plinth.tokens.packing_fit import Pieces
from plinth.tokens.packing_gather import Source
from plinth.tokens.packing_layout import Concatenated, Layout
from plinth.tokens.reader import ShardReader
from plinth.tokens.steps import Steps


@dataclass(frozen=True)
class Batch:
    """Sequences of one step on one rank: a micro-batch, or all that the rank takes of the step.

    B sequences of S + 1 tokens: inputs are `tokens[:, :-1]`, targets `tokens[:, 1:]`.

    Attributes:
        step, micro: the step, and which of its micro-batches on this rank; 0 where it is all.
        tokens: [B, S + 1] int32.
        segments: [B, S + 1] int32, the document of its sequence that each token belongs to, from 0; attention
            stays among equal numbers.
        buckets: [B] number of each sequence's bucket in `Order.buckets`.
        scored: [B, S], which targets count in the loss; None where all do.
        scored_tokens: how many targets count in the whole step, over all ranks.
        wait_s: how long the consumer waited for this batch.
    """

    step: int
    micro: int
    tokens: NDArray[np.int32]
    segments: NDArray[np.int32]
    buckets: NDArray[np.int16]
    scored: NDArray[np.bool_] | None
    scored_tokens: int
    wait_s: float = 0.0

    def rows(self, micro: int, first: int, stop: int) -> Batch:
        """Some of its sequences, as views."""
        own = slice(first, stop)
        return Batch(
            self.step,
            micro,
            self.tokens[own],
            self.segments[own],
            self.buckets[own],
            None if self.scored is None else self.scored[own],
            self.scored_tokens,
        )


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
        self._sources = [Source(reader) for reader in self.readers]
        self._arrays = Arrays()

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
        window, width = self.order.step_window(step, self.schedule), self.order.sequence_tokens
        buckets, count = window.buckets[self._own(window)], len(window) // self.world
        padded = any(layout.padded for layout in self._layouts)
        tokens, numbers = (self._arrays.take((count, width + 1)) for _ in range(2))
        scored = np.ones((count, width) if padded else (0, 0), np.bool_)
        mine = 0
        for stream, rows, pieces in self._pieces(window):
            self._sources[stream].lay(rows, pieces, self._layouts[stream].many, tokens, numbers, scored)
            mine += int(pieces.scored.sum()) if padded else len(pieces) * width
        total = mine * self.world if not padded or self.world == 1 else self._scored_tokens(window)
        return Batch(step, 0, tokens, numbers, buckets, scored if padded else None, total)

    def pieces(self, step: int) -> Iterator[tuple[ShardReader, NDArray[np.int64], Pieces]]:
        """What this rank reads in a step: by stream, its reader, rows of the share, and their pieces.

        Raises:
            MissingError: the run has no such step.
        """
        for stream, rows, pieces in self._pieces(self.order.step_window(step, self.schedule)):
            yield self.readers[stream], rows, pieces

    def _own(self, window: Window) -> slice:
        count = len(window) // self.world
        return slice(self.rank * count, (self.rank + 1) * count)

    def _pieces(self, window: Window) -> Iterator[tuple[int, NDArray[np.int64], Pieces]]:
        buckets, indices = window.buckets[self._own(window)], window.indices[self._own(window)]
        for stream in np.unique(buckets).tolist():
            rows = np.flatnonzero(buckets == stream)
            yield stream, rows, self._layouts[stream].pieces(indices[rows])

    def _scored_tokens(self, window: Window) -> int:
        """Targets of a step that count, over all ranks: from the indices, so that no rank has to ask another."""
        return sum(
            int(self._layouts[stream].pieces(window.indices[window.buckets == stream]).scored.sum())
            for stream in np.unique(window.buckets).tolist()
        )

    def _micro(self, share: Batch) -> list[Batch]:
        size = self.micro_batch
        return [share.rows(micro, micro * size, (micro + 1) * size) for micro in range(len(share.tokens) // size)]


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
    if len({readers[bucket].end_of_text for bucket in order.buckets}) > 1:
        raise IntegrityError("buckets of one mixture were made with different tokenizers")
