"""The order of a run as arithmetic: position -> sequence, and sequence -> positions.

    position -> phase -> block -> slot        division
    slot -> rank in the block                 permutation keyed by (seed, phase, block)
    rank -> bucket, ordinal in the bucket     the block's counts (`apportion`)
    ordinal -> epoch, turn in the epoch       division by the bucket's sequences
    turn -> sequence of the bucket            permutation keyed by (seed, bucket, epoch)

A pure function of the mixture's manifest, the same on any number of ranks and workers, in constant time at
any position. Every bucket's epoch is a permutation: nothing is repeated or left out within one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plinth.errors import MissingError
from plinth.records import Manifest
from plinth.tokens.apportion import Blocks, Ramp
from plinth.tokens.permutation import Permutation
from plinth.tokens.realised import blocks_of
from plinth.tokens.steps import Steps, constant

BLOCKS_HELD = 64
PERMUTATIONS_HELD = 1024


@dataclass(frozen=True)
class SequenceRef:
    """One sequence of the run: `tokens` tokens (S + 1) of the bucket's stream from `start` on."""

    position: int
    bucket: str
    epoch: int
    index: int
    start: int
    tokens: int


@dataclass(frozen=True)
class Window:
    """Consecutive positions as columns, each [positions]."""

    first: int
    buckets: NDArray[np.int16]  # number of the bucket in `Order.buckets`
    epochs: NDArray[np.int32]
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class _Phase:
    first: int
    sequences: int
    full: Blocks | Ramp
    tail: tuple[int, ...]
    drawn: tuple[int, ...]  # sequences each bucket gave to earlier phases


