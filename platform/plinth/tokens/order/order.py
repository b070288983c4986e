"""Order of a run, computed instead of stored: from a position to its sequence, and from a sequence to its positions.

    position -> phase -> block -> slot        division
    slot -> shuffled slot                     permutation keyed by (seed, phase, block)
    shuffled slot -> stream, ordinal          counts of the block (`apportion`)
    ordinal -> epoch, offset in the epoch     division by the sequences of the stream
    offset -> sequence of the stream          permutation keyed by (seed, stream, epoch)

The order depends only on the mixture's manifest, and not on the number of ranks or workers. Any position is computed in
constant time. An epoch of a stream is a permutation: it contains every sequence exactly once.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import isqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plinth import fingerprint
from plinth.errors import MissingError
from plinth.records import Manifest
from plinth.tokens.mixture.apportion import Blocks, Ramp, blocks_of
from plinth.tokens.order.steps import Steps, constant
from plinth_text.compiled import compiled

PERMUTATIONS_HELD = 1024

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SequenceRef:
    """Sequence of the run: `tokens` tokens (S + 1) of a stream, beginning at token `start`."""

    position: int
    stream: str
    epoch: int
    index: int
    start: int
    tokens: int


@dataclass(frozen=True)
class PositionWindow:
    """Ascending positions of the run with their sequences, as columns of shape [positions]."""

    positions: NDArray[np.int64]
    streams: NDArray[np.int16]  # number of the stream in `Order.streams`
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
    drawn: tuple[int, ...]  # sequences that each stream gave to earlier phases


class Order:
    """Order of a run's sequences, defined by a mixture.

    Args:
        mixture: manifest of the `mixture` asset.
    """

    def __init__(self, mixture: Manifest) -> None:
        self._read(mixture.stats)
        self._permutation = lru_cache(maxsize=PERMUTATIONS_HELD)(self._make_permutation)

    @property
    def repeats(self) -> bool:
        """True if the run reads any sequence more than once."""
        return any(needed > held for needed, held in zip(self._needed, self.available, strict=True))

    def epochs(self, position: int) -> dict[str, float]:
        """Return the number of passes over each stream before a position.

        Within a block, the result assumes that all streams are read at an even rate.

        Raises:
            MissingError: the position is not inside the run.
        """
        if not 0 <= position <= self.sequences:
            raise MissingError(f"position {position}", expected=f"one from 0 to {self.sequences}")
        phase = next(one for one in reversed(self._phases) if one.first <= position)
        block = min((position - phase.first) // self.block_sequences, phase.full.blocks)
        read, counts = self._before(phase, block), self._counts(phase, block)
        share = (position - phase.first - block * self.block_sequences) / max(1, sum(counts))
        rows = zip(self.streams, read, counts, self.available, strict=True)
        return {name: (before + share * count) / held for name, before, count, held in rows if held}

    def steps(self, batches: int | Steps) -> Steps:
        """Return the steps of a run. If `batches` is a number, it is the constant global batch size."""
        if isinstance(batches, Steps):
            return batches
        return constant(self.sequences, self.sequence_tokens, batches)

    def step_window(self, step: int, batches: int | Steps) -> PositionWindow:
        """Return the sequences of a step as columns.

        Raises:
            MissingError: the run has no such step.
        """
        return self._window(self.steps(batches).positions(step))

    def window(self, first: int, stop: int) -> PositionWindow:
        """Return the sequences from position `first` to `stop` (exclusive) as columns.

        Raises:
            MissingError: some positions are outside the run.
        """
        if not 0 <= first <= stop <= self.sequences:
            raise MissingError(f"positions {first} to {stop}", expected=f"positions from 0 to {self.sequences}")
        return self._window(np.arange(first, stop, dtype=np.int64))

    def _window(self, positions: NDArray[np.int64]) -> PositionWindow:
        return PositionWindow(positions, *self.drawn(positions))

    def drawn(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int32], NDArray[np.int64]]:
        """Return the stream, epoch and index [n] of the sequences at ascending positions of the run.

        The method takes about 70 ns per position if many positions are passed at once.
        """
        edges = [edge for phase in self._phases for edge in (phase.first, phase.first + self._whole(phase))]
        cuts = [*np.searchsorted(positions, edges).tolist(), len(positions)]
        spans = [(piece // 2, positions[begin:end]) for piece, (begin, end) in enumerate(pairwise(cuts)) if end > begin]
        columns = [self._columns(*span) for span in spans]
        if len(columns) == 1:
            return columns[0]
        empty = (np.empty(0, np.int16), np.empty(0, np.int32), np.empty(0, np.int64))
        streams, epochs, indices = (np.concatenate(column) for column in zip(empty, *columns, strict=True))
        return streams, epochs, indices

    def refs(self, window: PositionWindow) -> list[SequenceRef]:
        """Return the rows of a window as records."""
        columns = (window.positions, window.streams, window.epochs, window.indices)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        width = self.sequence_tokens
        return [
            SequenceRef(position, self.streams[stream], epoch, index, index * width, width + 1)
            for position, stream, epoch, index in rows
        ]

    def positions(self, stream: str, index: int) -> list[tuple[int, int]]:
        """Return every (epoch, position) at which the run reads a sequence of a stream, in order of epochs."""
        if stream not in self.streams:
            return []
        number = self.streams.index(stream)
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
        self.streams = tuple(sorted(stats["buckets"]))
        self.available = tuple(int(stats["buckets"][name]["sequences"]) for name in self.streams)
        self._sizes = np.array([max(1, held) for held in self.available], np.int64)
        counts = [[phase["counts"][name] for name in self.streams] for phase in stats["phases"]]
        drawn = [[0] * len(self.streams)]
        for gave in counts:
            drawn.append([before + more for before, more in zip(drawn[-1], gave, strict=True)])
        self._needed = tuple(drawn[-1])
        self._phases = [
            _Phase(
                phase["first"],
                phase["sequences"],
                blocks_of(phase, self.block_sequences, self.streams),
                tuple(phase["tail"][name] for name in self.streams),
                tuple(before),
            )
            for phase, before in zip(stats["phases"], drawn[:-1], strict=True)
        ]
        self._firsts = [phase.first for phase in self._phases]

    def _whole(self, phase: _Phase) -> int:
        """Return the number of sequences in a phase's full blocks, which come before its shorter tail."""
        return phase.full.blocks * self.block_sequences

    def _counts(self, phase: _Phase, block: int) -> list[int]:
        """Return the number of sequences per stream in a block. If `block` is the number of full blocks, it means the
        tail."""
        return phase.full.counts(block) if block < phase.full.blocks else list(phase.tail)

    def _before(self, phase: _Phase, block: int) -> list[int]:
        """Return the number of sequences that each stream has supplied before a block."""
        return [drawn + more for drawn, more in zip(phase.drawn, phase.full.before(block), strict=True)]

    def _columns(
        self, number: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int16], NDArray[np.int32], NDArray[np.int64]]:
        """Return the columns of `drawn` for positions in the full blocks of one phase, or for positions in the phase's
        tail."""
        phase = self._phases[number]
        first, last = ((int(edge) - phase.first) // self.block_sequences for edge in positions[[0, -1]])
        counts = np.array([self._counts(phase, block) for block in range(first, last + 1)], np.int64)
        before = np.array(self._before(phase, first)) + np.cumsum(counts, axis=0) - counts
        blocks, slots = np.divmod(positions - (phase.first + first * self.block_sequences), self.block_sequences)
        shuffles = numbered(int(counts[0].sum()), self._shuffled(number), range(first, last + 1))
        ranks = forward_each(shuffles, blocks, slots)
        streams, epochs, turns, owners, pairs = _place(ranks, blocks, counts, before, self._sizes)
        table = table_of([self._permutation(stream, epoch) for stream, epoch in pairs])
        return streams, epochs, forward_each(table, owners, turns)

    def _position(self, stream: int, ordinal: int) -> int:
        """Return the position of a stream's sequence number `ordinal`, by going back through phase, block and slot."""
        number = max(n for n, phase in enumerate(self._phases) if phase.drawn[stream] <= ordinal)
        phase = self._phases[number]
        low, high = 0, phase.full.blocks  # the block `high` is the tail
        while low < high:
            middle = (low + high + 1) // 2
            if phase.drawn[stream] + phase.full.before(middle)[stream] <= ordinal:
                low = middle
            else:
                high = middle - 1
        counts, before = self._counts(phase, low), self._before(phase, low)
        rank = sum(counts[:stream]) + ordinal - before[stream]
        shuffle = Permutation(sum(counts), *self._shuffled(number), low)
        slot = int(shuffle.inverse([rank])[0])
        return phase.first + low * self.block_sequences + slot

    def _shuffled(self, phase: int) -> tuple[str | int, ...]:
        """Return the key of a phase's block permutations, to which the number of the block is appended."""
        return "block", self.seed, phase

    def _make_permutation(self, stream: int, epoch: int) -> Permutation:
        return Permutation(self.available[stream], "epoch", self.seed, self.streams[stream], epoch)


def _place(
    ranks: Ints, blocks: Ints, counts: Ints, before: Ints, sizes: Ints
) -> tuple[NDArray[np.int16], NDArray[np.int32], Ints, Ints, list[tuple[int, int]]]:
    """Return the stream, epoch and offset in the epoch of shuffled slots (`ranks`), and the permutations to apply.

    The permutations are listed as pairs of stream and epoch; each slot has the number of its pair.
    """
    lowest, highest = before[0] // sizes, (before[-1] + counts[-1]) // sizes
    ends = np.cumsum(highest - lowest + 1)  # of streams in the numbers of pairs
    streams, epochs = np.empty(len(ranks), np.int16), np.empty(len(ranks), np.int32)
    turns, owners = np.empty(len(ranks), np.int64), np.empty(len(ranks), np.int64)
    numbers, pairs = np.full(ends[-1], -1), np.empty((ends[-1], 2), np.int64)
    found = place(
        ranks, blocks, counts, before, sizes, lowest, ends - (highest - lowest + 1), numbers, streams, epochs, turns,
        owners, pairs,
    )  # fmt: skip
    return streams, epochs, turns, owners, [(stream, epoch) for stream, epoch in pairs[:found].tolist()]


@compiled
def place(
    ranks: Ints, blocks: Ints, counts: Ints, before: Ints, sizes: Ints, lowest: Ints, begins: Ints, numbers: Ints,
    streams: NDArray[np.int16], epochs: NDArray[np.int32], turns: Ints, owners: Ints, pairs: Ints,
) -> int:  # fmt: skip
    """Write the results of `_place` into the output arrays, and return the number of (stream, epoch) pairs.

    Args:
        lowest: first epoch of each stream that may occur.
        begins: index in `numbers` at which each stream's epochs begin; `numbers` is filled with -1.
    """


# A keyed bijection of range(n), and its inverse, evaluated at any point in constant time.
#
# The construction is the generalized Feistel cipher over a rectangle a x b >= n, with cycle walking for the
# few points outside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Its round
# function is the 64-bit finalizer of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
# Generators", OOPSLA 2014) with Stafford's constants. It shuffles; it keeps no secrets.

ROUNDS = 6  # Luby and Rackoff need 4 for a strong permutation; small domains are worth two more
MAX_SIZE = 2**62

UInts = NDArray[np.uint64]

#: Columns of a permutation's parameters: the rectangle, the size, floor((2^64 - 1) / side) of both sides; from here
#: on a key for each round.
_KEYS = 5


class Permutation:
    """Bijection of range(size), chosen by `key`. The elements of `key` must be strings and integers.

    Attributes:
        parameters: [columns], one row of the table for `forward_each`.

    Raises:
        ValueError: the size is below 1 or above 2^62.
    """

    def __init__(self, size: int, *key: str | int) -> None:
        self.parameters = _parameters(size, [fingerprint.canonical(list(key))])[0]

    def forward(self, values: ArrayLike) -> Ints:
        """Return the image of each value of range(size), in the same shape."""
        return self._moved(values, inverse=False)

    def inverse(self, values: ArrayLike) -> Ints:
        """Return the preimage of each value of range(size), in the same shape."""
        return self._moved(values, inverse=True)

    def _moved(self, values: ArrayLike, inverse: bool) -> Ints:
        points = np.asarray(values, dtype=np.int64)
        flat = points.ravel()
        moved = np.empty(len(flat), np.int64)
        move(self.parameters[None], np.zeros(len(flat), np.int64), flat, inverse, moved)
        return moved.reshape(points.shape)


def numbered(size: int, key: tuple[str | int, ...], numbers: Iterable[int]) -> UInts:
    """Return the parameters [n, columns] of `Permutation(size, *key, number)` for each number."""
    begin = fingerprint.canonical(list(key))[:-1]
    return _parameters(size, [b"%s,%d]" % (begin, number) for number in numbers])


def table_of(permutations: Sequence[Permutation]) -> UInts:
    """Return the parameters of the permutations as one table [n, columns]."""
    return np.stack([each.parameters for each in permutations])


def forward_each(table: UInts, owners: Ints, values: Ints) -> Ints:
    """Return the image of each value under the permutation that `owners` assigns to it.

    Args:
        table: [permutations, columns] parameters of the permutations.
        owners: [n] row of each value's permutation in the table.
        values: [n].
    """
    moved = np.empty(len(values), np.int64)
    move(table, owners, values, False, moved)
    return moved


def _parameters(size: int, keys: list[bytes]) -> UInts:
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"a permutation of {size} elements; expected 1 to 2^62")
    width = isqrt(size - 1) + 1  # rounded up, so that the rectangle has fewer than `width` points to spare
    height = -(-size // width)
    table = np.empty((len(keys), _KEYS + ROUNDS), np.uint64)
    table[:, :_KEYS] = width, height, size, (2**64 - 1) // width, (2**64 - 1) // height
    words = np.frombuffer(b"".join(hashlib.sha512(key).digest() for key in keys), "<u8")
    table[:, _KEYS:] = words.reshape(len(keys), 8)[:, :ROUNDS]
    return table


@compiled
def move(table: UInts, owners: Ints, values: Ints, inverse: bool, moved: Ints) -> None:
    """Fill `moved` with the image of each value under its permutation, or with its preimage if `inverse` is set."""


@compiled
def quotient(word: int, modulus: int, reciprocal: int) -> tuple[int, int]:
    """Return quotient and remainder of `word` divided by `modulus`, computed with the reciprocal; for tests."""


# Poisson sampling as arithmetic: each step takes each sequence of the run by itself, with one probability.
#
#     (key, step) -> Philox -> 64 bits for each position; taken where they are below rate x 2^64
#
# This is the sampling that accountants of differential privacy assume, with the rate batch / sequences: steps are of
# different sizes, a sequence comes in several or in none, in expectation in as many as the run has passes. The key is
# secret: if the steps of a sequence are known, sampling hides nothing. A step costs 64 bits per sequence of the
# run, a single position one block of the generator.
#
# Does not belong here: the sequence at a position (order), and where the key is kept (training.privacy).

#: Numbers of 64 bits in a block of the generator.
_BLOCK = 4


@dataclass(frozen=True)
class PoissonSteps(Steps):
    """Steps whose sequences are drawn by Poisson sampling.

    The batch size of the schedule is the expected number of sequences per step.
    """

    ascending: ClassVar[bool] = False

    key: bytes = field(default=b"", repr=False)

    @property
    def rate(self) -> float:
        """Sampling rate: probability that a step includes a given sequence."""
        return self.stretches[0].batch / self.used

    def positions(self, step: int) -> NDArray[np.int64]:
        """Return the positions that a step includes, in ascending order.

        Raises:
            MissingError: the run has no such step.
        """
        self.take(step)
        return np.flatnonzero(self._generator(step).random_raw(self.used) < self._threshold)

    def steps_of(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield every step that includes a position, with the row of the position in the step."""
        for step in range(self.total):
            block, within = divmod(position, _BLOCK)
            drawn = self._generator(step).advance(block).random_raw(within + 1)[within]
            if position < self.used and drawn < self._threshold:
                yield step, int(self.positions(step).searchsorted(position))

    @property
    def _threshold(self) -> np.uint64:
        return np.uint64(min(self.stretches[0].batch * 2**64 // self.used, 2**64 - 1))

    def _generator(self, step: int) -> np.random.Philox:
        digest = hmac.digest(self.key, b"sample/%d" % step, hashlib.sha256)
        return np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))
