"""Encode vocabularies of characters: words by a scan, tokens of a word from a table, the library only for new words.

No token crosses the border of two words, so a text's tokens are its words' tokens one after the other. Text repeats
its words: after some megabytes nearly all are in the table, and encoding costs a scan and a look-up per word. The
result does not depend on the state of the table.

The scan cuts words as the regular expressions of `bpe-fallback` and `unigram` do (`word_table.c`), five times as fast
as the library. Character classes are those of the library itself, found once per process.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.pipeline import isolated, pipeline, splitter_of, state
from plinth.tokens.tokenizer.reference import Encoded, joined
from plinth_text.compiled import compiled
from plinth_text.unicode import utf8

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

#: Bits of a character's class: a letter or mark, the `\\p{N}` of the patterns, white space.
LETTER, NUMBER, SPACE = 1, 2, 4

#: A longer word is cut (`word_table.c`): an encoding takes a hundred times the memory of its text.
MAX_WORD_BYTES = 2**16


def group_of(pre_tokenizer: Any) -> int | None:
    """Return the maximum number of digits in a word of `bpe-fallback` and `unigram`; 0 for any number, with the space
    before them. The result is None for other pre-tokenizers."""
    return _groups().get(state(pre_tokenizer))


@cache
def _groups() -> dict[bytes, int]:
    groups = {"single": 1, "triples": 3, "runs": 0}
    made = {n: pipeline(TokenizerParameters(kind="unigram", digits=digits)) for digits, n in groups.items()}
    return {state(one.pre_tokenizer): n for n, one in made.items()}


@cache
def classes() -> U8:
    """Return the character class of every code point, [0x110000]."""
    table = np.zeros(0x110000, dtype=np.uint8)
    for bit, name in ((LETTER, r"[\p{L}\p{M}]"), (NUMBER, r"\p{N}"), (SPACE, r"\s")):
        table[isolated(splitter_of(f"{name}+"))] |= bit
    return table


#: Slots of the table. It is emptied when half of them may be used, or its words exceed `MOST_BYTES`.
SLOTS = 2**20
MOST_BYTES = 2**26

#: Bytes of text per scan, since each of them might be a new word.
BATCH_BYTES = 2**18


class WordTable:
    """Encoder that returns the same tokens as the tokenizer itself.

    Args:
        tokenizer: tokenizer with a word pattern that `group_of` knows.
        end: token after each text.

    Raises:
        ValueError: the word pattern is unknown.
    """

    name = "word table"

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        group = group_of(tokenizer.pre_tokenizer)
        if group is None:
            raise ValueError("the tokenizer splits words by a pattern that Plinth does not know")
        self._tokenizer, self._group, self._classes = tokenizer, group, classes()
        self._end = np.array(end, np.uint32)
        self._forget()

    def encode(self, texts: pa.Array, dtype: str) -> Encoded:
        """Return the token ids of all texts, each followed by `end`, and the start of each text in them, [texts + 1].

        Peak memory is about ten times the longest text, plus the ids.
        """
        data, offsets = utf8(texts)
        made = (self._encode(data, offsets[a : b + 1], dtype) for a, b in _slices(offsets))
        ids, first = joined(made, dtype)
        return np.insert(ids, first[1:], self._end.astype(dtype)), first + np.arange(first.size)

    def _encode(self, data: U8, offsets: I64, dtype: str) -> Encoded:
        size = int(offsets[-1] - offsets[0])
        self._reserve(size)
        words, counts = np.empty(size, np.int32), np.zeros(offsets.size - 1, np.int64)
        held, used = scan(
            data, offsets, self._classes, self._group, self._slots, self._starts, self._bytes, self._held,
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
        """Grow the table for the worst case of the next texts: one new word per byte."""
        if self._held and (self._held + size > SLOTS // 2 or self._starts[self._held] + size > MOST_BYTES):
            self._forget()
        if size > SLOTS // 2:
            self._slots = np.zeros((1 << (2 * size).bit_length(), 2), np.uint64)
        self._starts = _grown(self._starts, self._held + size + 1)
        self._bytes = _grown(self._bytes, int(self._starts[self._held]) + size + 8)

    def _learn(self, held: int) -> None:
        """Encode the new words with the tokenizers library, and add their tokens to the table."""
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
    """Yield the ranges of rows to scan at once: several short texts, or one long text."""
    first, last = 0, offsets.size - 1
    while first < last:
        stop = int(np.searchsorted(offsets, offsets[first] + BATCH_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), last)
        yield first, stop
        first = stop


def _grown(array: Any, size: int) -> Any:
    """Return the array enlarged to `size` items, with its contents unchanged."""
    if array.size >= size:
        return array
    larger = np.zeros(max(size, 2 * array.size), array.dtype)
    larger[: array.size] = array
    return larger


@compiled
def scan(
    data: U8, offsets: I64, table: U8, group: int, slots: U64, starts: I64, known: U8, held: int, words: I32,
    counts: I64,
) -> tuple[int, int]:  # fmt: skip
    """Write the table number of every word of the texts into `words`, and add new words to the table.

    Return the number of words in the table, and the number of words in the texts.
    """


@compiled
def measure(words: I32, counts: I64, token_starts: I64, first: I64) -> int:
    """Write the start of each text's tokens into `first`, after `first[0]`, and return the number of tokens."""


@compiled
def gather_u16(words: I32, token_starts: I64, tokens: U32, out: npt.NDArray[np.uint16]) -> None:
    """Fill `out` with the 16-bit token ids of all words."""


@compiled
def gather_u32(words: I32, token_starts: I64, tokens: U32, out: U32) -> None:
    """Fill `out` with the 32-bit token ids of all words."""


@compiled
def word_ends(data: U8, table: U8, group: int, out: I64) -> int:
    """Write the end of each word of a text into `out`, and return the number of words; for tests."""
