"""Encode columns of text: words by a scan, tokens of a word from a table, the library only for new words.

No token crosses the border of two words, so a text's tokens are its words' tokens one after the other. Text repeats
its words: after some megabytes nearly all are in the table, and encoding costs a scan and a look-up per word. The
result does not depend on the state of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from plinth.tokens.tokenizer.words import classes, pattern_of
from plinth_text.compiled import compiled
from plinth_text.unicode import utf8

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

#: Slots of the table. It is emptied when half of them may be used, or its words exceed `MOST_BYTES`.
SLOTS = 2**20
MOST_BYTES = 2**26

#: Bytes of text per scan, since each of them might be a new word.
BATCH_BYTES = 2**18


class Encoder:
    """Tokens of texts, as the tokenizer itself would give them.

    Args:
        tokenizer: one of our pipelines (see `words.pattern_of`).

    Raises:
        ValueError: its pipeline is not one of ours.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        pattern = pattern_of(tokenizer.pre_tokenizer)
        if pattern is None:
            raise ValueError("the tokenizer cuts words by a pattern that is not one of ours")
        self._tokenizer, self._pattern, self._classes = tokenizer, pattern, classes()
        self._forget()

    def encode(self, texts: pa.Array, dtype: str) -> tuple[npt.NDArray[np.unsignedinteger], I64]:
        """Token ids of all texts in one array, and where each text's begin: [texts + 1].

        Memory is about ten times that of the longest text, and the ids.
        """
        data, offsets = utf8(texts)
        made = [self._encode(data, offsets[a : b + 1], dtype) for a, b in _slices(offsets)]
        if len(made) == 1:
            return made[0]
        lengths = np.concatenate([np.diff(first) for _, first in made]) if made else np.empty(0, np.int64)
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return np.concatenate([ids for ids, _ in made]) if made else np.empty(0, dtype), first

    def _encode(self, data: U8, offsets: I64, dtype: str) -> tuple[npt.NDArray[np.unsignedinteger], I64]:
        size = int(offsets[-1] - offsets[0])
        self._reserve(size)
        words, counts = np.empty(size, np.int32), np.zeros(offsets.size - 1, np.int64)
        held, used = scan(
            data, offsets, self._classes, *self._pattern, self._slots, self._starts, self._bytes, self._held,
            words, counts,
        )  # fmt: skip
        self._learn(held)
        first = np.zeros(offsets.size, np.int64)
        total = measure(words[:used], counts, self._token_starts, first)
        out = np.empty(total, dtype)
        gather = gather_u16 if out.dtype == np.uint16 else gather_u32
        gather(words[:used], self._token_starts, self._tokens, out)
        return out, first

    def _forget(self) -> None:
        self._slots = np.zeros((SLOTS, 2), np.uint64)
        self._starts, self._bytes = np.zeros(1, np.int64), np.empty(0, np.uint8)
        self._held = 0
        self._token_starts, self._tokens = np.zeros(1, np.int64), np.empty(0, np.uint32)

    def _reserve(self, size: int) -> None:
        """Grow the table for the worst case of the next texts: a new word per byte."""
        if self._held and (self._held + size > SLOTS // 2 or self._starts[self._held] + size > MOST_BYTES):
            self._forget()
        if size > SLOTS // 2:
            self._slots = np.zeros((1 << (2 * size).bit_length(), 2), np.uint64)
        self._starts = _grown(self._starts, self._held + size + 1)
        self._bytes = _grown(self._bytes, int(self._starts[self._held]) + size + 8)

    def _learn(self, held: int) -> None:
        """Encode the new words with the library."""
        if held == self._held:
            return
        edges = self._starts[self._held : held + 1].tolist()
        data = self._bytes.data
        fresh = [str(data[a:b], "utf-8") for a, b in pairwise(edges)]
        ids = [one.ids for one in self._tokenizer.encode_batch_fast(fresh, add_special_tokens=False)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        begin = int(self._token_starts[self._held])
        self._token_starts = _grown(self._token_starts, held + 1)
        self._token_starts[self._held + 1 : held + 1] = begin + np.cumsum(lengths)
        end = int(self._token_starts[held])
        self._tokens = _grown(self._tokens, end)
        self._tokens[begin:end] = np.fromiter((token for one in ids for token in one), np.uint32, end - begin)
        self._held = held


def _slices(offsets: I64) -> Iterator[tuple[int, int]]:
    """Rows per scan: several texts, or one long one."""
    first, last = 0, offsets.size - 1
    while first < last:
        stop = int(np.searchsorted(offsets, offsets[first] + BATCH_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), last)
        yield first, stop
        first = stop


def _grown(array: Any, size: int) -> Any:
    """The array with space for `size` items, its contents kept."""
    if array.size >= size:
        return array
    larger = np.zeros(max(size, 2 * array.size), array.dtype)
    larger[: array.size] = array
    return larger


@compiled
def scan(
    data: U8, offsets: I64, table: U8, letters: int, alone: int, group: int, lines: bool, slots: U64, starts: I64,
    known: U8, held: int, words: I32, counts: I64,
) -> tuple[int, int]:  # fmt: skip
    """Number every word of the texts and add new ones. Returns how many words the table has, and how many the texts.

    After `table`: `WordPattern`.
    """


@compiled
def measure(words: I32, counts: I64, token_starts: I64, first: I64) -> int:
    """Fill in where each text's tokens begin, from `first[0]` on; returns how many there are."""


@compiled
def gather_u16(words: I32, token_starts: I64, tokens: U32, out: npt.NDArray[np.uint16]) -> None:
    """Fill in the tokens of all words."""


@compiled
def gather_u32(words: I32, token_starts: I64, tokens: U32, out: U32) -> None:
    """As `gather_u16`."""
