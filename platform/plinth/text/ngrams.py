"""Words, word hashes and word n-gram hashes of Arrow `large_string` columns, in one pass over the bytes.

A **word** is a maximal run of letters, digits and underscores; everything else (white space, punctuation,
symbols, control characters) separates words and is stripped. Letters are lower-cased where that is one code
point below U+0530 to another (Latin, Greek, Cyrillic, Armenian). In scripts that write no spaces (Chinese,
Japanese, Thai, Lao, Khmer, Myanmar) and for emoji, every character is a word of its own.

An **n-gram** (shingle) is n successive words. A text of fewer than n words, but at least one, has exactly one:
all its words. A text without words has none. Hashes are 64 bits: two different n-grams collide with
probability about 2^-64, so a pair of million-word texts is wrong by one n-gram once in ten million.

Letters: D texts of a column, G n-grams of all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit, uint64

from plinth.text.chunks import ascii_end
from plinth.text.codepoints import LOWER, SEPARATOR, SINGLE, decode, kind, utf8

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_WORD_FACTOR = np.uint64(0x9FB21C651E98DF25)
_GRAM_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)

#: n-grams hashed in one pass.
_BLOCK = 1024

#: By ASCII byte: the lower-cased byte of a word character, else 0; and all ones for a word character, else 0.
_ASCII_LOWER = np.array(
    [ord(chr(byte).lower()) if byte < 128 and (chr(byte).isalnum() or chr(byte) == "_") else 0 for byte in range(256)],
    dtype=np.uint64,
)
_ASCII_WORD = np.where(_ASCII_LOWER > 0, np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0))
#: Runs of ASCII from this many bytes on are hashed in two halves at once.
_TWO_HALVES = 64


@njit(inline="always")
def mix(value: Any) -> Any:
    """The 64-bit finaliser of MurmurHash3 (Appleby, public domain): every bit depends on every bit."""
    value ^= value >> uint64(33)
    value *= _MIX_1
    value ^= value >> uint64(33)
    value *= _MIX_2
    value ^= value >> uint64(33)
    return value


@njit(nogil=True, cache=True)
def hash_words(data: U8, start: int, end: int, out: U64) -> int:
    """Hash the words of `data[start:end]` into `out`; returns how many there are.

    `out` must hold (end - start) // 2 + 4 values: no encoding packs words closer.
    """
    count, at, inside = 0, start, 0
    state = uint64(0)
    while at < end:
        stop = ascii_end(data, at, end)
        if stop - at >= _TWO_HALVES:
            at, count, state, inside = _two_halves(data, at, stop, out, count, state, inside)
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
                    out[count] = uint64(point) * _WORD_FACTOR
                    count += 1
            else:
                lower = LOWER[point] if point < LOWER.size else point
                state = (state ^ uint64(lower)) * _WORD_FACTOR
                inside = 1
    out[count] = state
    count += inside
    for i in range(count):
        out[i] = mix(out[i])
    return count


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
        state = ((state ^ _ASCII_LOWER[byte]) * _WORD_FACTOR) & word
        within = word
        at += one
    return np.int64(at), np.int64(count), state, np.int64(within & one)


@njit(inline="always")
def _two_halves(data: Any, start: Any, end: Any, out: Any, words: Any, state: Any, inside: Any) -> Any:
    """As `_ascii_run` on two halves of the run at once, up to where the first ends; the processor has work for both.

    The halves meet at a separator, so that the first ends no word later. Returns as `_ascii_run`, for the second.
    """
    middle = (start + end) >> 1
    while middle > start and _ASCII_WORD[data[middle]]:
        middle -= 1
    size = middle - start
    at, last, ahead, one = uint64(start), uint64(middle), uint64(size), uint64(1)
    first, second = uint64(words), uint64(words + size // 2 + 2)
    own, other, within, beyond = state, uint64(0), uint64(0) - uint64(inside), uint64(0)
    if size == 0:
        return start, words, state, inside
    while at < last:
        here, there = uint64(data[at]), uint64(data[at + ahead])
        word, away = _ASCII_WORD[here], _ASCII_WORD[there]
        out[first], out[second] = own, other
        first -= within & ~word
        second -= beyond & ~away
        own = ((own ^ _ASCII_LOWER[here]) * _WORD_FACTOR) & word
        other = ((other ^ _ASCII_LOWER[there]) * _WORD_FACTOR) & away
        within, beyond = word, away
        at += one
    out[first] = own
    first -= within
    for i in range(words + size // 2 + 2, np.int64(second)):
        out[first] = out[i]
        first += one
    return middle + size, np.int64(first), other, np.int64(beyond & one)


@njit(nogil=True, cache=True)
def hash_ngrams(words: U64, count: int, n: int, out: U64) -> int:
    """Hash the n-grams of `words[:count]` into `out` (may be as long as `words`); returns how many there are."""
    if count == 0:
        return 0
    length = min(n, count)
    grams = count - length + 1
    for low in range(0, grams, _BLOCK):
        _hash_block(words[low:], length, out[low : min(grams, low + _BLOCK)])
    return grams


@njit(nogil=True, cache=True)
def _hash_block(words: U64, n: int, out: U64) -> None:
    """One word of every n-gram at a time: the loops over n-grams vectorise, and the block stays in cache."""
    out[:] = words[: out.size]
    for j in range(1, n):
        ahead = words[j : j + out.size]
        for i in range(out.size):
            out[i] = out[i] * _GRAM_FACTOR + ahead[i]
    for i in range(out.size):
        out[i] = mix(out[i])


@njit(nogil=True, cache=True)
def _fill(data: U8, offsets: I64, n: int, words: U64, starts: I64, out: U64) -> None:
    for doc in range(offsets.size - 1):
        count = hash_words(data, offsets[doc], offsets[doc + 1], words)
        starts[doc + 1] = starts[doc] + hash_ngrams(words, count, n, out[starts[doc] :])


def scratch(offsets: I64) -> U64:
    """Room for the word hashes of the longest text of a column."""
    longest = int(np.diff(offsets).max(initial=0))
    return np.empty(longest // 2 + 4, dtype=np.uint64)


def ngram_hashes(texts: pa.Array, n: int) -> tuple[I64, U64]:
    """The n-gram hashes of every text, in reading order, repeats included.

    Returns:
        starts [D + 1] and hashes [G]: text d has `hashes[starts[d]:starts[d + 1]]`.
    """
    data, offsets = utf8(texts)
    starts = np.zeros(offsets.size, dtype=np.int64)
    out = np.empty(int(offsets[-1] - offsets[0]) // 2 + 4 * offsets.size, dtype=np.uint64)
    _fill(data, offsets, n, scratch(offsets), starts, out)
    return starts, out[: starts[-1]]


def ngram_sets(texts: pa.Array, n: int) -> list[U64]:
    """The set of n-gram hashes of every text, sorted."""
    starts, hashes = ngram_hashes(texts, n)
    return [np.unique(hashes[starts[d] : starts[d + 1]]) for d in range(starts.size - 1)]


@njit(nogil=True, cache=True)
def shared(a: U64, b: U64) -> int:
    """How many values two sorted arrays without repeats have in common."""
    i, j, common = 0, 0, 0
    while i < a.size and j < b.size:
        left, right = a[i], b[j]
        common += left == right
        i += left <= right
        j += right <= left
    return common


def jaccard(a: U64, b: U64) -> float:
    """|A ∩ B| / |A ∪ B| of two sorted arrays without repeats; 0 when both are empty."""
    common = shared(a, b)
    union = a.size + b.size - common
    return common / union if union else 0.0
