"""fastText's features of a token: its own row if it is in the dictionary, and the rows of its character n-grams.

Hashes are 32-bit FNV-1a over *signed* bytes, as fastText 0.9.2 has them; n-grams are of code points and are taken from
the token between `<` and `>`. The hashes of all n-grams of one length are computed side by side, and one bit rules out
most of them: a pruned model has rows for few. Does not belong here: where tokens begin and end (`tokens`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import uint32, uint64

from plinth.compiled import njit
from plinth.text.fasttext.model_file import F32, LABEL_PREFIX, LANES, FastTextModel
from plinth.text.fasttext.tokens import bare, key_of
from plinth.text.words.chunks import popcount, read8, write8
from plinth.text.words.ngrams import I64, U8, U64

U32 = npt.NDArray[np.uint32]

#: First characters of n-grams that are hashed side by side: as many as a mask has bits.
TILE = 64
_BASIS, _PRIME = 2166136261, 16777619
_PREFIX = np.frombuffer(LABEL_PREFIX.encode(), dtype=np.uint8)


class InputLayer(NamedTuple):
    """Input side of a model, and buffers to work in.

    Args:
        rows, bits, before, words, ends: as those of `FastTextModel`.
        table: words by their key, open addressing, at most half taken: the upper half of the key, and the number of
            the word plus one; 0 is a free place.
        numbers: words (labels not counted), minn, maxn, bucket, and two to divide by it: a factor and a shift.
        padded: `<token>`, and bytes that may be read after it.
        hashes: n-grams of one tile, [TILE].
        places: their hashes modulo `bucket`, by length, [maxn, TILE].
        masks: which of them have a row, a bit each, [maxn].
        found: n-grams that have rows, one tile's at most, [TILE * maxn + 1].
    """

    rows: F32
    bits: U32
    before: U32
    words: U8
    ends: I64
    table: U64
    numbers: U64
    padded: U8
    hashes: U32
    places: U32
    masks: U64
    found: I64


def input_layer(model: FastTextModel) -> InputLayer:
    """The input side of a model, without buffers."""
    shift = model.bucket.bit_length() + 31
    factor = (1 << shift) // max(1, model.bucket)
    numbers = np.array([model.nwords, model.minn, model.maxn, model.bucket, factor, shift], np.uint64)
    table = np.zeros(1 << (2 * model.word_ends.size).bit_length(), np.uint64)
    _fill(model.words, model.word_ends, table)
    nothing = np.zeros(0, np.uint32)
    return InputLayer(
        model.rows, model.bits, model.before, model.words, model.word_ends, table, numbers, np.zeros(0, np.uint8),
        nothing, nothing.reshape(0, 0), np.zeros(0, np.uint64), np.zeros(0, np.int64),
    )  # fmt: skip


def with_buffers(made: InputLayer, longest: int) -> InputLayer:
    """The same tables, with buffers for tokens of at most `longest` bytes, and for one caller at a time."""
    maxn = int(made.numbers[2])
    return made._replace(
        padded=np.zeros(longest + TILE + maxn + 16, np.uint8),
        hashes=np.zeros(TILE, np.uint32),
        places=np.zeros((maxn, TILE), np.uint32),
        masks=np.zeros(maxn, np.uint64),
        found=np.zeros(TILE * maxn + 1, np.int64),
    )


@bare
def _fill(words: U8, ends: I64, table: U64) -> None:
    start = 0
    for word in range(ends.size):
        key = key_of(words, start, ends[word])
        slot = np.int64(key & uint64(table.size - 1))
        while table[slot]:
            slot = (slot + 1) & (table.size - 1)
        table[slot] = (key >> uint64(32) << uint64(32)) | uint64(word + 1)
        start = ends[word]


@njit(inline="always")
def word_number(data: U8, start: int, end: int, key: Any, words: U8, ends: I64, table: U64) -> Any:
    """Number of the word `data[start:end]`, which has this key, in the dictionary, or -1."""
    slot = np.int64(key & uint64(table.size - 1))
    found: Any = -1
    while table[slot]:
        if (table[slot] ^ key) >> uint64(32) == 0:
            word = np.int64(table[slot] & uint64(0xFFFFFFFF)) - 1
            first = ends[word - 1] if word else 0
            same = ends[word] - first == end - start
            for i in range(end - start if same else 0):
                same &= words[first + i] == data[start + i]
            if same:
                found = word
                break
        slot = (slot + 1) & (table.size - 1)
    return found


@njit(inline="always")
def clear(out: Any) -> None:
    for lane in range(0, out.size, LANES):
        for i in range(LANES):
            out[lane + i] = 0.0


@njit(inline="always")
def add(out: Any, row: Any) -> None:
    for lane in range(0, out.size, LANES):
        for i in range(LANES):
            out[lane + i] += row[lane + i]


@njit(inline="always")
def _place(hashed: Any, numbers: U64) -> Any:
    """hashed % bucket, without a division."""
    wide, bucket = uint64(hashed), numbers[3]
    rest = wide - ((wide * numbers[4]) >> numbers[5]) * bucket
    return rest - bucket if rest >= bucket else rest


@njit(inline="always")
def _kept(place: Any, bits: U32) -> Any:
    """1 if an n-gram has a row, else 0."""
    return uint64((bits[np.int64(place >> uint32(5))] >> (place & uint32(31))) & uint32(1))


@njit(inline="always")
def _add_noted(given: InputLayer, count: int, out: F32) -> None:
    """Add the rows of the n-grams noted."""
    rows, found = given.rows, given.found
    for i in range(count):
        cell, bit = found[i] >> 5, uint64(found[i] & 31)
        below = uint64(given.bits[cell]) & ((uint64(1) << bit) - uint64(1))
        found[i] = np.int64(given.numbers[0]) + np.int64(given.before[cell]) + np.int64(popcount(below))
    for i in range(count):
        add(out, rows[found[i]])


@njit(inline="always")
def _ascii(given: InputLayer, size: int, out: F32) -> Any:
    """Add the rows of all n-grams of `padded[:size]`, which is ASCII; returns how many there were."""
    padded, hashes, places, masks, found = given.padded, given.hashes, given.places, given.masks, given.found
    minn, maxn, bits = np.int64(given.numbers[1]), np.int64(given.numbers[2]), given.bits
    total: Any = 0
    for tile in range(0, size, TILE):
        count: Any = 0
        lanes = min(TILE, (size - tile + 15) & ~15)
        for i in range(lanes):
            hashes[i] = _BASIS
        some = uint64(0)
        for n in range(1, maxn + 1):
            part, row = padded[tile + n - 1 :], places[n - 1]
            for i in range(lanes):
                hashed = uint32((hashes[i] ^ uint32(part[i])) * uint32(_PRIME))
                hashes[i] = hashed
                row[i] = _place(hashed, given.numbers)
            mask = uint64(0)
            if n >= minn:
                # `<` and `>` alone are none; bits are shifted in, as gathers would be slower
                for i in range(min(TILE, size - tile - max(1, n - 1)), 0, -1):
                    mask = (mask << uint64(1)) | _kept(row[uint64(i - 1)], bits)
                if n == 1 and tile == 0:
                    mask &= ~uint64(1)
            masks[n - 1] = mask
            some |= mask
        while some:  # by character, as fastText has them: long sums of floats depend on the order
            i = popcount((some & (~some + uint64(1))) - uint64(1))
            some &= some - uint64(1)
            for n in range(maxn):
                found[count] = places[uint64(n), i]
                count += np.int64((masks[n] >> i) & uint64(1))
        _add_noted(given, count, out)
        total += count
    return total


@njit(inline="always")
def _fnv(hashed: Any, byte: Any) -> Any:
    """One step of fastText's hash: a byte above 127 is a negative number, its upper bits all ones."""
    wide = uint32(byte) | (uint32(0xFFFFFF00) if byte >= 128 else uint32(0))
    return uint32((hashed ^ wide) * uint32(_PRIME))


