"""A small language model over bytes, trained in seconds, to estimate what a text would add to a large one.

Interpolated Witten-Bell (1991) over contexts of zero to `ORDER - 1` bytes, as `evaluation.baselines.Trigram`, with
counts in hashed tables so that the memory is the same for any text (Talbot and Osborne 2007 study what collisions
cost; here every model compared has the same tables, so they cost all alike):

    p(c | h) = (count(h c) + kinds(h) p(c | shorter h)) / (total(h) + kinds(h))

It is a proxy: what it learns from a text is vocabulary, spelling and phrases, not facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from plinth_text.compiled import compiled

#: As in `byte_model.c`.
ORDER = 5
TABLE_BITS = 22

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]


class ByteModel:
    """Counts of byte n-grams up to `ORDER`; 240 MiB whatever the text."""

    def __init__(self) -> None:
        size = 1 << TABLE_BITS
        self.counts = np.zeros((ORDER, size), dtype=np.uint32)  # of context and byte
        self.contexts = np.zeros((ORDER, 2 * size), dtype=np.uint32)  # total and kinds by turns
        self.trained_bytes = 0

    def train(self, texts: Iterable[bytes]) -> ByteModel:
        """Count texts; each begins without context."""
        for text in texts:
            count_text(np.frombuffer(text, dtype=np.uint8), self.counts, self.contexts)
            self.trained_bytes += len(text)
        return self

    def forget(self, texts: Sequence[bytes]) -> ByteModel:
        """Undo the last `train(texts)` exactly: a second model would take as much memory again."""
        for text in reversed(texts):
            uncount_text(np.frombuffer(text, dtype=np.uint8), self.counts, self.contexts)
            self.trained_bytes -= len(text)
        return self

    def bits(self, text: bytes) -> float:
        """Total -log2 p of a text's bytes."""
        return total_bits(np.frombuffer(text, dtype=np.uint8), self.counts, self.contexts)


@compiled
def count_text(text: U8, counts: U32, contexts: U32) -> None:
    """Count the n-grams of a text, which begins without context."""


@compiled
def uncount_text(text: U8, counts: U32, contexts: U32) -> None:
    """Undo `count_text` of the text that was counted last."""


@compiled
def total_bits(text: U8, counts: U32, contexts: U32) -> float:
    """Return the total -log2 p of a text's bytes."""
