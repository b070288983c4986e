"""Words of texts: positions of words and line ends, hashes of words and n-grams, sets of hashes and look-ups.

    script_words  the words of a text in any script

For hashes, a **word** is a maximal run of letters, digits and underscores. Everything else (white space, punctuation,
symbols, control characters) separates words and is stripped. Letters are lower-cased if both forms are single code
points below U+0530 (Latin, Greek, Cyrillic, Armenian). In scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer,
Myanmar) and for emoji, every character is a separate word.

An **n-gram** (shingle) is n successive words. A text with fewer than n words, but at least one, has exactly one n-gram:
all its words. A text without words has no n-gram. Hashes have 64 bits, so two different n-grams collide with
probability about 2^-64.

Letters: D texts of a column, G n-grams of all texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth_text.arrays import I32, I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.unicode import utf8

# Positions of the words and line ends of a text, for the kernels that count by word or line.
#
# Words are the pieces between white space, as `str.split` has them. Positions are bytes of the buffer.

def edge_buffer(offsets: I64, dtype: Any = np.int64) -> npt.NDArray[Any]:
    """Return a buffer for the word edges, or line ends, of the longest text of a column."""
    longest = int(np.diff(offsets).max(initial=0))
    if longest > np.iinfo(dtype).max:
        raise ValueError(f"a text of {longest} bytes")
    return np.empty(longest + 2, dtype=dtype)


def split(data: U8, start: int, end: int, table: U8, edges: npt.NDArray[np.integer]) -> int:
    """Split `data[start:end]` at white space, and return the number of words.

    Word i is `data[edges[2 * i] : edges[2 * i + 1]]`.

    Args:
        table: `unicode.flags()`.
        edges: array with at least (end - start) + 2 elements.
    """
    chosen: Any = split_i32 if edges.dtype == np.int32 else split_i64
    return int(chosen(data, start, end, table, edges))


@compiled
def split_i32(data: U8, start: int, end: int, table: U8, edges: npt.NDArray[np.int32]) -> int:
    """Split text at white space, as `split` does, with 32-bit edges."""


@compiled
def split_i64(data: U8, start: int, end: int, table: U8, edges: I64) -> int:
    """Split text at white space, as `split` does, with 64-bit edges."""


@compiled
def count_words(data: U8, start: int, end: int, plain: bool, table: U8) -> int:
    """Count the words that `split` finds. `plain` must be True only if the text is ASCII."""


@compiled
def line_ends(data: U8, start: int, end: int, out: I64) -> int:
    r"""Write the positions of `\n` into `out`, and return their number."""


@compiled
def breaks(data: U8, start: int, end: int, table: U8, out: I64) -> int:
    r"""Write the positions of the line ends of `str.splitlines` into `out`, and return their number. `\r\n` counts as
    two."""

#: A word's state is 0 before its first character c and (state xor c) * `WORD_FACTOR` after each; the last is mixed.
WORD_FACTOR = np.uint64(0x9FB21C651E98DF25)
#: Minimum bytes of an ASCII run that is hashed in blocks, and bytes per block (`word_blocks.h`).
WIDE, BLOCK = 384, 4096


def scratch(offsets: I64) -> U64:
    """Return a buffer for the word hashes of the longest text of a column."""
    longest = int(np.diff(offsets).max(initial=0))
    return np.empty(longest // 2 + 4, dtype=np.uint64)


@compiled
def hash_words(data: U8, start: int, end: int, out: U64) -> int:
    """Hash the words of `data[start:end]` into `out`, and return the number of words.

    `out` must have space for (end - start) // 2 + 4 values, which is the maximum for any text.
    """


@compiled
def fill_ngrams(data: U8, offsets: I64, n: int, words: U64, starts: I64, out: U64) -> None:
    """Hash the n-grams of all texts into `out`. The hashes of text d begin at `starts[d]`."""


def ngram_hashes(texts: pa.Array, n: int) -> tuple[I64, U64]:
    """Return the n-gram hashes of every text, in reading order, including repeats.

    Returns:
        starts [D + 1] and hashes [G]: text d has `hashes[starts[d]:starts[d + 1]]`.
    """
    data, offsets = utf8(texts)
    starts = np.zeros(offsets.size, dtype=np.int64)
    out = np.empty(int(offsets[-1] - offsets[0]) // 2 + 4 * offsets.size, dtype=np.uint64)
    fill_ngrams(data, offsets, n, scratch(offsets), starts, out)
    return starts, out[: starts[-1]]


def ngram_sets(texts: pa.Array, n: int) -> list[U64]:
    """Return the set of n-gram hashes of every text, sorted."""
    starts, hashes = ngram_hashes(texts, n)
    return [np.unique(hashes[starts[d] : starts[d + 1]]) for d in range(starts.size - 1)]


@compiled
def shared(a: U64, b: U64) -> int:
    """Count the values that two sorted arrays without repeats have in common."""


def jaccard(a: U64, b: U64) -> float:
    """Return the Jaccard similarity |A ∩ B| / |A ∪ B| of two sorted arrays without repeats, or 0 if both are empty."""
    common = shared(a, b)
    union = a.size + b.size - common
    return common / union if union else 0.0


# Sets of 64-bit hashes for kernels (`hash_sets.h`): open addressing in a table that many texts share.
#
# A set uses the first `slot_count` slots of `keys`, a power of two; set them to 0 before use. So the sets of small
# texts stay in a part of the table that the cache holds. A slot of 0 is empty.

#: FNV-1a, 64 bits (Fowler, Noll, Vo).
FNV, PRIME = 0xCBF29CE484222325, 0x100000001B3


def slots(entries: int) -> U64:
    """Return the array of a hash set for up to `entries` entries. Slots that are not used cost no memory."""
    return np.zeros(slot_count(entries), dtype=np.uint64)


@compiled
def slot_count(entries: int) -> int:
    """Return the number of slots of a hash set for `entries` entries: a power of two, at least 2 * `entries`."""


@compiled
def slot(keys: U64, value: int) -> int:
    """Return the slot of a hash (not 0) in a set that uses all of `keys`, or an empty slot if the hash is absent."""


@compiled
def repeats(values: U64, keys: U64, room: int, out: npt.NDArray[np.bool_]) -> None:
    """Fill `out` with True for each value that occurred before, using a set of `room` slots; for tests."""


# Buffers for `repeated_ngrams.h`, which finds the repeated word n-grams of a text, length by length.
#
# An (n+1)-gram occurs twice only if both n-grams inside it do. So words are counted once, and every greater length
# reads only the places that are left, which in prose are few. An n-gram has the number of its slot in the table, and a
# longer one is identified by the numbers of its two halves: equality is exact after that of the words.


def ngram_buffers(longest: int) -> tuple[U64, I32, I32, I32, U64, I64]:
    """Return the buffers for counting repeated n-grams in texts of up to `longest` bytes.

    The buffers are keys, counts, spots, ids, word hashes, and the number of characters before each word.
    """
    most = longest // 2 + 3  # a word is a byte, and another one separates it
    slots = slot_count(most)
    spots, ids = (np.empty(most, dtype=np.int32) for _ in range(2))
    return (
        np.zeros(slots, dtype=np.uint64), np.empty(slots, dtype=np.int32), spots, ids,
        np.empty(most, dtype=np.uint64), np.empty(most + 1, dtype=np.int64),
    )  # fmt: skip


# Find 64-bit hashes in a large sorted array: a bit filter in front of a binary search.
#
# The filter has at least 16 bits per value, so 15 of 16 absent hashes cost one read of memory.


class HashLookup:
    """Look-up of hashes in a sorted table.

    Args:
        table: sorted hashes without repeats, evenly distributed; may be memory-mapped.

    Raises:
        ValueError: the table is not sorted, or repeats a value.
    """

    def __init__(self, table: U64) -> None:
        if not is_sorted(table):
            raise ValueError("the table of hashes is not sorted, or repeats a value")
        self.table = table
        self._bits = max(10, int(16 * table.size).bit_length())
        self._filter = np.zeros((1 << self._bits) // 64, dtype=np.uint64)
        mark_filter(table, self._filter, 64 - self._bits)

    def find(self, hashes: U64) -> I64:
        """Return the position of each hash in the table, or -1."""
        out = np.empty(hashes.size, dtype=np.int64)
        find_hashes(self.table, self._filter, 64 - self._bits, hashes, out)
        return out


@compiled
def is_sorted(table: U64) -> bool:
    """Return True if every value is greater than the previous one."""


@compiled
def mark_filter(table: U64, bits: U64, shift: int) -> None:
    """Set the filter bit of every value in the table."""


@compiled
def find_hashes(table: U64, bits: U64, shift: int, hashes: U64, out: I64) -> None:
    """Fill `out` with the position of each hash in the table, or -1."""


# Runs of bytes, eight at a time (`chunks.h`). These hashes are compared within one call and never stored: they depend
# on the byte order of the machine.


@compiled
def hash_run(data: U8, start: int, end: int) -> int:
    """Return a 64-bit hash of `data[start:end]`. The hashes of two different byte strings are equal with probability
    2^-64."""


@compiled
def characters(data: U8, start: int, end: int) -> int:
    """Count the code points of `data[start:end]`, which are the bytes that are not UTF-8 continuation bytes."""


@compiled
def is_ascii(data: U8, start: int, end: int) -> bool:
    """Return True if no byte of `data[start:end]` is above 127."""


@compiled
def reads(data: U8, out: U64) -> None:
    """Set `out[at, size]` to the `size` bytes at `at` as one integer, and `out[0, 0]` to the first eight bytes; for
    tests."""
