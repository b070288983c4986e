"""Sequences as the shards store them, with the starts of their documents: the form that is copied to a device.

    B  sequences    S  targets per sequence    m  documents of all sequences    k  runs of targets that are not scored

The form takes two bytes per token (four for a large vocabulary) and four per document. 32-bit ids, the document of each
token and the mask of targets would take ten times the space. These arrays are therefore computed only where they are
used: on the device (`training.engine.batches`), or here for readers on the host.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth_text.compiled import compiled

#: Arrays of a pool: those of a few steps that are prefetched, in use, and on their way to the device.
MAX_ARRAYS = 16


class BufferPool:
    """Pool of reusable arrays with one dtype. All arrays in the pool have the same shape."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._arrays: list[NDArray[Any]] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, int]) -> NDArray[Any]:
        """Return an array of this shape, with undefined values."""
        with self._lock:
            if self._arrays and self._arrays[0].shape != shape:
                self._arrays = []
            for at in range(len(self._arrays)):
                if sys.getrefcount(self._arrays[at]) == 2:  # the list's and the call's own; a view would be a third
                    return self._arrays[at]
            made = np.empty(shape, self._dtype)
            if len(self._arrays) < MAX_ARRAYS:
                self._arrays.append(made)
            return made


#: Buffers for arrays with a value per token, shared by all batches of a process.
_POOL = BufferPool(np.dtype(np.int32))


class ExpandedBatch(NamedTuple):
    """Sequences with one value per token.

    Attributes:
        tokens: [B, S + 1] int32; inputs are `tokens[:, :-1]`, targets `tokens[:, 1:]`.
        segments: [B, S + 1] int32, number of each token's document within its sequence, from 0; attention stays within
            a document.
        scored: [B, S] True for targets that count in the loss; None if all targets count.
    """

    tokens: NDArray[np.int32]
    segments: NDArray[np.int32]
    scored: NDArray[np.bool_] | None


