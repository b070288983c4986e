"""Signatures and hashes of texts, to find copies and near-copies.

    signatures, band_keys     MinHash signatures of word n-grams, and keys of locality-sensitive hashing
    simhashes, SimHashIndex   SimHash of texts, and the search for hashes that differ in few bits
    vectors                   bags of words as short vectors (TF-IDF)
    lines, paragraphs         positions, sizes and hashes of lines and paragraphs
    windows, word_positions   passages of n words, and the positions of words

Letters: D texts of a column.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import F64, I16, I32, I64, U8, U32, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.libm import log
from plinth_text.unicode import utf8
from plinth_text.words import ngram_hashes, scratch

# MinHash signatures of word n-grams, and the keys of locality-sensitive hashing.
#
# Broder (1997): over random permutations of the hash space, the share of permutations in which two sets have the
# same minimum estimates their Jaccard similarity. Permutation k is the multiply-add-shift function
# h_k(x) = (a_k x + b_k mod 2^64) >> 32 on 32-bit x, strongly universal by Dietzfelbinger (1996); x is the upper half
# of an n-gram's 64-bit hash. The shift is taken after the minimum, which it does not change.
#
# With `bands` bands of `rows` rows, a pair of similarity s shares a band key with probability
# 1 - (1 - s^rows)^bands. A key only nominates a pair: the caller must verify it.
#
# Letters: K = bands * rows permutations.

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def permutations(count: int, seed: int) -> tuple[U64, U64]:
    """Return the coefficients a [K] and b [K] of the MinHash permutations.

    The coefficients come from SplitMix64 (Steele et al. 2014), so they do not depend on the version of a library.
    """
    state, values = (seed * _GOLDEN + 0x5851F42D4C957F2D) & _MASK, []
    for _ in range(2 * count):
        state = (state + _GOLDEN) & _MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        values.append(z ^ (z >> 31))
    both = np.array(values, dtype=np.uint64)
    return both[:count], both[count:]


def signatures(texts: pa.Array, n: int, a: U64, b: U64) -> tuple[U32, Bools]:
    """Return the MinHash signatures [D, K] of the word n-grams of every text, and a mask [D] of the texts with words.

    A text without words has a signature of all ones, which must never be compared.
    """
    data, offsets = utf8(texts)
    count = offsets.size - 1
    out = np.empty((count, a.size), dtype=np.uint32)
    filled = np.zeros(count, dtype=np.bool_)
    words = scratch(offsets)
    sign_texts(data, offsets, n, a, b, words, np.empty_like(words), np.empty_like(a), out, filled)
    return out, filled


@compiled
def sign_texts(
    data: U8, offsets: I64, n: int, a: U64, b: U64, words: U64, grams: U64, minima: U64, out: U32, filled: Bools
) -> None:
    """Write the signatures of all texts into `out`, and the mask of texts with words into `filled`.

    `words`, `grams` and `minima` are scratch memory.
    """


def band_keys(signature: U32, bands: int, rows: int) -> U64:
    """Return the band keys [D, bands] of signatures [D, bands * rows].

    The band number is hashed into each key, so keys of different bands do not match.
    """
    out = np.empty((signature.shape[0], bands), dtype=np.uint64)
    hash_bands(signature, bands, rows, out.reshape(-1))
    return out


@compiled
def hash_bands(signature: U32, bands: int, rows: int, out: U64) -> None:
    """Write the band keys of all signatures into `out`."""


def recall(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two texts with this Jaccard similarity share at least one band key."""
    return float(1 - (1 - similarity**rows) ** bands)


# SimHash of texts, and the search for hashes that differ from a listed one in few bits.
#
# Charikar (2002): every feature votes with each bit of its hash, for or against; the signs of the 64 sums are the
# hash, and two texts differ in a share of bits that is their angle over pi. Features are the word n-grams of
# `plinth_text.words`, as often as they occur; a sum of 0 gives 0. A text without words has no hash.
#
# Manku, Jain and Das Sarma (2007) find near hashes through tables of bits that must agree. Here the 64 bits are four
# blocks of 16: of two hashes that differ in at most `distance` bits, one block differs in at most distance // 4. So
# every block is looked up with up to that many bits flipped, and the distance of every hit is counted. The answer is
# exact.
#
# Letters: N listed hashes, Q queries.

BLOCKS, BLOCK_BITS = 4, 16
#: Limit above which a scan of the list is as fast as a search of the blocks.
MAX_DISTANCE = 11


