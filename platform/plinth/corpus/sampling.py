"""A sample of documents: those with the smallest keyed hash of their id.

The choice depends on the ids and the key alone, so that it is the same on every machine and stays while documents
are added; another key gives another, independent choice.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from plinth_text.arrays import U64
from plinth_text.compiled import compiled

EXCERPT_CHARACTERS = 320


def ranks(ids: pa.Array, seed: int) -> U64:
    """Hashes [documents] of ids of 16 bytes."""
    if not len(ids):
        return np.empty(0, np.uint64)
    halves = np.frombuffer(ids.buffers()[1], dtype="<u8")[2 * ids.offset : 2 * (ids.offset + len(ids))]
    out = np.empty(len(ids), dtype=np.uint64)
    hash_ids(halves.reshape(-1, 2), seed, out)
    return out


def rank(identity: bytes, seed: int) -> int:
    """The hash of one id."""
    return int(ranks(pa.array([identity], pa.binary(16)), seed)[0])


@compiled
def hash_ids(halves: U64, seed: int, out: U64) -> None:
    """Fill in the hash of each id, whose halves are [documents, 2]."""


class Smallest:
    """The `count` items with the smallest ranks of all that were offered; memory is `count` items."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._heap: list[tuple[int, int, Any]] = []  # negated, so that the largest of the chosen lies on top
        self._offered = 0

    @property
    def limit(self) -> int:
        """A rank that is not below this cannot be chosen any more."""
        return -self._heap[0][0] if len(self._heap) == self.count else 2**64

    def offer(self, rank: int, item: Any) -> None:
        """One more; of equal ranks the earlier stays."""
        self._offered += 1
        entry = (-rank, -self._offered, item)
        if len(self._heap) < self.count:
            heapq.heappush(self._heap, entry)
        elif self.count and entry > self._heap[0]:
            heapq.heapreplace(self._heap, entry)

    def extend(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """Many at once."""
        for one, item in pairs:
            self.offer(one, item)

    def chosen(self) -> list[Any]:
        """The chosen items, smallest rank first."""
        return [item for _, _, item in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))]


def excerpt(text: str, characters: int = EXCERPT_CHARACTERS) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[: 4 * characters].split())
    return line if len(line) <= characters else line[: characters - 1] + "…"
