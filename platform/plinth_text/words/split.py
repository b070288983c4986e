"""Positions of the words and line ends of a text, for the kernels that count by word or line.

Words are the pieces between white space, as `str.split` has them. Positions are bytes of the buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from plinth_text.arrays import I64, U8
from plinth_text.compiled import compiled


def edge_buffer(offsets: I64, dtype: Any = np.int64) -> npt.NDArray[Any]:
    """A buffer for the edges of the words, or the line ends, of the longest text of a column."""
    longest = int(np.diff(offsets).max(initial=0))
    if longest > np.iinfo(dtype).max:
        raise ValueError(f"a text of {longest} bytes")
    return np.empty(longest + 2, dtype=dtype)


def split(data: U8, start: int, end: int, table: U8, edges: npt.NDArray[np.integer]) -> int:
    """The words of `data[start:end]`: word i is `data[edges[2 * i] : edges[2 * i + 1]]`; returns how many.

    Args:
        table: `unicode.flags()`.
        edges: at least (end - start) + 2 positions.
    """
    chosen: Any = split_i32 if edges.dtype == np.int32 else split_i64
    return int(chosen(data, start, end, table, edges))


@compiled
def split_i32(data: U8, start: int, end: int, table: U8, edges: npt.NDArray[np.int32]) -> int:
    """As `split`."""


@compiled
def split_i64(data: U8, start: int, end: int, table: U8, edges: I64) -> int:
    """As `split`."""


@compiled
def count_words(data: U8, start: int, end: int, plain: bool, table: U8) -> int:
    """Count the words that `split` finds. `plain`: all is ASCII."""


@compiled
def line_ends(data: U8, start: int, end: int, out: I64) -> int:
    """Positions of `\\n`; returns how many."""


@compiled
def breaks(data: U8, start: int, end: int, table: U8, out: I64) -> int:
    """Positions of the characters that end lines for `str.splitlines`; returns how many. `\\r\\n` are two."""