def simhashes(texts: pa.Array, n: int) -> tuple[U64, Bools]:
    """Return the SimHash [D] of the word n-grams of every text, and a mask [D] of the texts with words."""
    data, offsets = utf8(texts)
    out = np.zeros(offsets.size - 1, dtype=np.uint64)
    filled = np.zeros(out.size, dtype=np.bool_)
    words = scratch(offsets)
    simhash_texts(data, offsets, n, words, np.empty_like(words), out, filled)
    return out, filled


@compiled
def simhash_texts(data: U8, offsets: I64, n: int, words: U64, grams: U64, out: U64, filled: Bools) -> None:
    """Write the SimHashes of all texts into `out`, and the mask of texts with words into `filled`.

    `words` and `grams` are scratch memory.
    """


class SimHashIndex:
    """Search index for a list of SimHashes.

    Args:
        hashes: [N] listed hashes, in any order; repeats are allowed.
        distance: maximum number of bits in which a hit may differ, 0 to `MAX_DISTANCE`.

    Raises:
        ValueError: the distance is not in 0 to `MAX_DISTANCE`.
    """

    def __init__(self, hashes: U64, distance: int) -> None:
        if not 0 <= distance <= MAX_DISTANCE:
            raise ValueError(f"the distance is {distance} bits, expected 0 to {MAX_DISTANCE}")
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
        """Return the nearest listed hash for each query. For ties, the first in the list is returned.

        Returns:
            positions in the list and distances in bits, [Q] each; -1 if no listed hash is within the distance.
        """
        places, bits = np.full(queries.size, -1, np.int64), np.full(queries.size, -1, np.int64)
        if self.hashes.size:
            search_near(queries, self.hashes, self._orders, self._starts, self._masks, self.distance, places, bits)
        return places, bits


@compiled
def search_near(
    queries: U64, hashes: U64, orders: I32, starts: I32, masks: I64, distance: int, places: I64, bits: I64
) -> None:
    """Write the position and distance of the nearest listed hash for each query into `places` and `bits`.

    `masks` are the sets of bits that may be flipped in a block.
    """


# Bags of words as short vectors of whole numbers: TF-IDF, hashed.
#
# A word of hash h adds its weight, with a sign, to one of `dimensions` numbers; h chooses both (Weinberger et al.
# 2009, "Feature hashing for large scale multitask learning"). Its weight is (1 + ln tf) (1 + ln((1 + N) / (1 + df))),
# tf its count in the text, df the number of N texts that have it, counted by hash in `2^TABLE_BITS` cells.
#
# Vectors are scaled to length `SCALE` and rounded. With `SCALE`^2 < 2^24, sums of products are whole numbers that
# float32 holds exactly, in any order: the same cosine on every machine and with every BLAS.

TABLE_BITS = 18
SCALE = 4095


def frequencies(texts: pa.Array, min_words: int) -> tuple[I64, int]:
    """Return the document frequencies of the hash cells of words, [2^TABLE_BITS], and the number of counted texts.

    Only texts with at least `min_words` words are counted.
    """
    starts, words = ngram_hashes(texts, 1)
    out = np.zeros(1 << TABLE_BITS, dtype=np.int64)
    return out, count_texts(starts, words, min_words, np.full(out.size, -1, dtype=np.int64), out)


@compiled
def count_texts(starts: I64, words: U64, min_words: int, last: I64, out: I64) -> int:
    """Add to `out` the number of texts that contain each cell, and return the number of texts.

    `last` must be -1 for each cell.
    """


def vectors(texts: pa.Array, df: I64, count: int, dimensions: int, min_words: int) -> tuple[I16, Bools]:
    """Return the TF-IDF vectors [D, dimensions] of texts, and a mask of the texts with at least `min_words` words.

    Args:
        df: document frequencies, summed over the corpus from `frequencies`.
        count: number of texts, summed over the corpus from `frequencies`.
    """
    starts, words = ngram_hashes(texts, 1)
    idf = 1.0 + log((1.0 + count) / (1.0 + df))
    out = np.zeros((starts.size - 1, dimensions), dtype=np.float64)
    for doc in np.flatnonzero(np.diff(starts) >= min_words):
        add_words(np.sort(words[starts[doc] : starts[doc + 1]]), idf, out[doc])
    return quantised(out), np.diff(starts) >= min_words


@compiled
def add_words(words: U64, idf: F64, out: F64) -> None:
    """Add the weights of a text's words to its vector. The words must be sorted."""


@compiled
def cosine(x: I16, y: I16) -> float:
    """Return the FP32 cosine of two quantized vectors, from sums of whole numbers. If the cosine is not positive,
    return 0.

    The result is a millionth too high, so that rounding errors never keep a pair below a threshold.
    """