@dataclass(frozen=True, eq=False)
class CompactBatch:
    """B sequences of S + 1 tokens, as they are stored.

    Attributes:
        tokens: [B, S + 1] unsigned, in the dtype of the shards.
        starts: [m] int32, ascending: index in `tokens.ravel()` at which each document begins. Every sequence begins a
            document. With the number of tokens appended, this is `cu_seqlens` of kernels for ragged attention.
        unscored: [k, 2] int32: begin and end of each run of targets in [B S] that do not count in the loss. No run
            extends from one sequence into the next. None if all targets count.
    """

    tokens: NDArray[Any]
    starts: NDArray[np.int32]
    unscored: NDArray[np.int32] | None

    @classmethod
    def of(
        cls, tokens: NDArray[Any], segments: NDArray[Any] | None = None, scored: NDArray[np.bool_] | None = None
    ) -> CompactBatch:
        """Build a batch from arrays with one value per token. Without `segments`, every sequence is one document."""
        begins = np.zeros(tokens.shape, np.bool_)
        begins[:, 0] = True
        if segments is not None:
            begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
        starts = np.flatnonzero(begins).astype(np.int32)
        return cls(np.ascontiguousarray(tokens), starts, None if scored is None else _unscored_runs(scored))

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, first: int, stop: int) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int32] | None]:
        """Return tokens, starts and unscored runs of the sequences from `first` to `stop`; tokens are a view."""
        width = self.tokens.shape[1]
        low, high = self.starts.searchsorted([first * width, stop * width]).tolist()
        starts = self.starts[low:high] - np.int32(first * width)
        if self.unscored is None:
            return self.tokens[first:stop], starts, None
        low, high = self.unscored[:, 0].searchsorted([first * (width - 1), stop * (width - 1)]).tolist()
        return self.tokens[first:stop], starts, self.unscored[low:high] - np.int32(first * (width - 1))

    def unbroken(self, length: int) -> bool:
        """Return True if no document ends within a row, after sequences are cut into rows of `length` tokens."""
        if len(self.starts) == len(self):
            return True
        return bool((self.starts % self.tokens.shape[1] % length == 0).all())

    @property
    def scored_counts(self) -> NDArray[np.int64]:
        """Number of targets in each sequence [B] that count in the loss."""
        counts = np.full(len(self), self.tokens.shape[1] - 1, np.int64)
        if self.unscored is not None:
            np.subtract.at(counts, self.unscored[:, 0] // (self.tokens.shape[1] - 1), np.diff(self.unscored)[:, 0])
        return counts

    def expanded(self) -> ExpandedBatch:
        """Return the same sequences with one value per token.

        The arrays come from a pool, which reuses the memory of expanded batches that are no longer referenced.
        """
        rows, width = self.tokens.shape
        tokens, segments = _POOL.take((rows, width)), _POOL.take((rows, width))
        np.copyto(tokens, self.tokens)  # uint32 too: ids are below 2^31
        number_documents(self.starts, segments)
        if self.unscored is None:
            return ExpandedBatch(tokens, segments, None)
        scored = np.ones(tokens[:, 1:].shape, np.bool_)
        for begin, end in self.unscored.tolist():
            scored.reshape(-1)[begin:end] = False
        return ExpandedBatch(tokens, segments, scored)


def split_rows(array: NDArray[Any], length: int) -> NDArray[Any]:
    """Cut sequences [B, S + 1] into rows [B S / length, length + 1]. Adjacent rows of a sequence share one token."""
    if array.shape[1] == length + 1:
        return array
    windows = np.lib.stride_tricks.sliding_window_view(array, length + 1, axis=1)[:, ::length]
    rows: NDArray[Any] = windows.reshape(-1, length + 1)
    return rows


def _unscored_runs(scored: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the begin and end of every run of False values, as indices into the flat array.

    A run never extends from one row into the next.
    """
    left_out = np.zeros((len(scored), scored.shape[1] + 2), np.int8)
    left_out[:, 1:-1] = ~scored
    rows, edges = np.nonzero(np.diff(left_out))
    runs: NDArray[np.int32] = (rows * scored.shape[1] + edges).astype(np.int32).reshape(-1, 2)
    return runs


@compiled
def number_documents(starts: NDArray[np.int32], segments: NDArray[np.int32]) -> None:
    """Write the number of each token's document within its sequence into `segments`."""


# Facts about the text of rows, from their token ids alone: repetition and entropy.
#
#     duplicate_ngrams   share of a row's 8-grams that came before in it
#     top_ngram          share of a row's 4-grams that are the commonest one
#     entropy            of the distribution of a row's tokens, in bits per token
#
# The first two are the repetition rules of Rae et al. 2021 (arXiv:2112.11446, table A1), there of words in documents.
# n-grams are counted by 64-bit hashes. One compiled pass over a row, in an order of its own, without the GIL: the same
# numbers on any number of workers. Padding at the end of a row is left out.

#: The columns of `row_facts`.
FACTS = ("duplicate_ngrams", "top_ngram", "entropy")

#: Tokens of the n-grams of the first two columns. Gopher's rules go to 10 words; a word of English is 1.3 tokens.
DUPLICATE_N, TOP_N = 8, 4


def row_facts(batch: CompactBatch) -> NDArray[np.float64]:
    """Return statistics of the text in every sequence, [B, FACTS]: repetition and entropy.

    A sequence that is too short for an n-gram has repetition 0.
    """
    facts = np.zeros((len(batch), len(FACTS)))
    size = 1 << max(4, int(2 * batch.tokens.shape[1] - 1).bit_length())
    fill = facts_u16 if batch.tokens.dtype == np.uint16 else facts_u32
    fill(batch.tokens, _text_lengths(batch), np.empty(size, np.uint64), np.empty(size, np.int64), facts)
    return facts


def _text_lengths(batch: CompactBatch) -> NDArray[np.int64]:
    """Return the number of tokens [B] before the padding of each sequence.

    Padding is the unscored run at the end of a sequence.
    """
    targets = batch.tokens.shape[1] - 1
    lengths = np.full(len(batch), targets + 1, np.int64)
    if batch.unscored is not None and len(batch.unscored):
        begins, ends = batch.unscored[:, 0].astype(np.int64), batch.unscored[:, 1].astype(np.int64)
        last = ends % targets == 0
        rows = ends[last] // targets - 1
        lengths[rows] = begins[last] - rows * targets + 1
    return lengths


@compiled
def facts_u16(
    tokens: NDArray[np.uint16], lengths: NDArray[np.int64], keys: NDArray[np.uint64], counts: NDArray[np.int64],
    facts: NDArray[np.float64],
) -> None:  # fmt: skip
    """Write the statistics of all rows into `facts`, for 16-bit token ids.

    `keys` and `counts` are a hash table; its size is a power of two.
    """


@compiled
def facts_u32(
    tokens: NDArray[np.uint32], lengths: NDArray[np.int64], keys: NDArray[np.uint64], counts: NDArray[np.int64],
    facts: NDArray[np.float64],
) -> None:  # fmt: skip
    """Write the statistics of all rows into `facts`, for 32-bit token ids.

    `keys` and `counts` are a hash table; its size is a power of two.
    """
