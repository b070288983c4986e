"""Passages of n words: anchors that rule out repetition, hashes, and positions of words in the text.

Words are those of `ngrams`. A **window** is n successive words of one text; a text of fewer has none. A window's
**anchor** is the smallest hash of the k-grams in it, of equal ones the last (winnowing: Schleimer, Wilkerson
and Aiken 2003). Equal windows have equal anchors, wherever they are; successive windows mostly share one. So
the anchors, one in about (n - k) / 2 words, show which windows cannot be repeated; most windows are never hashed.

Letters: D texts of a column, W words of all of them, N windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I64, U8, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.words.ngrams import ngram_hashes


@dataclass(frozen=True)
class Windows:
    """The windows of a column.

    Args:
        words: [W] hashes of all words; word_starts: [D + 1] text d has `words[word_starts[d]:word_starts[d + 1]]`.
        starts: [D + 1] text d has windows `starts[d]:starts[d + 1]`, window i from its word i on.
        anchors: [N]; fresh: [N] whether a window's anchor lies elsewhere than that of the window before.
    """

    words: U64
    word_starts: I64
    starts: I64
    anchors: U64
    fresh: Bools


def windows(texts: pa.Array, n: int) -> Windows:
    """The windows of `n` words of every text, with anchors among k-grams of n // 2 words."""
    word_starts, words = ngram_hashes(texts, 1)
    counts = np.maximum(np.diff(word_starts) - n + 1, 0)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    anchors, fresh = np.empty(starts[-1], dtype=np.uint64), np.zeros(starts[-1], dtype=np.bool_)
    grams = np.empty(int(np.diff(word_starts).max(initial=0)), dtype=np.uint64)
    anchor(words, word_starts, starts, n, max(1, n // 2), grams, anchors, fresh)
    return Windows(words, word_starts, starts, anchors, fresh)


@compiled
def anchor(words: U64, word_starts: I64, starts: I64, n: int, k: int, grams: U64, anchors: U64, fresh: Bools) -> None:
    """Fill in the anchors of all windows, and whether they are fresh; `grams` is scratch memory."""


def window_keys(found: Windows, n: int, wanted: Bools) -> tuple[U64, U64]:
    """128-bit keys, as halves, of the wanted windows, in order: equal words give equal keys."""
    high, low = (np.empty(int(np.count_nonzero(wanted)), dtype=np.uint64) for _ in range(2))
    hash_windows(found.words, found.word_starts, found.starts, n, wanted, high, low)
    return high, low


@compiled
def hash_windows(words: U64, word_starts: I64, starts: I64, n: int, wanted: Bools, high: U64, low: U64) -> None:
    """As `window_keys`."""


@dataclass(frozen=True)
class WordPositions:
    """The V words of one text: their positions, and their folded form.

    Args:
        start_cp, end_cp: [V] code points; start_byte, end_byte: [V] bytes of its UTF-8; half open.
        folded: words in lower case, each followed by a space; ends: [V + 1] where word i begins in it, and the end.
    """

    start_cp: I64
    end_cp: I64
    start_byte: I64
    end_byte: I64
    folded: bytes
    ends: I64

    def passage(self, first: int, count: int) -> bytes:
        """`count` folded words from word `first` on."""
        return self.folded[self.ends[first] : self.ends[first + count]]


def word_positions(text: str) -> WordPositions:
    """Positions of the words of a text: the same words, in number and order, as `ngrams` hashes."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    size = data.size
    places, ends = np.zeros((4, size // 2 + 2), dtype=np.int64), np.zeros(size // 2 + 3, dtype=np.int64)
    folded = np.empty(2 * size + 2, dtype=np.uint8)
    count = place_words(data, places, ends, folded)
    start_cp, end_cp, start_byte, end_byte = (row[:count] for row in places)
    return WordPositions(start_cp, end_cp, start_byte, end_byte, folded[: ends[count]].tobytes(), ends[: count + 1])


@compiled
def place_words(data: U8, places: I64, ends: I64, folded: U8) -> int:
    """Fill in the positions of words, [4, V], and their folded form; returns how many there are."""
