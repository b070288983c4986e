"""Fold texts: texts that differ only in case and white space become equal.

Letters are lower-cased as in `ngrams`; runs of white space (ASCII and Unicode) become one space, none at the
ends. The rest, punctuation included, stays as it is.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
from numba import uint64

from plinth.compiled import njit
from plinth.text.unicode.codepoints import LOWER, WIDE_SPACES, decode, utf8
from plinth.text.words.ngrams import U8

#: By ASCII byte: 1 for white space (tab to carriage return, the separators 28-31, space).
_SPACES = np.array([byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31 for byte in range(256)], dtype=np.uint64)
#: By ASCII byte: itself lower-cased; a space for white space.
_FOLDED = np.array(
    [32 if _SPACES[byte] else ord(chr(byte).lower()) if byte < 128 else byte for byte in range(256)], dtype=np.uint8
)


def digests(texts: pa.Array) -> pa.Array:
    """The first 16 bytes of SHA-256 over each folded text, as `binary(16)`."""
    data, offsets = utf8(texts)
    longest = int(np.diff(offsets).max(initial=0))
    out = np.empty(longest + 1, dtype=np.uint8)
    view = out.data
    values = bytearray()
    for doc in range(offsets.size - 1):
        size = fold(data, offsets[doc], offsets[doc + 1], out)
        values += hashlib.sha256(view[:size]).digest()[:16]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), offsets.size - 1, [None, pa.py_buffer(bytes(values))])


@njit(nogil=True, cache=True)
def fold(data: U8, start: int, end: int, out: U8) -> int:
    """Fold `data[start:end]` into `out`, which must hold one byte more; returns the folded length."""
    size, at, space = 0, start, 1
    while at < end:
        at, size, space = _ascii(data, at, end, out, size, space)
        while at < end and data[at] >= 128:
            point, length = decode(data, at, end)
            if _wide_space(point):
                out[size] = 32
                size += 1 - space
                space = 1
            else:
                size = _copy(data, at, point, length, out, size)
                space = 0
            at += length
    return size - 1 if size and space else size


@njit(inline="always")
def _ascii(data: Any, start: Any, end: Any, out: Any, length: Any, within: Any) -> Any:
    """Fold up to a byte that is not ASCII. A space after a space is overwritten by the next byte: no branch."""
    at, last, size, space, one = uint64(start), uint64(end), uint64(length), uint64(within), uint64(1)
    while at < last and data[at] < 128:
        byte = data[at]
        here = _SPACES[byte]
        out[size] = _FOLDED[byte]
        size += one - (here & space)
        space = here
        at += one
    return np.int64(at), np.int64(size), np.int64(space)


@njit(inline="always")
def _wide_space(point: int) -> bool:
    found = False
    for i in range(WIDE_SPACES.size):
        found |= WIDE_SPACES[i] == point
    return found


@njit(nogil=True, cache=True)
def _copy(data: U8, at: int, point: int, length: int, out: U8, size: int) -> int:
    lower = LOWER[point] if point < LOWER.size else point
    if length == 2 and lower != point and lower >= 0x80:
        out[size] = 0xC0 | (lower >> 6)
        out[size + 1] = 0x80 | (lower & 0x3F)
    else:
        for i in range(length):
            out[size + i] = data[at + i]
    return size + length
