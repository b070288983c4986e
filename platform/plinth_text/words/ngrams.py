"""Word n-gram hashes of Arrow `large_string` columns; words as in `word_hashes`.

An **n-gram** (shingle) is n successive words. A text of fewer than n words, but at least one, has exactly one:
all its words. A text without words has none. Hashes are 64 bits: two different n-grams collide with
probability about 2^-64, so a pair of million-word texts is wrong by one n-gram once in ten million.

Letters: D texts of a column, G n-grams of all of them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.unicode.codepoints import utf8
from plinth_text.words.word_hashes import scratch


@compiled
def hash_ngrams(words: U64, count: int, n: int, out: U64) -> int:
    """Hash the n-grams of `words[:count]` into `out` (may be as long as `words`); returns how many there are."""


@compiled
def fill(data: U8, offsets: I64, n: int, words: U64, starts: I64, out: U64) -> None:
    """Hash the n-grams of all texts into `out`, those of text d from `starts[d]` on."""


def ngram_hashes(texts: pa.Array, n: int) -> tuple[I64, U64]:
    """The n-gram hashes of every text, in reading order, repeats included.

    Returns:
        starts [D + 1] and hashes [G]: text d has `hashes[starts[d]:starts[d + 1]]`.
    """
    data, offsets = utf8(texts)
    starts = np.zeros(offsets.size, dtype=np.int64)
    out = np.empty(int(offsets[-1] - offsets[0]) // 2 + 4 * offsets.size, dtype=np.uint64)
    fill(data, offsets, n, scratch(offsets), starts, out)
    return starts, out[: starts[-1]]


def ngram_sets(texts: pa.Array, n: int) -> list[U64]:
    """The set of n-gram hashes of every text, sorted."""
    starts, hashes = ngram_hashes(texts, n)
    return [np.unique(hashes[starts[d] : starts[d + 1]]) for d in range(starts.size - 1)]


@compiled
def shared(a: U64, b: U64) -> int:
    """Count the values that two sorted arrays without repeats have in common."""


def jaccard(a: U64, b: U64) -> float:
    """|A ∩ B| / |A ∪ B| of two sorted arrays without repeats; 0 when both are empty."""
    common = shared(a, b)
    union = a.size + b.size - common
    return common / union if union else 0.0
