"""Words of a text and their hashes, in one pass over the bytes.

A **word** is a maximal run of letters, digits and underscores; everything else (white space, punctuation,
symbols, control characters) separates words and is stripped. Letters are lower-cased where that is one code
point below U+0530 to another (Latin, Greek, Cyrillic, Armenian). In scripts that write no spaces (Chinese,
Japanese, Thai, Lao, Khmer, Myanmar) and for emoji, every character is a word of its own.

Hashes are 64 bits. A word's state is 0 before its first character c and (state xor c) * `WORD_FACTOR` after each;
the last is mixed. Long runs of ASCII are hashed in blocks (`word_blocks`), everything else byte by byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import uint64

from plinth.compiled import njit
from plinth.text.unicode.codepoints import LOWER, SEPARATOR, SINGLE, decode, kind
from plinth.text.words.chunks import ascii_end
from plinth.text.words.word_blocks import BLOCK, BUFFER_BYTES, WORD_FACTOR, hash_block

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)

#: By ASCII byte: the lower-cased byte of a word character, else 0; and all ones for a word character, else 0.
_ASCII_LOWER = np.array(
    [ord(chr(byte).lower()) if byte < 128 and (chr(byte).isalnum() or chr(byte) == "_") else 0 for byte in range(256)],
    dtype=np.uint64,
)
_ASCII_WORD = np.where(_ASCII_LOWER > 0, np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0))
#: Runs of ASCII from this many bytes on are hashed in blocks.
WIDE = 384


@njit(inline="always")
def mix(value: Any) -> Any:
    """The 64-bit finaliser of MurmurHash3 (Appleby, public domain): every bit depends on every bit."""
    value ^= value >> uint64(33)
    value *= _MIX_1
    value ^= value >> uint64(33)
    value *= _MIX_2
    value ^= value >> uint64(33)
    return value


def scratch(offsets: I64) -> U64:
    """A buffer for the word hashes of the longest text of a column."""
    longest = int(np.diff(offsets).max(initial=0))
    return np.empty(longest // 2 + 4, dtype=np.uint64)


@njit(nogil=True, cache=True)
def hash_words(data: U8, start: int, end: int, out: U64) -> int:
    """Hash the words of `data[start:end]` into `out`; returns how many there are.

    `out` must hold (end - start) // 2 + 4 values: no encoding packs words closer.
    """
    count, at, inside = 0, start, 0
    state = uint64(0)
    buffer = np.empty(BUFFER_BYTES if end - start >= WIDE else 0, dtype=np.uint8)
    while at < end:
        stop = ascii_end(data, at, end)
        if stop - at >= WIDE:
            at, count, state, inside = _ascii_blocks(data, at, stop, buffer, out, count, state, inside)
        else:
            at, count, state, inside = _ascii_run(data, at, stop, out, count, state, inside)
        while at < end and data[at] >= 128:
            point, size = decode(data, at, end)
            at += size
            what = kind(point)
            if what in (SEPARATOR, SINGLE):
                out[count] = state
                count += inside
                state, inside = uint64(0), 0
                if what == SINGLE:
                    out[count] = uint64(point) * WORD_FACTOR
                    count += 1
            else:
                lower = LOWER[point] if point < LOWER.size else point
                state = (state ^ uint64(lower)) * WORD_FACTOR
                inside = 1
    out[count] = state
    count += inside
    for i in range(count):
        out[i] = mix(out[i])
    return count


@njit(inline="always")
def _ascii_blocks(data: Any, start: Any, end: Any, buffer: Any, out: Any, words: Any, state: Any, inside: Any) -> Any:
    """As `_ascii_run`, in blocks that end at a separator; a word that is open at `start`, and one longer than a block,
    go byte by byte."""
    at, count = start, words
    while at < end:
        stop = at if inside else _after_separator(data, at, min(at + BLOCK, end))
        if stop > at:
            count += hash_block(data, at, stop - at, _ASCII_LOWER, buffer, out[count:])
            at = stop
        else:
            while stop < end and _ASCII_WORD[data[stop]]:
                stop += 1
            at, count, state, inside = _ascii_run(data, at, min(stop + 1, end), out, count, state, inside)
    return at, count, state, inside


@njit(inline="always")
def _after_separator(data: Any, start: Any, end: Any) -> Any:
    """The position after the last separator of `data[start:end]`; `start` where there is none."""
    while end > start and _ASCII_WORD[data[end - 1]]:
        end -= 1
    return end


@njit(inline="always")
def _ascii_run(data: Any, start: Any, end: Any, out: Any, words: Any, state: Any, inside: Any) -> Any:
    """Hash ASCII on to `end`; returns the position, the number of words, the state, whether it is inside a word.

    No branch: the state is stored at every byte, and the number advances only where a word ends. Everything is
    unsigned, which spares a test for negative indices at every access; a number advances by taking away minus one.
    """
    at, last, count, one, within = uint64(start), uint64(end), uint64(words), uint64(1), uint64(0) - uint64(inside)
    while at < last:
        byte = uint64(data[at])
        word = _ASCII_WORD[byte]
        out[count] = state
        count -= within & ~word
        state = ((state ^ _ASCII_LOWER[byte]) * WORD_FACTOR) & word
        within = word
        at += one
    return np.int64(at), np.int64(count), state, np.int64(within & one)