def quantised(values: F64) -> I16:
    """Return the rows scaled to length `SCALE` and rounded. Rows of zeros stay zero."""
    lengths = np.sqrt((values * values).sum(axis=1, keepdims=True))
    scaled = np.divide(values, lengths, out=np.zeros_like(values), where=lengths > 0)
    rounded: I16 = np.rint(scaled * SCALE).astype(np.int16)
    return rounded


# Lines of Arrow `large_string` columns: positions, sizes and two hashes of each, in one pass.
#
# A line ends with U+000A and includes it. Its hashes are over its text folded as by `unicode.fold`: lower-cased, runs
# of white space one space, none at the ends; so lines that differ in case or white space alone are equal. A line
# without a letter or digit is **blank** when it has only white space, else **structural** (rules, brackets).
# A **paragraph** is a maximal run of lines that are not blank; its hashes are over those of its lines.
#
# Letters: L lines of all texts of a column, P paragraphs.

@dataclass(frozen=True)
class HashedLines:
    """Lines of the texts of a column, with their hashes.

    Args:
        starts: [D + 1] text d has lines `starts[d]:starts[d + 1]`.
        byte: [L + 1] first byte of each line in the column's buffer, and the end of the last line.
        start_cp, end_cp: [L] code points in the text, half open, including the line end.
        high, low: [L] hashes; both are 0 for a blank line.
        size: [L] number of characters other than white space.
        words: [L] number of words, as `plinth_text.words` counts them, except words that a line end splits.
        alphanumeric: [L] True if the line has a letter or digit.
    """

    starts: I64
    byte: I64
    start_cp: I32
    end_cp: I32
    high: U64
    low: U64
    size: I32
    words: I32
    alphanumeric: Bools


@dataclass(frozen=True)
class Paragraphs:
    """Paragraphs of a column: first line and end (exclusive) [P], hashes [P], number of characters [P]."""

    first: I64
    last: I64
    high: U64
    low: U64
    size: I64
    alphanumeric: Bools


