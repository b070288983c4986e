"""SimHash of texts, and the search for hashes that differ from a listed one in few bits.

Charikar (2002): every feature votes with each bit of its hash, for or against; the signs of the 64 sums are the
hash, and two texts differ in a share of bits that is their angle over pi. Features are word n-grams as `ngrams`
makes them, as often as they occur; a sum of 0 gives 0. A text without words has no hash.

Manku, Jain and Das Sarma (2007) find near hashes through tables of bits that must agree. Here the 64 bits are four
blocks of 16: of two hashes that differ in at most `distance` bits, one block differs in at most distance // 4. So
every block is looked up with up to that many bits flipped, and the distance of every hit is counted. The answer is
exact.

Letters: D texts, N listed hashes, Q queries.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I32, I64, U8, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.unicode.codepoints import utf8
from plinth_text.words.word_hashes import scratch

BLOCKS, BLOCK_BITS = 4, 16
#: Beyond it a search would read so many entries of a block that a scan of the list is as fast.
MAX_DISTANCE = 11


def simhashes(texts: pa.Array, n: int) -> tuple[U64, Bools]:
    """Hashes [D] of the word n-grams of every text, and whether it has any [D]."""
    data, offsets = utf8(texts)
    out = np.zeros(offsets.size - 1, dtype=np.uint64)
    filled = np.zeros(out.size, dtype=np.bool_)
    words = scratch(offsets)
    hash_texts(data, offsets, n, words, np.empty_like(words), out, filled)
    return out, filled


@compiled
def hash_texts(data: U8, offsets: I64, n: int, words: U64, grams: U64, out: U64, filled: Bools) -> None:
    """As `simhashes`; `words` and `grams` are scratch memory."""


class SimHashIndex:
    """Listed hashes, ready to be searched.

    Args:
        hashes: [N], any order, repeats allowed.
        distance: bits in which a hit may differ, 0 to `MAX_DISTANCE`.

    Raises:
        ValueError: a distance beyond that.
    """

    def __init__(self, hashes: U64, distance: int) -> None:
        if not 0 <= distance <= MAX_DISTANCE:
            raise ValueError(f"a distance of {distance} bits, expected 0 to {MAX_DISTANCE}")
        self.hashes, self.distance = np.ascontiguousarray(hashes, dtype=np.uint64), distance
        self._orders = np.empty((BLOCKS, self.hashes.size), dtype=np.int32)
        self._starts = np.zeros((BLOCKS, (1 << BLOCK_BITS) + 1), dtype=np.int32)
        for block in range(BLOCKS):
            keys = (self.hashes >> np.uint64(block * BLOCK_BITS)) & np.uint64(0xFFFF)
            self._orders[block] = np.argsort(keys, kind="stable")
            counts = np.bincount(keys.astype(np.int64), minlength=1 << BLOCK_BITS)
            self._starts[block, 1:] = np.cumsum(counts)
        flipped = range(distance // BLOCKS + 1)
        masks = [sum(1 << bit for bit in bits) for size in flipped for bits in combinations(range(BLOCK_BITS), size)]
        self._masks = np.array(masks, dtype=np.int64)

    def nearest(self, queries: U64) -> tuple[I64, I64]:
        """The nearest listed hash of each, the first one listed among equals.

        Returns:
            Positions in the list and distances in bits, [Q] each; -1 where none is near enough.
        """
        places, bits = np.full(queries.size, -1, np.int64), np.full(queries.size, -1, np.int64)
        if self.hashes.size:
            search(queries, self.hashes, self._orders, self._starts, self._masks, self.distance, places, bits)
        return places, bits


@compiled
def search(
    queries: U64, hashes: U64, orders: I32, starts: I32, masks: I64, distance: int, places: I64, bits: I64
) -> None:
    """As `SimHashIndex.nearest`; `masks` are the bits that may be flipped in a block."""
