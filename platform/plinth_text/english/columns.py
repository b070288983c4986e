"""The words of a column of texts, split once for all that count them.

Annotators of one pass are given the same texts one after the other, so the words of the column that was split last are
kept, by thread. A column is known by its memory, which is held as long as its words are.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from plinth_text.arrays import I32, I64, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.english.words import splitter

_MOST = 2**31 - 1


class ColumnWords(NamedTuple):
    """Words of the texts of a column, W in all; none where they are not wanted.

    Args:
        first: [texts + 1] text d has the words `first[d]:first[d + 1]`; empty where they are not wanted.
        edges: [2 * W] bytes from the start of their text: word i is `text[edges[2 * i] : edges[2 * i + 1]]`.
    """

    first: I64
    edges: I32


NO_WORDS = ColumnWords(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))


class _Last(threading.local):
    """The column that was split last, and its words."""

    data: U8 | None = None
    offsets: I64 | None = None
    words: ColumnWords = NO_WORDS


_last = _Last()


def column_words(data: U8, offsets: I64) -> ColumnWords:
    """The words of the texts that `codepoints.utf8` gives."""
    if _last.data is None or _last.offsets is None or _place(_last.data, _last.offsets) != _place(data, offsets):
        forget()
        _last.words, _last.data, _last.offsets = _column_words(data, offsets), data, offsets
    return _last.words


def forget() -> None:
    """Keep no column and no words."""
    _last.data, _last.offsets, _last.words = None, None, NO_WORDS


def _place(data: U8, offsets: I64) -> tuple[int, ...]:
    return data.ctypes.data, data.size, offsets.ctypes.data, offsets.size


def _column_words(data: U8, offsets: I64) -> ColumnWords:
    longest = int(np.diff(offsets).max(initial=0))
    if longest > _MOST:
        raise ValueError(f"a text of {longest} bytes")
    first = np.zeros(offsets.size, dtype=np.int64)
    edges = np.empty(2 * int(offsets[-1] - offsets[0]) + 2, dtype=np.int32)  # untouched pages cost nothing
    split_all(data, offsets, *splitter(longest).arguments(), first, edges)  # type: ignore[call-arg]
    return ColumnWords(first, edges)


@compiled
def split_all(
    data: U8, offsets: I64, flags: U16, tables: U64, pairs: U64, rows: U64, whole: U8, most: int, points: I32,
    places: I32, matched: U64, starts: I64, taken: U8, copy: I32, first: I64, edges: I32,
) -> None:  # fmt: skip
    """Split all texts: fill in `ColumnWords`. Between `offsets` and `first`: `Splitter.arguments()`."""