def lines(texts: pa.Array) -> HashedLines:
    """Find and hash the lines of every text. An empty text has no lines."""
    data, offsets = utf8(texts)
    count = int(np.count_nonzero(data[offsets[0] : offsets[-1]] == 10)) + offsets.size - 1
    starts, byte = np.zeros(offsets.size, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    cp, numbers = np.zeros((2, count), dtype=np.int32), np.zeros((2, count), dtype=np.int32)
    hashes, alphanumeric = np.zeros((2, count), dtype=np.uint64), np.zeros(count, dtype=np.bool_)
    found = scan_lines(data, offsets, starts, byte, cp, hashes, numbers, alphanumeric)
    byte[found] = offsets[-1]
    return HashedLines(
        starts, byte[: found + 1], cp[0, :found], cp[1, :found], hashes[0, :found], hashes[1, :found],
        numbers[0, :found], numbers[1, :found], alphanumeric[:found],
    )  # fmt: skip


@compiled
def scan_lines(
    data: U8, offsets: I64, starts: I64, byte: I64, cp: I32, hashes: U64, numbers: I32, alphanumeric: Bools
) -> int:
    """Write the lines of all texts into the arrays of `HashedLines`, and return the number of lines."""


def paragraphs(found: HashedLines) -> Paragraphs:
    """Return the paragraphs of every text, in order."""
    most = found.high.size
    spans, hashes = np.zeros((3, most), dtype=np.int64), np.zeros((2, most), dtype=np.uint64)
    alphanumeric = np.zeros(most, dtype=np.bool_)
    count = scan_paragraphs(
        found.starts, found.high, found.low, found.size, found.alphanumeric, spans, hashes, alphanumeric
    )
    return Paragraphs(
        spans[0, :count], spans[1, :count], hashes[0, :count], hashes[1, :count], spans[2, :count], alphanumeric[:count]
    )


@compiled
def scan_paragraphs(
    starts: I64, high: U64, low: U64, size: I32, by_line: Bools, spans: I64, hashes: U64, alphanumeric: Bools
) -> int:
    """Write the paragraphs of all texts into the arrays of `Paragraphs`, and return the number of paragraphs."""


def edge_lines(found: HashedLines, count: int) -> Bools:
    """Return a mask [L] of the first and last `count` lines of each text. Blank lines are not counted."""
    out = np.zeros(found.high.size, dtype=np.bool_)
    mark_edges(found.starts, found.size, count, out)
    return out


@compiled
def mark_edges(starts: I64, size: I32, count: int, out: Bools) -> None:
    """Write True into `out` for the first and last `count` lines of each text. Blank lines are not counted."""


@compiled
def close_gaps(starts: I64, size: I32, cut: U8) -> None:
    """Cut blank lines that are left over next to cut lines, in place.

    Between two kept lines, only one run of blank lines is kept.

    Args:
        starts, size: as in `HashedLines`.
        cut: [L] reason for which a line is cut, or 0; a blank line takes the reason of the cut line before it.
    """


# Passages of n words: anchors that rule out repetition, hashes, and positions of words in the text.
#
# Words are those of `plinth_text.words`. A **window** is n successive words of one text; a text of fewer has none. A
# window's **anchor** is the smallest hash of the k-grams in it, of equal ones the last (winnowing: Schleimer, Wilkerson
# and Aiken 2003). Equal windows have equal anchors, wherever they are; successive windows mostly share one. So
# the anchors, one in about (n - k) / 2 words, show which windows cannot be repeated; most windows are never hashed.
#
# Letters: W words of all texts, N windows.

@dataclass(frozen=True)
class Windows:
    """Windows of the texts of a column: all passages of n successive words.

    Args:
        words: [W] hashes of all words.
        word_starts: [D + 1] text d has `words[word_starts[d]:word_starts[d + 1]]`.
        starts: [D + 1] text d has windows `starts[d]:starts[d + 1]`; window i begins at word i of the text.
        anchors: [N] anchor of each window.
        fresh: [N] True if a window's anchor differs from that of the previous window.
    """

    words: U64
    word_starts: I64
    starts: I64
    anchors: U64
    fresh: Bools


def windows(texts: pa.Array, n: int) -> Windows:
    """Return the windows of `n` words in every text. A window's anchor is a hash of n // 2 successive words."""
    word_starts, words = ngram_hashes(texts, 1)
    counts = np.maximum(np.diff(word_starts) - n + 1, 0)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    anchors, fresh = np.empty(starts[-1], dtype=np.uint64), np.zeros(starts[-1], dtype=np.bool_)
    grams = np.empty(int(np.diff(word_starts).max(initial=0)), dtype=np.uint64)
    mark_anchors(words, word_starts, starts, n, max(1, n // 2), grams, anchors, fresh)
    return Windows(words, word_starts, starts, anchors, fresh)


@compiled
def mark_anchors(
    words: U64, word_starts: I64, starts: I64, n: int, k: int, grams: U64, anchors: U64, fresh: Bools
) -> None:
    """Write the anchor of each window into `anchors`, and True into `fresh` if it differs from the previous anchor.

    `grams` is scratch memory.
    """


def window_keys(found: Windows, n: int, wanted: Bools) -> tuple[U64, U64]:
    """Return the high and low halves of the 128-bit keys of the wanted windows, in order.

    Windows with equal words have equal keys.
    """
    high, low = (np.empty(int(np.count_nonzero(wanted)), dtype=np.uint64) for _ in range(2))
    hash_windows(found.words, found.word_starts, found.starts, n, wanted, high, low)
    return high, low


@compiled
def hash_windows(words: U64, word_starts: I64, starts: I64, n: int, wanted: Bools, high: U64, low: U64) -> None:
    """Write the high and low halves of the keys of the wanted windows into `high` and `low`."""


@dataclass(frozen=True)
class WordPositions:
    """Positions of the V words of one text, and the words in folded form.

    Args:
        start_cp, end_cp: [V] code points of each word in the text, half open.
        start_byte, end_byte: [V] bytes of each word in the text's UTF-8, half open.
        folded: words in lower case, each followed by a space.
        ends: [V + 1] start of each word in `folded`, and the end of the last word.
    """

    start_cp: I64
    end_cp: I64
    start_byte: I64
    end_byte: I64
    folded: bytes
    ends: I64

    def passage(self, first: int, count: int) -> bytes:
        """Return `count` folded words, beginning with word `first`."""
        return self.folded[self.ends[first] : self.ends[first + count]]


def word_positions(text: str) -> WordPositions:
    """Return the positions of the words of a text. The words are those that `plinth_text.words` hashes, in the same
    order."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    size = data.size
    places, ends = np.zeros((4, size // 2 + 2), dtype=np.int64), np.zeros(size // 2 + 3, dtype=np.int64)
    folded = np.empty(2 * size + 2, dtype=np.uint8)
    count = place_words(data, places, ends, folded)
    start_cp, end_cp, start_byte, end_byte = (row[:count] for row in places)
    return WordPositions(start_cp, end_cp, start_byte, end_byte, folded[: ends[count]].tobytes(), ends[: count + 1])


@compiled
def place_words(data: U8, places: I64, ends: I64, folded: U8) -> int:
    """Write the positions of words into `places`, [4, V], and their folded form into `folded`; return the number of
    words."""
