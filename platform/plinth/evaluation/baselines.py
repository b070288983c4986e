"""The baselines that a model must beat: gzip, and a byte trigram model.

The trigram is interpolated with Witten-Bell weights (Witten and Bell 1991, "The zero-frequency problem"):

    p(c | h) = (count(h c) + kinds(h) p(c | shorter h)) / (count(h) + kinds(h))

from the two bytes before, to one, to none, to 1/256; kinds(h) is how many different bytes followed h. It
has no parameter to tune. Documents begin as if after two NUL bytes, in training and in scoring.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from plinth_text.compiled import compiled

#: Documents per call of a kernel: a call takes a microsecond, which is much for short ones.
BLOCK = 32


def gzip_bits(data: bytes) -> int:
    """Bits of the document alone in `gzip -9`, header and all."""
    return 8 * len(gzip.compress(data, compresslevel=9, mtime=0))


class Trigram:
    """Byte counts by the two bytes before; 64 MiB whatever the text."""

    def __init__(self) -> None:
        self._counts = np.zeros(1 << 24, dtype=np.uint32)  # [before, last, byte]
        self._tables: tuple[NDArray[np.float64], ...] | None = None
        self.trained_bytes = 0

    def train(self, documents: Iterable[bytes]) -> Trigram:
        """Count documents; may be called again with more. At most 2^32 - 1 bytes in all."""
        remaining = iter(documents)
        while block := list(islice(remaining, BLOCK)):
            offsets = np.cumsum([0, *map(len, block)])
            count_bytes(self._counts, np.frombuffer(b"".join(block), dtype=np.uint8), offsets)
            self.trained_bytes += int(offsets[-1])
        if self.trained_bytes >= 1 << 32:
            raise OverflowError("a byte trigram counts at most 4 GiB of text")
        self._tables = None
        return self

    def bits(self, data: bytes) -> float:
        """Total -log2 p of a document's bytes."""
        if self._tables is None:
            self._tables = _lower_orders(self._counts)
        pairs, pair_mass, last_mass, order_1 = self._tables
        text = np.frombuffer(data, dtype=np.uint8)
        return total_bits(self._counts, pairs, pair_mass, last_mass, order_1, text)


def _lower_orders(counts: NDArray[np.uint32]) -> tuple[NDArray[np.float64], ...]:
    """Pair counts [last, byte]; (total, kinds) by [before, last], by [last]; p(byte) without context [byte]."""
    cube = counts.reshape(256, 256, 256)
    pairs = cube.sum(axis=0, dtype=np.float64)
    singles = pairs.sum(axis=0)
    pair_mass = np.stack([cube.sum(axis=2, dtype=np.float64), np.count_nonzero(cube, axis=2)], axis=-1).reshape(-1, 2)
    last_mass = np.stack([pairs.sum(axis=1), np.count_nonzero(pairs, axis=1)], axis=-1)
    total, kinds = singles.sum(), np.count_nonzero(singles)
    order_1 = (singles + kinds / 256) / (total + kinds) if total else np.full(256, 1 / 256)
    return pairs, pair_mass, last_mass, order_1


@compiled
def count_bytes(counts: NDArray[np.uint32], data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
    """Count the bytes of documents; document d is `data[offsets[d]:offsets[d + 1]]`."""


@compiled
def total_bits(
    counts: NDArray[np.uint32],
    pairs: NDArray[np.float64],
    pair_mass: NDArray[np.float64],
    last_mass: NDArray[np.float64],
    order_1: NDArray[np.float64],
    text: NDArray[np.uint8],
) -> float:
    """Return the total -log2 p of a document's bytes; tables as `_lower_orders` returns them."""