@bare
def _unicode(given: InputLayer, size: int, out: F32) -> int:
    """As `_ascii`, for any UTF-8."""
    padded, found, bits = given.padded, given.found, given.bits
    minn, maxn = np.int64(given.numbers[1]), np.int64(given.numbers[2])
    count: Any = 0
    total: Any = 0
    for first in range(size):
        if padded[first] & 0xC0 == 0x80:
            continue
        hashed, at = uint32(_BASIS), first
        for n in range(1, maxn + 1):
            if at >= size:
                break
            hashed = _fnv(hashed, padded[at])
            at += 1
            while padded[at] & 0xC0 == 0x80:
                hashed = _fnv(hashed, padded[at])
                at += 1
            if n >= minn and not (n == 1 and (first == 0 or at == size)):
                found[count] = place = uint32(_place(hashed, given.numbers))
                count += np.int64(_kept(place, bits))
                if count == TILE * maxn:
                    _add_noted(given, count, out)
                    total, count = total + count, 0
    _add_noted(given, count, out)
    return int(total + count)


@njit(inline="always")
def features(data: U8, start: int, end: int, key: Any, plain: bool, given: InputLayer, out: F32) -> int:
    """Put the sum of one token's rows into `out`; returns how many there were.

    Args:
        key: of the token, as `tokens.token` returns it.
        plain: whether it is ASCII.
        given: with buffers for the token.
    """
    clear(out)
    word = word_number(data, start, end, key, given.words, given.ends, given.table)
    label = word < 0 and end - start >= _PREFIX.size
    for i in range(_PREFIX.size if label else 0):
        label &= data[start + i] == _PREFIX[i]
    if label or word >= np.int64(given.numbers[0]):
        return 0  # labels are no features
    if word >= 0:
        add(out, given.rows[word])
    if given.numbers[2] == 0:
        return int(word >= 0)
    padded, size = given.padded, end - start + 2
    if end + 8 <= data.size:
        for i in range(0, end - start, 8):
            write8(padded, 1 + i, read8(data, start + i))
    else:
        for i in range(end - start):
            padded[1 + i] = data[start + i]
    padded[0], padded[size - 1], padded[size] = 60, 62, 0  # `<token>`, and no continuation after it
    count = _ascii(given, size, out) if plain else _unicode(given, size, out)
    return int(count + (word >= 0))
