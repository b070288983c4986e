"""Poisson sampling as arithmetic: each step takes each sequence of the run by itself, with one probability.

    (key, step) -> Philox -> 64 bits for each position; taken where they are below rate x 2^64

This is the sampling that accountants of differential privacy assume, with the rate batch / sequences: steps are of
different sizes, a sequence comes in several or in none, in expectation in as many as the run has passes. The key is
secret: to whoever knows which steps took a sequence, sampling hides nothing. A step costs 64 bits a sequence of the
run, a single position one block of the generator.

Does not belong here: the sequence at a position (order), and where the key is kept (training.privacy).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from plinth.tokens.order.steps import Steps

#: Numbers of 64 bits in a block of the generator.
_BLOCK = 4


@dataclass(frozen=True)
class PoissonSteps(Steps):
    """The steps of a run whose global batch is drawn, of which the schedule's batch is the expected size."""

    ascending: ClassVar[bool] = False

    key: bytes = field(default=b"", repr=False)

    @property
    def rate(self) -> float:
        """The probability with which a step takes a sequence."""
        return self.stretches[0].batch / self.used

    def positions(self, step: int) -> NDArray[np.int64]:
        """The positions that a step takes, ascending.

        Raises:
            MissingError: the run has no such step.
        """
        self.take(step)
        return np.flatnonzero(self._generator(step).random_raw(self.used) < self._threshold)

    def steps_of(self, position: int) -> Iterator[tuple[int, int]]:
        """Every step that takes a position, and its row there."""
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
