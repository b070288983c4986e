"""Repeated n-grams of a text: the most frequent one, and those that occurred before.

Most n-grams occur once, and such an n-gram needs no slot of a set. So n-grams are first counted in buckets, without
comparing them: an n-gram alone in its bucket is alone in the text. The rest is compared by 64-bit hashes.

    pack      words of a text one after the other without the space between them, and where each starts
    tops      n-grams of 2 to 4 words, equal when their words are: only those whose parts repeat can repeat
    repeated  n-grams of 5 to 10 words, equal when their characters are, however they are cut into words: two equal
              ones start with the same 16, 32 or 64 bytes, so only starts that repeat are examined
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import uint64

from plinth.compiled import kernel
from plinth.text.words.chunks import characters, hash_padded, hash_run, read8, spread, write8
from plinth.text.words.hash_sets import seen, shift_for, slot_count, slot_of
from plinth.text.words.ngrams import I64, U8, U64

I32 = npt.NDArray[np.int32]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = np.uint64(0x9FB21C651E98DF25)
#: Lengths in bytes of starts that are compared, each twice the one before.
_STARTS = np.array([16, 24, 32, 40, 48, 64, 96], dtype=np.int64)
_PADDING = 128
_ANY, _MOST = 2**31 - 1, 2**29


class CopyBuffers(NamedTuple):
    """Scratch memory for the longest text of a column, W words; untouched pages cost nothing.

    Args:
        packed: the text without white space, [bytes + padding].
        places: where each word starts in it, [W + 1].
        words: hash of each word, [W].
        grams, buckets, starts, limits: of the n-grams that are left, [W].
        counts: n-grams in each bucket.
        keys, tally, firsts: a set of n-grams, how often each came, and where first.
    """

    packed: U8
    places: I32
    words: U64
    grams: U64
    buckets: I32
    starts: I32
    limits: I32
    active: I32
    counts: I32
    keys: U64
    tally: I32
    firsts: I32


def copy_buffers(longest: int, most_words: int) -> CopyBuffers:
    """Buffers for texts of up to `longest` bytes and so many words.

    Raises:
        ValueError: from 512 MiB on, where the numbers of buckets no longer fit 32 bits.
    """
    if longest >= _MOST:
        raise ValueError(f"a text of {longest} bytes")
    words = most_words + 3
    slots = slot_count(words)
    whole = [np.empty(words, dtype=np.int32) for _ in range(5)]
    return CopyBuffers(
        np.empty(longest + _PADDING, dtype=np.uint8), whole[0], np.empty(words, dtype=np.uint64),
        np.empty(words, dtype=np.uint64), whole[1], whole[2], whole[3], whole[4], np.empty(2 * slots, dtype=np.int32),
        np.empty(slots, dtype=np.uint64), np.empty(slots, dtype=np.int32), np.empty(slots, dtype=np.int32),
    )  # fmt: skip


@kernel
def pack(data: U8, edges: I32, n: int, buffers: CopyBuffers) -> None:
    """Pack the n words of a text, and hash each."""
    at = 0
    for i in range(n):
        start, size = edges[2 * i], edges[2 * i + 1] - edges[2 * i]
        buffers.places[i] = at
        if start + size + 8 <= data.size:
            for k in range(0, size, 8):
                write8(buffers.packed, at + k, read8(data, start + k))
            buffers.words[i] = hash_padded(data, start, start + size)
        else:  # the last words of the buffer
            for k in range(size):
                buffers.packed[at + k] = data[start + k]
            buffers.words[i] = hash_run(data, start, start + size)
        at += size
    buffers.places[n] = at
    buffers.packed[at : at + _PADDING] = 0


@kernel
def tops(n: int, plain: bool, buffers: CopyBuffers, out: I64) -> None:
    """Characters in all copies of the most frequent n-gram of 2, 3 and 4 words, the earliest of several, words joined
    by one space, into out[0:3]."""
    left = max(0, n - 1)
    for i in range(left):
        buffers.starts[i] = i
        buffers.grams[i] = buffers.words[i] * _BASE + buffers.words[i + 1]
    for size in range(2, 5):
        out[size - 2] = 0
        if n < size:
            continue
        if size > 2:
            for c in range(left):
                i = buffers.starts[c]
                gram = buffers.words[i]
                for k in range(i + 1, i + size):
                    gram = gram * _BASE + buffers.words[k]
                buffers.grams[c] = gram
        _count(left, buffers)
        copies, where = _most(left, buffers)
        begin, end = buffers.places[where], buffers.places[where + size]
        length = end - begin if plain else characters(buffers.packed, begin, end)
        out[size - 2] = (length + size - 1) * copies
        left = _parts_repeat(left, buffers)


@kernel
def _count(left: int, buffers: CopyBuffers) -> None:
    """Count the n-grams that are left in buckets."""
    size = 2 * slot_count(left)
    shift = shift_for(size)
    buffers.counts[:size] = 0
    for c in range(left):
        bucket = np.int64((buffers.grams[c] * _BASE) >> shift)
        buffers.buckets[c] = bucket
        buffers.counts[bucket] += 1


@kernel
def _most(left: int, buffers: CopyBuffers) -> tuple[int, int]:
    """Copies of the most frequent n-gram, and the word it first starts at. When none repeats it is the first."""
    most, first = 1, -1
    for c in range(left):
        inside = buffers.counts[buffers.buckets[c]]
        if inside > most:
            most, first = inside, c
    if first < 0:
        return 1, 0
    copies, gram = 0, buffers.grams[first]
    for c in range(left):
        copies += buffers.grams[c] == gram
    if copies == most:  # it is alone in its bucket, the fullest
        return most, buffers.starts[first]
    return _compared(left, buffers)


@kernel
def _compared(left: int, buffers: CopyBuffers) -> tuple[int, int]:
    """As `_most`, by comparing all n-grams that are not alone in their bucket."""
    size = slot_count(left)
    shift = shift_for(size)
    buffers.keys[:size] = 0
    best, where = 1, 0
    for c in range(left):
        inside = buffers.counts[buffers.buckets[c]]
        if inside < 2 or inside < best:
            continue
        gram = buffers.grams[c] | uint64(buffers.grams[c] == 0)
        slot = slot_of(buffers.keys, size, shift, gram)
        if buffers.keys[slot] == 0:
            buffers.keys[slot], buffers.tally[slot], buffers.firsts[slot] = gram, 0, buffers.starts[c]
        buffers.tally[slot] += 1
        copies, first = buffers.tally[slot], buffers.firsts[slot]
        if copies > best or (copies == best and best > 1 and first < where):
            best, where = copies, first
    return best, where


@kernel
def _parts_repeat(left: int, buffers: CopyBuffers) -> int:
    """Keep the starts at which this n-gram and the next may both repeat; returns how many."""
    kept = 0
    for c in range(left - 1):
        here, after = buffers.starts[c], buffers.starts[c + 1]
        both = min(buffers.counts[buffers.buckets[c]], buffers.counts[buffers.buckets[c + 1]])
        buffers.starts[kept] = here
        kept += (after == here + 1) & (both > 1)
    return kept


@kernel
def repeated(n: int, plain: bool, buffers: CopyBuffers, out: I64) -> None:
    """Characters of n-grams of 5 to 10 words that occurred before, each skipped whole, into out[0:6]."""
    left = _starts_repeat(n, buffers)
    for size in range(5, 11):
        left = _may_repeat(left, n, size, buffers)
        out[size - 5] = _skipping(left, n, size, plain, buffers)


@kernel
def _starts_repeat(n: int, buffers: CopyBuffers) -> int:
    """The words at which an n-gram that repeats may start; returns how many.

    `limits`: from how many bytes on an n-gram that starts there is known to come once.
    """
    left = max(0, n - 4)
    for i in range(left):
        at = buffers.places[i]
        buffers.grams[i] = (read8(buffers.packed, at) * _FACTOR) ^ (read8(buffers.packed, at + 8) * _BASE)
    _count(left, buffers)
    kept = active = 0
    for i in range(left):
        again = buffers.counts[buffers.buckets[i]] > 1
        buffers.starts[kept] = i
        buffers.limits[kept] = _STARTS[1] if again else _STARTS[0]
        buffers.active[active] = kept
        buffers.grams[active] = buffers.grams[i]
        active += again
        kept += again | (buffers.places[i + 5] - buffers.places[i] < _STARTS[0])
    for level in range(1, len(_STARTS)):
        active = _longer(active, level, buffers)
    return kept


@kernel
def _longer(active: int, level: int, buffers: CopyBuffers) -> int:
    """Of the starts that repeat, those that do with more bytes; returns how many."""
    known, length = _STARTS[level - 1], _STARTS[level]
    longer = _STARTS[level + 1] if level + 1 < len(_STARTS) else _ANY
    for k in range(active):
        at, gram = buffers.places[buffers.starts[buffers.active[k]]], buffers.grams[k]
        for ahead in range(known, length, 8):
            gram = spread(gram ^ (read8(buffers.packed, at + ahead) * _FACTOR))
        buffers.grams[k] = gram
    _count(active, buffers)
    kept = 0
    for k in range(active):
        c, again = buffers.active[k], buffers.counts[buffers.buckets[k]] > 1
        buffers.limits[c] = longer if again else length
        buffers.active[kept] = c
        buffers.grams[kept] = buffers.grams[k]
        kept += again
    return kept


@kernel
def _may_repeat(left: int, n: int, size: int, buffers: CopyBuffers) -> int:
    """Of the starts that are left, those whose n-gram of this size is not known to come once; returns how many.

    A longer n-gram from the same start comes no more often, so what goes here is gone for all sizes after it.
    """
    kept = 0
    for c in range(left):
        i, limit = buffers.starts[c], buffers.limits[c]
        buffers.starts[kept], buffers.limits[kept] = i, limit
        kept += buffers.places[min(i + size, n)] - buffers.places[i] < limit
    return kept


@kernel
def _skipping(left: int, n: int, size: int, plain: bool, buffers: CopyBuffers) -> int:
    """Characters of the n-grams, among the starts that are left, that occurred before, each skipped whole."""
    slots = slot_count(left)
    shift = shift_for(slots)
    buffers.keys[:slots] = 0
    total, after = 0, 0
    for c in range(left):
        i = buffers.starts[c]
        if i < after or i > n - size:
            continue
        begin, end = buffers.places[i], buffers.places[i + size]
        if seen(buffers.keys, slots, shift, hash_padded(buffers.packed, begin, end)):
            total += end - begin if plain else characters(buffers.packed, begin, end)
            after = i + size
    return total
