"""Repeated word n-grams of one text, length by length: a longer n-gram repeats only where its parts repeat.

An (n+1)-gram occurs twice only if both n-grams inside it do. So words are counted once, and every greater length
reads only the places that are left, which in prose are few. An n-gram has the number of its slot in the table, and a
longer one is identified by the numbers of its two halves: equality is exact after that of the words.

Does not belong here: how a rule set uses the places.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.compiled import njit
from plinth.text.words.hash_sets import shift_for, slot_count, slot_of
from plinth.text.words.ngrams import I64, U64

I32 = npt.NDArray[np.int32]


@njit(nogil=True, cache=True)
def repeated_words(words: U64, n: int, keys: U64, counts: I32, spots: I32, ids: I32) -> tuple[int, int]:
    """The places of words that occur at least twice.

    Args:
        words: hashes of the text's `n` words.
        keys, counts: buffers for a table of n entries; the used slots of `counts` are filled with how often each word
            occurs.
        spots, ids: [n] filled with the places and the numbers of the words there.

    Returns:
        How many places, and slots in use.
    """
    slots = slot_count(n)
    shift = shift_for(slots)
    keys[:slots] = 0
    for i in range(n):
        value = words[i] | np.uint64(words[i] == 0)
        slot = slot_of(keys, slots, shift, value)
        if keys[slot] == 0:
            keys[slot], counts[slot] = value, 0
        counts[slot] += 1
        ids[i] = slot
    found = 0
    for i in range(n):
        spots[found], ids[found] = i, ids[i]
        found += counts[ids[i]] > 1
    return found, slots


@njit(nogil=True, cache=True)
def extend(spots: I32, ids: I32, found: int, keys: U64, counts: I32) -> tuple[int, int, int]:
    """From the places of repeated n-grams to those of repeated (n+1)-grams, in place.

    Returns:
        How many places, and of the most frequent (n+1)-gram, the earliest of several: its place and its count;
        0, -1, 0 when none repeats.
    """
    tried, slots = 0, slot_count(found)
    shift = shift_for(slots)
    keys[:slots] = 0
    for k in range(found - 1):
        if spots[k + 1] != spots[k] + 1:
            continue
        pair = np.uint64(ids[k] + 1) << np.uint64(32) | np.uint64(ids[k + 1])  # never 0, which is an empty slot
        slot = slot_of(keys, slots, shift, pair)
        if keys[slot] == 0:
            keys[slot], counts[slot] = pair, 0
        counts[slot] += 1
        spots[tried], ids[tried] = spots[k], slot
        tried += 1
    left, most, where = 0, 0, np.int64(-1)
    for k in range(tried):
        count = counts[ids[k]]
        if count > 1:
            spots[left], ids[left] = spots[k], ids[k]
            left += 1
            if count > most:
                most, where = count, np.int64(spots[k])
    return left, int(where), most


@njit(inline="always")
def in_all_copies(spots: Any, found: Any, size: Any, characters: Any) -> Any:
    """Characters of n-grams of `size` words at these places, overlaps counted again."""
    total = 0
    for k in range(found):
        total += characters[spots[k] + size] - characters[spots[k]]
    return total


@njit(inline="always")
def covered(spots: Any, found: Any, size: Any, characters: Any) -> Any:
    """Characters of the words that some n-gram of `size` words at these places holds, each counted once."""
    total, last = np.int64(0), np.int64(0)
    for k in range(found):
        first = max(last, np.int64(spots[k]))
        last = np.int64(spots[k]) + size
        total += characters[last] - characters[first]
    return total


@njit(inline="always")
def in_every_gram(n: Any, size: Any, characters: Any) -> Any:
    """Characters of all n-grams of a text, overlaps counted again."""
    total = 0
    for i in range(n - size + 1):
        total += characters[i + size] - characters[i]
    return total


def ngram_buffers(longest: int) -> tuple[U64, I32, I32, I32, U64, I64]:
    """Buffers for texts of up to `longest` bytes: keys, counts, spots, ids, word hashes, characters before a word."""
    most = longest // 2 + 3  # a word is a byte, and another one separates it
    slots = slot_count(most)
    spots, ids = (np.empty(most, dtype=np.int32) for _ in range(2))
    return (
        np.zeros(slots, dtype=np.uint64), np.empty(slots, dtype=np.int32), spots, ids,
        np.empty(most, dtype=np.uint64), np.empty(most + 1, dtype=np.int64),
    )  # fmt: skip
