"""A small language model over bytes, trained in seconds, to estimate what a text would add to a large one.

Interpolated Witten-Bell (1991) over contexts of zero to `ORDER - 1` bytes, as `evaluation.baselines.Trigram`, with
counts in hashed tables so that the memory is the same for any text (Talbot and Osborne 2007 study what collisions
cost; here every model compared has the same tables, so they cost all alike):

    p(c | h) = (count(h c) + kinds(h) p(c | shorter h)) / (total(h) + kinds(h))

It is a proxy: what it learns from a text is vocabulary, spelling and phrases, not facts.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from plinth.compiled import njit
from plinth.text.words.word_hashes import mix

ORDER = 5
TABLE_BITS = 22

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]


class ByteModel:
    """Counts of byte n-grams up to `ORDER`; 240 MiB whatever the text."""

    def __init__(self) -> None:
        size = 1 << TABLE_BITS
        self.counts = np.zeros((ORDER, size), dtype=np.uint32)  # of context and byte
        self.contexts = np.zeros((ORDER, size, 2), dtype=np.uint32)  # total, kinds
        self.trained_bytes = 0

    def copy(self) -> ByteModel:
        """A model that learns on by itself."""
        other = ByteModel.__new__(ByteModel)
        other.counts, other.contexts = self.counts.copy(), self.contexts.copy()
        other.trained_bytes = self.trained_bytes
        return other

    def train(self, texts: Iterable[bytes]) -> ByteModel:
        """Count texts; each begins without context."""
        for text in texts:
            _train(np.frombuffer(text, dtype=np.uint8), self.counts, self.contexts)
            self.trained_bytes += len(text)
        return self

    def bits(self, text: bytes) -> float:
        """Total -log2 p of a text's bytes."""
        return float(_bits(np.frombuffer(text, dtype=np.uint8), self.counts, self.contexts))


@njit(inline="always")
def _slot(state, order):  # type: ignore[no-untyped-def]
    """Place of a context, or of a context with its byte, in the table of an order."""
    return mix(state + uint64(order) * uint64(0x9E3779B97F4A7C15)) >> uint64(64 - TABLE_BITS)


@njit(nogil=True, cache=True)
def _train(text: U8, counts: U32, contexts: U32) -> None:
    history = uint64(0)
    for at in range(text.size):
        byte = uint64(text[at])
        for order in range(min(ORDER, at + 1)):
            context = history & ((uint64(1) << uint64(8 * order)) - uint64(1))
            whole = _slot((context << uint64(8)) | byte | (uint64(1) << uint64(62)), order)
            place = _slot(context, order)
            contexts[order, place, 0] += 1
            contexts[order, place, 1] += counts[order, whole] == 0
            counts[order, whole] += 1
        history = (history << uint64(8)) | byte


@njit(nogil=True, cache=True)
def _bits(text: U8, counts: U32, contexts: U32) -> float:
    history, bits = uint64(0), 0.0
    for at in range(text.size):
        byte = uint64(text[at])
        p = 1.0 / 256.0
        for order in range(min(ORDER, at + 1)):
            context = history & ((uint64(1) << uint64(8 * order)) - uint64(1))
            place = _slot(context, order)
            total = contexts[order, place, 0]
            if total > 0:
                # A collision can hide that a byte was new; every context was followed by one kind at least.
                kinds = max(contexts[order, place, 1], np.uint32(1))
                whole = _slot((context << uint64(8)) | byte | (uint64(1) << uint64(62)), order)
                p = (counts[order, whole] + kinds * p) / (total + kinds)
        bits -= np.log2(p)
        history = (history << uint64(8)) | byte
    return bits
