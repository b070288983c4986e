"""fastText's features of a token: its own row if it is in the dictionary, and the rows of its character n-grams.

Hashes are 32-bit FNV-1a over *signed* bytes, as fastText 0.9.2 has them; n-grams are of code points and are taken from
the token between `<` and `>`. The hashes of all n-grams of one length are computed side by side, and one bit rules out
most of them: a pruned model has rows for few. Does not belong here: where tokens begin and end (`tokens`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import uint32, uint64

from plinth.compiled import njit
from plinth.text.fasttext.model_file import EOS, F32, LABEL_PREFIX, LANES, U32, CodedRows, FastTextModel
from plinth.text.fasttext.tokens import bare, key_of
from plinth.text.words.chunks import popcount, read8, write8
from plinth.text.words.ngrams import I64, U8, U64

#: First characters of n-grams that are hashed side by side: as many as a mask has bits.
TILE = 64
_BASIS, _PRIME = 2166136261, 16777619
_PREFIX = np.frombuffer(LABEL_PREFIX.encode(), dtype=np.uint8)


class InputLayer(NamedTuple):
    """Input side of a model, and buffers to work in.

    Args:
        rows, bits, before, words: as those of `FastTextModel`.
        starts, ends: of the words.
        codes, centroids, norms: as those of `CodedRows`, where rows are not written out; else empty.
        table: words by their key, open addressing, at most half taken: the upper half of the key, and the number of
            the word plus one; 0 is a free place.
        numbers: words (labels not counted), minn, maxn, bucket, and two to divide by it: a factor and a shift; numbers
            in a part of a coded row, and in its last part.
        padded: `<token>`, and bytes that may be read after it.
        hashes: n-grams of one tile, [TILE].
        places: their hashes modulo `bucket`, by length, [maxn, TILE].
        masks: which of them have a row, a bit each, [maxn].
        found: n-grams that have rows, one tile's at most, [TILE * maxn + 1].
    """

    rows: F32
    codes: U8
    centroids: F32
    norms: F32
    bits: U32
    before: U32
    words: U8
    starts: I64
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
    table = np.zeros(1 << (2 * model.word_ends.size).bit_length(), np.uint64)
    _fill(model.words, model.word_starts, model.word_ends, table)
    no_floats = np.zeros(0, np.float32)
    coded = model.coded or CodedRows(np.zeros((0, 0), np.uint8), no_floats, 0, 0, no_floats)
    numbers = [model.nwords, model.minn, model.maxn, model.bucket, factor, shift, coded.width, coded.last]
    nothing = np.zeros(0, np.uint32)
    return InputLayer(
        model.rows, coded.codes, coded.centroids, coded.norms, model.bits, model.before, model.words,
        model.word_starts, model.word_ends, table, np.array(numbers, np.uint64), np.zeros(0, np.uint8),
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


def end_row(model: FastTextModel, given: InputLayer) -> F32:
    """The row of the end of a text, which has no n-grams, and 1 behind it; zeros where the model has none."""
    word = _number(np.frombuffer(EOS, dtype=np.uint8), given)
    out = np.zeros(model.output.shape[1] + 1, dtype=np.float32)
    if 0 <= word < model.nwords:
        out[: model.dim] = model.coded.take(np.array([word])).floats()[0] if model.coded else model.rows[word]
        out[-1] = 1
    return out


@bare
def _number(word: U8, given: InputLayer) -> int:
    return int(word_number(word, 0, word.size, key_of(word, 0, word.size), given))


@bare
def _fill(words: U8, starts: I64, ends: I64, table: U64) -> None:
    for word in range(ends.size):
        key = key_of(words, starts[word], ends[word])
        slot = np.int64(key & uint64(table.size - 1))
        while table[slot]:
            slot = (slot + 1) & (table.size - 1)
        table[slot] = (key >> uint64(32) << uint64(32)) | uint64(word + 1)


@njit(inline="always")
def word_number(data: U8, start: int, end: int, key: Any, given: InputLayer) -> Any:
    """Number of the word `data[start:end]`, which has this key, in the dictionary, or -1."""
    words, starts, ends, table = given.words, given.starts, given.ends, given.table
    slot = np.int64(key & uint64(table.size - 1))
    found: Any = -1
    while table[slot]:
        if (table[slot] ^ key) >> uint64(32) == 0:
            word = np.int64(table[slot] & uint64(0xFFFFFFFF)) - 1
            first = starts[word]
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
    """Add a row, which may be shorter."""
    whole = row.size // LANES * LANES
    for lane in range(0, whole, LANES):
        for i in range(LANES):
            out[lane + i] += row[lane + i]
    for i in range(whole, row.size):
        out[i] += row[i]


@bare
def _add_coded(given: InputLayer, number: int, out: F32) -> None:
    width, last, parts = np.int64(given.numbers[6]), np.int64(given.numbers[7]), given.codes.shape[1]
    norm = given.norms[number] if given.norms.size else np.float32(1.0)
    for part in range(parts):
        size = last if part == parts - 1 else width
        at = part * 256 * width + np.int64(given.codes[number, part]) * size
        for i in range(size):
            out[part * width + i] += given.centroids[at + i] * norm


@njit(inline="always")
def add_row(given: InputLayer, number: Any, out: Any) -> None:
    """Add an input row of the model."""
    if given.codes.size:
        _add_coded(given, number, out)
    else:
        add(out, given.rows[number])


@njit(inline="always")
def row_of_ngram(given: InputLayer, place: Any) -> Any:
    """Number of the row of an n-gram that has one."""
    cell, bit = np.int64(place >> 5), uint64(place & 31)
    below = uint64(given.bits[cell]) & ((uint64(1) << bit) - uint64(1))
    return np.int64(given.numbers[0]) + np.int64(given.before[cell]) + np.int64(popcount(below))


@njit(inline="always")
def _place(hashed: Any, numbers: U64) -> Any:
    """hashed % bucket, without a division."""
    wide, bucket = uint64(hashed), numbers[3]
    rest = wide - ((wide * numbers[4]) >> numbers[5]) * bucket
    return rest - bucket if rest >= bucket else rest


@njit(inline="always")
def kept(place: Any, bits: U32) -> Any:
    """1 if an n-gram has a row, else 0."""
    return uint64((bits[np.int64(place >> uint32(5))] >> (place & uint32(31))) & uint32(1))


@njit(inline="always")
def _add_noted(given: InputLayer, count: int, out: F32) -> None:
    """Add the rows of the n-grams noted."""
    found = given.found
    for i in range(count):
        found[i] = row_of_ngram(given, found[i])
    for i in range(count):
        add_row(given, found[i], out)


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
                    mask = (mask << uint64(1)) | kept(row[uint64(i - 1)], bits)
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


@njit(inline="always")
def word_hash(data: U8, start: Any, end: Any) -> Any:
    """fastText's hash of a word."""
    hashed = uint32(_BASIS)
    for at in range(start, end):
        hashed = _fnv(hashed, data[at])
    return hashed


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
                count += np.int64(kept(place, bits))
                if count == TILE * maxn:
                    _add_noted(given, count, out)
                    total, count = total + count, 0
    _add_noted(given, count, out)
    return int(total + count)


#: Of a token that is no word of the dictionary, and of one that is a label, which is no feature.
UNKNOWN, LABEL = -1, -2


@njit(inline="always")
def word_row(data: U8, start: Any, end: Any, key: Any, given: InputLayer) -> Any:
    """Number of a token's own row, `UNKNOWN` or `LABEL`."""
    word = word_number(data, start, end, key, given)
    label = word < 0 and end - start >= _PREFIX.size
    for i in range(_PREFIX.size if label else 0):
        label &= data[start + i] == _PREFIX[i]
    return LABEL if label or word >= np.int64(given.numbers[0]) else word


@njit(inline="always")
def features(data: U8, start: int, end: int, key: Any, plain: bool, given: InputLayer, out: F32) -> int:
    """Put the sum of one token's rows into `out`; returns how many there were, `LABEL` for a label.

    Args:
        key: of the token, as `tokens.token` returns it.
        plain: whether it is ASCII.
        given: with buffers for the token.
    """
    clear(out)
    word = word_row(data, start, end, key, given)
    if word == LABEL:
        return LABEL
    if word >= 0:
        add_row(given, word, out)
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
