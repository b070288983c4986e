"""Hashes of ASCII words, many bytes and many words at once; the same hashes as those of `word_hashes`.

A block of text is folded (word characters in lower case, zero for everything else), then the first byte of every word
is found, then all words are hashed side by side: their first eight bytes, then the next eight of those that are
longer. Each step is a loop without a branch that the compiler turns into vector instructions, or one that handles
eight bytes by a look into a table. The block stays in the nearest cache.

Bytes are taken as a little-endian machine has them, which is every machine that numba compiles for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import uint64

from plinth.compiled import njit
from plinth.text.words.chunks import read8, write8

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

#: Bytes of a block; of 1 to 16 KiB, 2 and 4 KiB are the fastest.
BLOCK = 4096
#: Loops over numbers in the buffer go on to a multiple of this, so that none is left for a loop without vectors.
_STRIDE = 32
#: Words of a block at most, and those of eight bytes or more, in whole strides.
_WORDS, _LONGER = BLOCK // 2 + _STRIDE, BLOCK // 8 + _STRIDE
#: Where in the buffer the parts lie, in bytes: folded text, marks, positions; then numbers of 64 bits.
_MARKS = BLOCK + 8 * _STRIDE + 32
_PLACES = _MARKS + BLOCK // 8 + _STRIDE
_NUMBERS = _PLACES + 2 * _WORDS + 32
BUFFER_BYTES = _NUMBERS + 8 * (_WORDS + 3 * _LONGER)

#: What a word's state is multiplied by for every character.
WORD_FACTOR = np.uint64(0x9FB21C651E98DF25)


def _every(byte: int) -> np.uint64:
    """Eight times the same byte."""
    return np.uint64(byte * 0x0101010101010101)


_LOWS, _TOPS, _SEVENS = _every(0x01), _every(0x80), _every(0x7F)
#: Added to a byte below 128, sets its top bit where the byte is at least the one named.
_FROM_0, _AFTER_9, _FROM_LINE, _AFTER_LINE = (_every(128 - byte) for byte in (0x30, 0x3A, 0x5F, 0x60))
_FROM_A, _AFTER_Z = _every(128 - 0x61), _every(128 - 0x7B)
_CASE = _every(0x20)
#: Multiplied by, brings the lowest bits of eight bytes together in the top byte, in order.
_GATHER = np.uint64(0x0102040810204080)
#: One step of eight bytes, in four 16-bit positions.
_STEP = np.uint64(0x0008000800080008)


def _places() -> tuple[U64, U64]:
    """By eight bits, of which no two neighbours are set: the numbers of those that are, 16 bits each; how many."""
    packed, counts = np.zeros(256, dtype=np.uint64), np.zeros(256, dtype=np.uint64)
    for bits in range(256):
        places = [place for place in range(8) if bits >> place & 1][:4]
        packed[bits] = sum(place << 16 * k for k, place in enumerate(places))
        counts[bits] = len(places)
    return packed, counts


_PACKED, _COUNTS = _places()


@njit(nogil=True, cache=True)
def hash_block(data: U8, start: int, size: int, lower: U64, buffer: U8, out: U64) -> Any:
    """Hash the words of `data[start:start + size]`, ASCII that cuts no word; returns how many there are.

    Args:
        size: at most `BLOCK`.
        lower: by byte, its lower case for a word character, else 0.
        buffer: `BUFFER_BYTES` bytes of scratch memory.
        out: at least size // 2 + 1 states; a word's is not mixed yet.
    """
    folded, marks, places = buffer[:_MARKS], buffer[_MARKS:_PLACES], buffer[_PLACES:_NUMBERS]
    numbers = buffer[_NUMBERS:].view(np.uint64)
    states, long = numbers[:_WORDS], numbers[_WORDS:]
    _fold(data, start, size, lower, folded)
    groups = (size + 7) // 8
    _mark(folded, groups, marks)
    count = _positions(marks, groups, places)
    longer = _first_bytes(folded, places.view(np.uint16), count, states, long)
    for i in range(_strides(count)):
        states[i] = _hashed(uint64(0), states[i])
    if longer:
        _rest(folded, longer, long, long[_LONGER:], long[2 * _LONGER :], states)
    out[:count] = states[:count]
    return count


@njit(inline="always")
def _strides(count: Any) -> Any:
    """Up to a multiple of `_STRIDE`."""
    return (count + _STRIDE - 1) & ~(_STRIDE - 1)


@njit(nogil=True, cache=True)
def _fold(data: U8, start: int, size: int, lower: U64, folded: U8) -> None:
    """Word characters in lower case, zeros for the rest, before the text and after it, from `folded[8]` on."""
    whole = size // 8
    write8(folded, 0, uint64(0))
    for group in range(whole):
        eight = read8(data, start + 8 * group)
        low = eight | _CASE
        letter = (low + _FROM_A) & ~(low + _AFTER_Z) & _TOPS
        other = ((eight + _FROM_0) & ~(eight + _AFTER_9)) | ((eight + _FROM_LINE) & ~(eight + _AFTER_LINE))
        word = (letter | other) & _TOPS
        write8(folded, 8 * group + 8, (eight | (letter >> uint64(2))) & (word - (word >> uint64(7))))
    write8(folded, 8 * whole + 8, uint64(0))
    for i in range(8 * whole, size):
        folded[i + 8] = lower[data[start + i]]
    write8(folded, size + 8, uint64(0))


@njit(nogil=True, cache=True)
def _mark(folded: U8, groups: int, marks: U8) -> None:
    """Eight bits for eight bytes: where a word begins."""
    for group in range(_strides(groups)):
        here, before = read8(folded, 8 * group + 8), read8(folded, 8 * group + 7)
        begins = (here + _SEVENS) & ~(before + _SEVENS) & _TOPS
        marks[group] = ((begins >> uint64(7)) * _GATHER) >> uint64(56)


@njit(nogil=True, cache=True)
def _positions(marks: U8, groups: int, places: U8) -> Any:
    """Where in `folded` the words begin, 16 bits each; four are written whether they are there or not."""
    count, base = uint64(0), _STEP
    for group in range(groups):
        bits = marks[group]
        write8(places, uint64(2) * count, base + _PACKED[bits])
        count += _COUNTS[bits]
        base += _STEP
    return np.int64(count)


@njit(inline="always")
def _until_zero(eight: Any) -> Any:
    """Eight bytes, those from the first zero on cleared; and whether there is none."""
    zero = (eight - _LOWS) & ~eight & _TOPS
    return eight & ((zero & (uint64(0) - zero)) - uint64(1)), zero == uint64(0)


@njit(inline="always")
def _hashed(state: Any, eight: Any) -> Any:
    """The state after up to eight characters; zeros are none."""
    for k in range(8):
        byte = (eight >> uint64(8 * k)) & uint64(0xFF)
        state = (state ^ byte) * WORD_FACTOR if byte != uint64(0) else state
    return state


@njit(nogil=True, cache=True)
def _first_bytes(folded: U8, places: Any, count: int, states: U64, long: U64) -> Any:
    """The first eight bytes of every word into `states`; words that fill them into `long`: number and position."""
    longer = uint64(0)
    for i in range(count):
        at = uint64(places[i])
        states[i], more = _until_zero(read8(folded, at))
        long[longer] = (uint64(i) << uint64(32)) | at
        longer += uint64(more)
    return np.int64(longer)


@njit(nogil=True, cache=True)
def _rest(folded: U8, longer: Any, long: U64, bytes_: U64, own: U64, states: U64) -> None:
    """Hash on eight bytes of every word that has more, until none has."""
    while longer:
        for j in range(longer):
            word = long[j]
            bytes_[j], _ = _until_zero(read8(folded, (word & uint64(0xFFFFFFFF)) + uint64(8)))
            own[j] = states[word >> uint64(32)]
        for j in range(_strides(longer)):
            own[j] = _hashed(own[j], bytes_[j])
        left = uint64(0)
        for j in range(longer):
            word = long[j]
            states[word >> uint64(32)] = own[j]
            long[left] = word + uint64(8)
            left += uint64(bytes_[j] >> uint64(56) != uint64(0))
        longer = np.int64(left)
