"""Positions of the words and line ends of a text, for the kernels that count by word or line.

Words are the pieces between white space, as `str.split` has them. Positions are bytes of the buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import uint64

from plinth.compiled import kernel, njit
from plinth.text.unicode.characters import BREAK, SPACE, flags
from plinth.text.unicode.codepoints import decode
from plinth.text.words.ngrams import I64, U8

#: 1 for white space, and for what ends lines, by ASCII byte.
_SPACES = (flags()[:256] & SPACE).astype(np.uint64)
_BREAKS = ((flags()[:256] & BREAK) > 0).astype(np.uint64)


def edge_buffer(offsets: I64, dtype: Any = np.int64) -> npt.NDArray[Any]:
    """A buffer for the edges of the words, or the line ends, of the longest text of a column."""
    longest = int(np.diff(offsets).max(initial=0))
    if longest > np.iinfo(dtype).max:
        raise ValueError(f"a text of {longest} bytes")
    return np.empty(longest + 2, dtype=dtype)


@kernel
def split(data: U8, start: int, end: int, table: U8, edges: npt.NDArray[np.integer]) -> int:
    """The words of `data[start:end]`: word i is `data[edges[2 * i] : edges[2 * i + 1]]`; returns how many.

    Args:
        table: `characters.flags()`.
        edges: at least (end - start) + 2 positions.
    """
    count, at, inside = 0, start, 0
    while at < end:
        at, count, inside = _ascii(data, at, end, edges, count, inside)
        while at < end and data[at] >= 128:
            point, size = decode(data, at, end)
            word = 1 - (table[point] & SPACE)
            edges[count] = at
            count += inside ^ word
            inside = word
            at += size
    edges[count] = end
    return (count + inside) >> 1


@njit(inline="always")
def _ascii(data: Any, start: Any, end: Any, edges: Any, count: Any, inside: Any) -> Any:
    """On until a byte that is not ASCII. The position is stored at every byte and kept only at an edge: no branch."""
    at, last, found, one = uint64(start), uint64(end), uint64(count), uint64(1)
    before = one - uint64(inside)
    while at < last and data[at] < 128:
        space = _SPACES[data[at]]
        edges[found] = at
        found += space ^ before
        before = space
        at += one
    return np.int64(at), np.int64(found), np.int64(one - before)


@kernel
def count_words(data: U8, start: int, end: int, plain: bool, table: U8) -> int:
    """How many words `split` finds. `plain`: all is ASCII."""
    count, at, inside = 0, start, 0
    if plain:
        text = data[start:end]
        before, here = text[:-1], text[1:]
        for i in range(here.size):
            count += _ascii_space(before[i]) & ~_ascii_space(here[i])
        return count + (text.size > 0 and not _ascii_space(text[0]))
    while at < end:
        point, size = np.int64(data[at]), 1
        if point >= 128:
            point, size = decode(data, at, end)
        word = 1 - (table[point] & SPACE)
        count += word & (inside ^ 1)
        inside = word
        at += size
    return count


@njit(inline="always")
def _ascii_space(byte: Any) -> Any:
    """As `_SPACES`, so that loops vectorise."""
    return (byte == 32) | ((byte >= 9) & (byte <= 13)) | ((byte >= 28) & (byte <= 31))


@kernel
def line_ends(data: U8, start: int, end: int, out: npt.NDArray[np.integer]) -> int:
    """Positions of `\\n`; returns how many."""
    count, at, last, one = uint64(0), uint64(start), uint64(end), uint64(1)
    while at < last:
        out[count] = at
        count += uint64(data[at] == 10)
        at += one
    found: Any = np.int64(count)
    return int(found)


@kernel
def breaks(data: U8, start: int, end: int, table: U8, out: I64) -> int:
    """Positions of the characters that end lines for `str.splitlines`; returns how many. `\\r\\n` are two."""
    count, at = 0, start
    while at < end:
        at, count = _ascii_breaks(data, at, end, out, count)
        while at < end and data[at] >= 128:
            point, size = decode(data, at, end)
            out[count] = at
            count += (table[point] & BREAK) != 0
            at += size
    return count


@njit(inline="always")
def _ascii_breaks(data: Any, start: Any, end: Any, out: Any, count: Any) -> Any:
    """On until a byte that is not ASCII, without a branch but that."""
    at, last, found, one = uint64(start), uint64(end), uint64(count), uint64(1)
    while at < last and data[at] < 128:
        out[found] = at
        found += _BREAKS[data[at]]
        at += one
    return np.int64(at), np.int64(found)
