"""Find the ends of fastText's tokens, eight bytes at a time; hash them and count their letters on the way.

Does not belong here: the features of a token (`rows`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import uint64

from plinth.compiled import njit
from plinth.text.unicode.characters import ALPHA, flags
from plinth.text.unicode.codepoints import decode
from plinth.text.words.chunks import low_bytes, popcount, read, read8
from plinth.text.words.ngrams import U8
from plinth.text.words.word_hashes import mix

_Function = TypeVar("_Function", bound=Callable[..., Any])

BROKEN = 32  # beside the flags of `characters`

SEPARATOR = np.zeros(256, dtype=np.bool_)
SEPARATOR[[0, 9, 10, 11, 12, 13, 32]] = True

_SEED, _FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x9FB21C651E98DF25)
_TOPS, _LOWS = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
_SPACES = np.uint64(0x2020202020202020)


def bare(function: _Function) -> _Function:
    """Compile a function that makes no arrays: without reference counts (a fifth of the time), with numpy's division.

    `_nrt` is numba's own switch for it; a kernel that did make an array would not compile.
    """
    made: _Function = njit(nogil=True, cache=True, error_model="numpy", _nrt=False)(function)  # type: ignore[call-overload]
    return made


def _each(value: int) -> np.uint64:
    """The same byte eight times."""
    return np.uint64(value * 0x0101010101010101)


# Added to seven-bit numbers, these set the top bit from a limit on.
_FROM_1, _FROM_9, _FROM_14 = _each(0x80 - 1), _each(0x80 - 9), _each(0x80 - 14)
_FROM_A, _FROM_AFTER_Z = _each(0x80 - ord("a")), _each(0x80 - ord("z") - 1)


@lru_cache(maxsize=1)
def point_flags() -> npt.NDArray[np.uint8]:
    """`ALPHA` and `BROKEN` by code point: private, unassigned, surrogate, C1 control, or U+FFFD."""
    table = flags() & np.uint8(ALPHA)
    broken = [point for point in range(0x110000) if unicodedata.category(chr(point)) in {"Cn", "Co", "Cs"}]
    table[broken] |= BROKEN
    table[0x80:0xA0] |= BROKEN
    table[0x85] &= 0xFF ^ BROKEN  # NEL is a line end
    table[0xFFFD] |= BROKEN
    return table


@njit(inline="always")
def _ends(eight: Any) -> Any:
    """The top bit of each byte at which a run of ASCII ends: a separator, or above 127."""
    low = eight & _LOWS
    others = (low + _FROM_1) & ((low ^ _SPACES) + _FROM_1) & (~(low + _FROM_9) | (low + _FROM_14))
    return (eight | ~others) & _TOPS


@njit(inline="always")
def _letters(eight: Any) -> Any:
    """The top bit of each byte that is an ASCII letter; bytes are below 128."""
    lower = eight | _SPACES
    return (lower + _FROM_A) & ~(lower + _FROM_AFTER_Z) & _TOPS


@njit(inline="always")
def _mixed(state: Any, eight: Any) -> Any:
    state = (state ^ eight) * _FACTOR
    return state ^ (state >> uint64(32))


@njit(inline="always")
def token(data: U8, at: Any, stop: Any, points: U8) -> Any:
    """The token that starts at `data[at]`, and ends before `stop`.

    Returns:
        Its end; its key, an odd 64-bit hash of its bytes; its letters, code points, and damaged code points.
    """
    start, state = at, _SEED
    letters, beyond, damaged = uint64(0), 0, 0  # beyond: bytes that continue a code point
    while True:
        left = min(stop - at, 8)
        eight = read8(data, at) if at + 8 <= data.size else (read(data, at, left) if left else uint64(0))
        ends = _ends(eight)
        ends |= uint64(0) if left == 8 else _TOPS << uint64(8 * left)
        size = np.int64(popcount((ends & (~ends + uint64(1))) - uint64(1)) >> uint64(3))  # zeros below the lowest bit
        if size:
            eight = low_bytes(eight, size)
            letters += popcount(_letters(eight))
            state = _mixed(state, eight)
            at += size
        if size == 8:
            continue
        if at >= stop or data[at] < 128:
            break
        while at < stop and data[at] >= 128:
            wide, length = decode(data, at, stop)
            whole = uint64(data[at])
            for i in range(1, length):
                whole = (whole << uint64(8)) | uint64(data[at + i])
            state = _mixed(state, whole)
            flag = points[wide]
            letters += uint64((flag & ALPHA) != 0)
            damaged += (flag & BROKEN) != 0
            at += length
            beyond += length - 1
            if 0xC2 <= wide <= 0xEF and at < stop and data[at] >= 128:
                damaged += _mojibake(wide, decode(data, at, stop)[0])
    key = mix(state ^ uint64(at - start)) | uint64(1)
    return at, key, np.int64(letters), at - start - beyond, damaged


@njit(inline="always")
def _mojibake(first: Any, second: Any) -> Any:
    """Whether two characters come of UTF-8 that was read as Latin-1 or Windows-1252."""
    upper = 0x80 <= second <= 0xBF
    if first == 0xC2 or first == 0xC3 or first == 0xD0 or first == 0xD1:
        return upper or second == 0x20AC or second == 0x2122 or 0x2018 <= second <= 0x203A or 0x152 <= second <= 0x192
    if first == 0xE2:
        return second == 0x20AC or second == 0x80 or second == 0x201A or second == 0x201E
    return first == 0xEF and second == 0xBB


@bare
def key_of(data: U8, start: int, end: int) -> Any:
    """The key of `data[start:end]`, as `token` returns it; of a run that ends before `end`, that run's."""
    return token(data, start, end, _NO_FLAGS)[1]


#: For `key_of`, which counts nothing.
_NO_FLAGS = np.zeros(0x110000, dtype=np.uint8)
