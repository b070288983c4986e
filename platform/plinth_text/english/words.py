"""The words of a text as spaCy's blank English tokenizer has them (`spacy/tokenizer.pyx`), white space left out.

A chunk is what stands between white space. Prefixes and suffixes are taken off its ends until none is left or an
exception remains; what remains is an exception with its pieces, a URL, or is split at infixes. Most chunks are letters
alone and one word. Exceptions across words come last (`merges`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from plinth_text.arrays import I32, I64, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.english.merges import Merges, merges_of
from plinth_text.english.tables import EnglishRules, rules, source, with_exceptions


class Splitter(NamedTuple):
    """Tables, and scratch memory for the longest text of a column.

    Args:
        rules, merges: the tables.
        points: code points of a chunk.
        places: where each starts; in the second half, where suffixes of the chunk start, from the last.
        matched: by word: bit n where an exception of n words starts.
        starts, taken, copy: for the exceptions across words.
    """

    rules: EnglishRules
    merges: Merges
    points: I32
    places: I32
    matched: npt.NDArray[np.uint64]
    starts: I64
    taken: U8
    copy: I32

    def arguments(self) -> tuple[Any, ...]:
        """The arrays in the order in which kernels take them (`ENGLISH_SPLITTER` in `tables.h`)."""
        rules, merges, *buffers = self
        return *rules, *merges, *buffers


def splitter(longest: int) -> Splitter:
    """For texts of up to `longest` bytes; untouched pages cost nothing."""
    return _splitter(rules(), _merges(), longest)


def edge_buffer(longest: int) -> I32:
    """A buffer for the edges of the words of the longest text: every character may be one."""
    return np.empty(2 * longest + 4, dtype=np.int32)


def _splitter(tables: EnglishRules, merges: Merges, longest: int) -> Splitter:
    return Splitter(
        tables, merges, np.empty(longest + 1, dtype=np.int32), np.empty(2 * longest + 2, dtype=np.int32),
        np.empty(longest + 1, dtype=np.uint64), np.empty(longest + 1, dtype=np.int64),
        np.empty(longest + 1, dtype=np.uint8), edge_buffer(longest),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _merges() -> Merges:
    """The exceptions that are several words when no exception is known."""
    bare, found = _splitter(with_exceptions([]), merges_of([]), 256), []
    for spaced in source()["exceptions"]:
        text = np.frombuffer(spaced.replace(" ", "").encode(), dtype=np.uint8)
        edges = edge_buffer(text.size)
        count = split(text, 0, text.size, *bare.arguments(), edges)  # type: ignore[call-arg]
        if count > 1:
            found.append([text[edges[2 * i] : edges[2 * i + 1]].copy() for i in range(count)])
    return merges_of(found)


@compiled
def split(
    data: U8, start: int, end: int, flags: U16, tables: U64, pairs: U64, rows: U64, whole: U8, most: int,
    points: I32, places: I32, matched: U64, starts: I64, taken: U8, copy: I32, edges: I32,
) -> int:  # fmt: skip
    """Find the words of `data[start:end]`: word i is `data[edges[2 * i] : edges[2 * i + 1]]`; returns how many.

    Between `end` and `edges`: `Splitter.arguments()`.
    """


def words(text: str) -> list[str]:
    """The words of one text, for people and tests."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    edges = edge_buffer(data.size)
    count = split(data, 0, data.size, *splitter(data.size).arguments(), edges)  # type: ignore[call-arg]
    return [bytes(data[edges[2 * i] : edges[2 * i + 1]]).decode() for i in range(count)]
