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
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import uint64

from plinth.compiled import njit
from plinth.text.unicode.codepoints import utf8
from plinth.text.words.ngrams import I64, U8, U64, hash_ngrams
from plinth.text.words.word_hashes import hash_words, scratch

I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

BLOCKS, BLOCK_BITS = 4, 16
#: Beyond it a search would read so many entries of a block that a scan of the list is as fast.
MAX_DISTANCE = 11
#: Votes are counted bit by bit across all 64 sums, in so many binary digits at a time.
_DIGITS = 16
_ROUND = (1 << _DIGITS) - 1


def simhashes(texts: pa.Array, n: int) -> tuple[U64, Bools]:
    """Hashes [D] of the word n-grams of every text, and whether it has any [D]."""
    data, offsets = utf8(texts)
    out = np.zeros(offsets.size - 1, dtype=np.uint64)
    filled = np.zeros(out.size, dtype=np.bool_)
    words = scratch(offsets)
    _hash(data, offsets, n, words, np.empty_like(words), out, filled)
    return out, filled


@njit(nogil=True, cache=True)
def _hash(data: U8, offsets: I64, n: int, words: U64, grams: U64, out: U64, filled: Bools) -> None:
    digits = np.empty(_DIGITS, dtype=np.uint64)
    votes = np.empty(64, dtype=np.int64)
    for doc in range(offsets.size - 1):
        count = hash_ngrams(words, hash_words(data, offsets[doc], offsets[doc + 1], words), n, grams)
        votes[:] = 0
        for low in range(0, count, _ROUND):
            _vote(grams[low : min(count, low + _ROUND)], digits, votes)
        state = uint64(0)
        for bit in range(64):
            if 2 * votes[bit] > count:
                state |= uint64(1) << uint64(bit)
        out[doc], filled[doc] = state, count > 0


@njit(nogil=True, cache=True)
def _vote(grams: U64, digits: U64, votes: I64) -> None:
    """Add the bits of at most `_ROUND` hashes to 64 sums: digit k holds bit k of all sums, and carries ripple."""
    digits[:] = 0
    for i in range(grams.size):
        carry, k = grams[i], 0
        while carry:
            both = digits[k] & carry
            digits[k] ^= carry
            carry = both
            k += 1
    for k in range(_DIGITS):
        if digits[k]:
            for bit in range(64):
                votes[bit] += np.int64((digits[k] >> uint64(bit)) & uint64(1)) << k


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
            _search(queries, self.hashes, self._orders, self._starts, self._masks, self.distance, places, bits)
        return places, bits


@njit(nogil=True, cache=True)
def _search(
    queries: U64, hashes: U64, orders: I32, starts: I32, masks: I64, distance: int, places: I64, bits: I64
) -> None:
    for i in range(queries.size):
        best, place = distance + 1, np.int64(-1)
        for block in range(BLOCKS):
            key = np.int64((queries[i] >> uint64(block * BLOCK_BITS)) & uint64(0xFFFF))
            for mask in masks:
                near = key ^ mask
                for at in range(starts[block, near], starts[block, near + 1]):
                    listed = np.int64(orders[block, at])
                    apart = _differing(hashes[listed] ^ queries[i])
                    if apart < best or (apart == best and apart <= distance and listed < place):
                        best, place = apart, listed
        if place >= 0:
            places[i], bits[i] = place, best


@njit(inline="always")
def _differing(value: Any) -> Any:
    """The number of bits that are set (Warren, Hacker's Delight, figure 5-2)."""
    value -= (value >> uint64(1)) & uint64(0x5555555555555555)
    value = (value & uint64(0x3333333333333333)) + ((value >> uint64(2)) & uint64(0x3333333333333333))
    value = (value + (value >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((value * uint64(0x0101010101010101)) >> uint64(56))