class Order:
    """The order that a mixture describes.

    Args:
        mixture: manifest of the `mixture` asset.
    """

    def __init__(self, mixture: Manifest) -> None:
        self._read(mixture.stats)
        self._block = lru_cache(maxsize=BLOCKS_HELD)(self._make_block)
        self._permutation = lru_cache(maxsize=PERMUTATIONS_HELD)(self._make_permutation)

    def steps(self, batches: int | Steps) -> Steps:
        """Which positions each step takes: as given, or steps of one global batch."""
        if isinstance(batches, Steps):
            return batches
        return constant(self.sequences, self.sequence_tokens, batches)

    def sequence(self, position: int) -> SequenceRef:
        """The sequence at a position.

        Raises:
            MissingError: the run has no such position.
        """
        return self.refs(self.window(position, position + 1))[0]

    def step(self, step: int, batches: int | Steps) -> list[SequenceRef]:
        """The sequences of a step, in the order of the global batch.

        Raises:
            MissingError: the run has no such step.
        """
        return self.refs(self.step_window(step, batches))

    def step_window(self, step: int, batches: int | Steps) -> Window:
        """The sequences of a step as columns.

        Raises:
            MissingError: the run has no such step.
        """
        first, count = self.steps(batches).take(step)
        return self.window(first, first + count)

    def window(self, first: int, stop: int) -> Window:
        """The sequences at positions `first` to `stop` as columns.

        Raises:
            MissingError: they are not all inside the run.
        """
        if not 0 <= first <= stop <= self.sequences:
            raise MissingError(f"positions {first} to {stop}", expected=f"positions from 0 to {self.sequences}")
        pieces = []
        at = first
        while at < stop:
            number = bisect_right(self._firsts, at) - 1
            block, slot = divmod(at - self._phases[number].first, self.block_sequences)
            columns = self._block(number, block)
            count = min(stop - at, len(columns[0]) - slot)
            pieces.append([column[slot : slot + count] for column in columns])
            at += count
        empty = [np.empty(0, dtype) for dtype in (np.int16, np.int32, np.int64)]
        buckets, epochs, indices = (np.concatenate(column) for column in zip(empty, *pieces, strict=True))
        return Window(first, buckets, epochs, indices)

    def refs(self, window: Window) -> list[SequenceRef]:
        """The rows of a window as records."""
        rows = zip(window.buckets.tolist(), window.epochs.tolist(), window.indices.tolist(), strict=True)
        width = self.sequence_tokens
        return [
            SequenceRef(window.first + i, self.buckets[bucket], epoch, index, index * width, width + 1)
            for i, (bucket, epoch, index) in enumerate(rows)
        ]

    def positions(self, bucket: str, index: int) -> list[tuple[int, int]]:
        """Every (epoch, position) at which the run sees a sequence of a bucket, in order of epochs."""
        if bucket not in self.buckets:
            return []
        number = self.buckets.index(bucket)
        available, needed = self.available[number], self._needed[number]
        seen = []
        for epoch in range(-(-needed // available) if available else 0):
            turn = int(self._permutation(number, epoch).inverse([index])[0])
            ordinal = epoch * available + turn
            if ordinal < needed:
                seen.append((epoch, self._position(number, ordinal)))
        return seen

    def _read(self, stats: Mapping[str, Any]) -> None:
        self.sequences: int = stats["sequences"]
        self.sequence_tokens: int = stats["sequence_tokens"]
        self.block_sequences: int = stats["block_sequences"]
        self.seed: int = stats["seed"]
        self.buckets = tuple(sorted(stats["buckets"]))
        self.available = tuple(int(stats["buckets"][name]["sequences"]) for name in self.buckets)
        counts = [[phase["counts"][name] for name in self.buckets] for phase in stats["phases"]]
        drawn = [[0] * len(self.buckets)]
        for gave in counts:
            drawn.append([before + more for before, more in zip(drawn[-1], gave, strict=True)])
        self._needed = tuple(drawn[-1])
        self._phases = [
            _Phase(
                phase["first"],
                phase["sequences"],
                blocks_of(phase, self.block_sequences, self.buckets),
                tuple(phase["tail"][name] for name in self.buckets),
                tuple(before),
            )
            for phase, before in zip(stats["phases"], drawn[:-1], strict=True)
        ]
        self._firsts = [phase.first for phase in self._phases]

    def _counts(self, phase: _Phase, block: int) -> tuple[list[int], list[int]]:
        """Sequences of each bucket in a block, and the ordinals it begins with."""
        counts = phase.full.counts(block) if block < phase.full.blocks else list(phase.tail)
        before = [drawn + more for drawn, more in zip(phase.drawn, phase.full.before(block), strict=True)]
        return counts, before

    def _make_block(self, number: int, block: int) -> tuple[NDArray[Any], ...]:
        """Columns (bucket, epoch, index) of a block's slots."""
        counts, before = self._counts(self._phases[number], block)
        edges = np.array([0, *accumulate(counts)], dtype=np.int64)
        ranks = self._shuffle(number, block, int(edges[-1])).forward(np.arange(edges[-1]))
        buckets = np.searchsorted(edges, ranks, side="right") - 1
        ordinals = ranks - edges[buckets] + np.array(before, dtype=np.int64)[buckets]
        epochs, turns = np.divmod(ordinals, np.array(self.available, dtype=np.int64)[buckets])
        indices = np.empty_like(turns)
        for bucket, epoch in {*zip(buckets.tolist(), epochs.tolist(), strict=True)}:
            own = (buckets == bucket) & (epochs == epoch)
            indices[own] = self._permutation(bucket, epoch).forward(turns[own])
        return buckets.astype(np.int16), epochs.astype(np.int32), indices

    def _position(self, bucket: int, ordinal: int) -> int:
        """Where the run sees a bucket's n-th sequence: the way back through phase, block and slot."""
        number = max(n for n, phase in enumerate(self._phases) if phase.drawn[bucket] <= ordinal)
        phase = self._phases[number]
        low, high = 0, phase.full.blocks  # the block `high` is the tail
        while low < high:
            middle = (low + high + 1) // 2
            if phase.drawn[bucket] + phase.full.before(middle)[bucket] <= ordinal:
                low = middle
            else:
                high = middle - 1
        counts, before = self._counts(phase, low)
        rank = sum(counts[:bucket]) + ordinal - before[bucket]
        slot = int(self._shuffle(number, low, sum(counts)).inverse([rank])[0])
        return phase.first + low * self.block_sequences + slot

    def _shuffle(self, phase: int, block: int, size: int) -> Permutation:
        return Permutation(size, "block", self.seed, phase, block)

    def _make_permutation(self, bucket: int, epoch: int) -> Permutation:
        return Permutation(self.available[bucket], "epoch", self.seed, self.buckets[bucket], epoch)
