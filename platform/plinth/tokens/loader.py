"""Token arrays of one rank, from any step on.

The state of a loader is the number of its next step: nothing is saved but that. Rank r of W takes rows
r G / W to (r + 1) G / W of each step's global batch of G sequences, so the global batch is the same on any
number of ranks, and no rank reads what another reads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plinth.errors import IntegrityError, RecipeError
from plinth.tokens.order import Order, Window
from plinth.tokens.packing import segments
from plinth.tokens.reader import ShardReader
from plinth.tokens.steps import Steps


@dataclass(frozen=True)
class Batch:
    """One micro-batch. B sequences of S + 1 tokens: inputs are `tokens[:, :-1]`, targets `tokens[:, 1:]`.

    Attributes:
        step, micro: the step, and which of its micro-batches on this rank.
        tokens: [B, S + 1] int32.
        segments: [B, S + 1] int32, the document of its sequence that each token belongs to, from 0; attention
            stays among equal numbers.
        buckets: [B] number of each sequence's bucket in `Order.buckets`.
        wait_s: how long the consumer waited for this batch.
    """

    step: int
    micro: int
    tokens: NDArray[np.int32]
    segments: NDArray[np.int32]
    buckets: NDArray[np.int16]
    wait_s: float = 0.0


class Loader:
    """Micro-batches of one rank.

    Args:
        order: the run's order.
        readers: the shards of every bucket of the order.
        global_batch: sequences of a step over all ranks, or the steps of a run where it changes.
        rank, world: which rank this is, of how many.
        micro_batch: sequences of one array.
        prefetch: micro-batches made ahead by a background thread; 0 makes them when asked.

    Raises:
        RecipeError: the global batch does not divide into ranks and micro-batches.
        IntegrityError: a bucket has no shards, or shards shorter than the order assumes.
    """

    def __init__(
        self,
        order: Order,
        readers: Mapping[str, ShardReader],
        *,
        global_batch: int | Steps,
        micro_batch: int,
        rank: int = 0,
        world: int = 1,
        prefetch: int = 4,
    ) -> None:
        schedule = order.steps(global_batch)
        uneven = [batch for batch in schedule.batches if batch % (world * micro_batch)]
        if uneven or not 0 <= rank < world:
            raise RecipeError(
                "training.global_batch_sequences does not divide into ranks and micro-batches",
                found=f"{schedule.batches} sequences, rank {rank} of {world}, micro-batches of {micro_batch}",
                expected="a multiple of ranks x training.micro_batch_sequences",
            )
        _check(order, readers)
        self.order, self.schedule, self.micro_batch = order, schedule, micro_batch
        self.rank, self.world, self.prefetch = rank, world, prefetch
        self._readers = [readers[bucket] for bucket in order.buckets]

    @property
    def steps(self) -> int:
        """Whole steps of the run."""
        return self.schedule.total

    def micro_batches(self, step: int) -> int:
        """Micro-batches of a step on this rank."""
        return self.schedule.batch(step) // (self.world * self.micro_batch)

    def batches(self, first_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """The micro-batches of steps `first_step` to `stop_step` (the end of the run when None)."""
        made = self._make(first_step, self.steps if stop_step is None else stop_step)
        return _ahead(made, self.prefetch) if self.prefetch else _timed(made)

    def step(self, step: int) -> list[Batch]:
        """All micro-batches of one step on this rank.

        Raises:
            MissingError: the run has no such step.
        """
        window = self.order.step_window(step, self.schedule)
        share = len(window) // self.world
        return [
            self._batch(step, micro, window, self.rank * share + micro * self.micro_batch)
            for micro in range(self.micro_batches(step))
        ]

    def _make(self, first_step: int, stop_step: int) -> Iterator[Batch]:
        for step in range(first_step, stop_step):
            yield from self.step(step)

    def _batch(self, step: int, micro: int, window: Window, first: int) -> Batch:
        rows = slice(first, first + self.micro_batch)
        width = self.order.sequence_tokens
        tokens = np.empty((self.micro_batch, width + 1), dtype=np.int32)
        buckets = window.buckets[rows]
        for row, (bucket, index) in enumerate(zip(buckets.tolist(), window.indices[rows].tolist(), strict=True)):
            tokens[row] = self._readers[bucket].read(index * width, width + 1)
        return Batch(step, micro, tokens, segments(tokens, self._readers[0].end_of_text), buckets)


def _check(order: Order, readers: Mapping[str, ShardReader]) -> None:
    for bucket, sequences in zip(order.buckets, order.available, strict=True):
        needed = sequences * order.sequence_tokens + 1
        tokens = readers[bucket].tokens if bucket in readers else 0
        if sequences and tokens < needed:
            raise IntegrityError(
                f"the shards of {bucket} are not those the mixture was made from",
                found=f"{tokens} tokens",
                expected=f"at least {needed} tokens",
                remedy="open the shards that the mixture names as its inputs",
            )
    if len({readers[bucket].end_of_text for bucket in order.buckets}) > 1:
        raise IntegrityError("buckets of one mixture were made with different tokenizers")


def _timed(made: Iterator[Batch]) -> Iterator[Batch]:
    while True:
        started = time.perf_counter()
        batch = next(made, None)
        if batch is None:
            return
        yield _waited(batch, time.perf_counter() - started)


def _ahead(made: Iterator[Batch], depth: int) -> Iterator[Batch]:
    """The same batches, made by a thread that ends when the consumer does."""
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(maxsize=depth)
    left = threading.Event()

    def put(item: Batch | BaseException | None) -> None:
        while not left.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for batch in made:
                put(batch)
                if left.is_set():
                    return
            put(None)
        except BaseException as error:  # whatever stopped the thread must stop its consumer
            put(error)

    thread = threading.Thread(target=work, name="loader", daemon=True)
    thread.start()
    try:
        while True:
            started = time.perf_counter()
            item = ready.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield _waited(item, time.perf_counter() - started)
    finally:
        left.set()
        thread.join()


def _waited(batch: Batch, wait_s: float) -> Batch:
    return Batch(batch.step, batch.micro, batch.tokens, batch.segments, batch.buckets, wait_s)
