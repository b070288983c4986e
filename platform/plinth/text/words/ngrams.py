"""Word n-gram hashes of Arrow `large_string` columns; words as in `word_hashes`.

An **n-gram** (shingle) is n successive words. A text of fewer than n words, but at least one, has exactly one:
all its words. A text without words has none. Hashes are 64 bits: two different n-grams collide with
probability about 2^-64, so a pair of million-word texts is wrong by one n-gram once in ten million.

Letters: D texts of a column, G n-grams of all of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.unicode.codepoints import utf8
from plinth.text.words.word_hashes import hash_words, mix, scratch

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_GRAM_FACTOR = np.uint64(0xD6E8FEB86659FD93)

#: n-grams hashed in one pass.
_BLOCK = 1024


@njit(nogil=True, cache=True)
def hash_ngrams(words: U64, count: int, n: int, out: U64) -> int:
    """Hash the n-grams of `words[:count]` into `out` (may be as long as `words`); returns how many there are."""
    if count == 0:
        return 0
    length = min(n, count)
    grams = count - length + 1
    for low in range(0, grams, _BLOCK):
        _hash_block(words[low:], length, out[low : min(grams, low + _BLOCK)])
    return grams


@njit(nogil=True, cache=True)
def _hash_block(words: U64, n: int, out: U64) -> None:
    """One word of every n-gram at a time: the loops over n-grams vectorise, and the block stays in cache."""
    out[:] = words[: out.size]
    for j in range(1, n):
        ahead = words[j : j + out.size]
        for i in range(out.size):
            out[i] = out[i] * _GRAM_FACTOR + ahead[i]
    for i in range(out.size):
        out[i] = mix(out[i])


@njit(nogil=True, cache=True)
def _fill(data: U8, offsets: I64, n: int, words: U64, starts: I64, out: U64) -> None:
    for doc in range(offsets.size - 1):
        count = hash_words(data, offsets[doc], offsets[doc + 1], words)
        starts[doc + 1] = starts[doc] + hash_ngrams(words, count, n, out[starts[doc] :])


def ngram_hashes(texts: pa.Array, n: int) -> tuple[I64, U64]:
    """The n-gram hashes of every text, in reading order, repeats included.

    Returns:
        starts [D + 1] and hashes [G]: text d has `hashes[starts[d]:starts[d + 1]]`.
    """
    data, offsets = utf8(texts)
    starts = np.zeros(offsets.size, dtype=np.int64)
    out = np.empty(int(offsets[-1] - offsets[0]) // 2 + 4 * offsets.size, dtype=np.uint64)
    _fill(data, offsets, n, scratch(offsets), starts, out)
    return starts, out[: starts[-1]]


def ngram_sets(texts: pa.Array, n: int) -> list[U64]:
    """The set of n-gram hashes of every text, sorted."""
    starts, hashes = ngram_hashes(texts, n)
    return [np.unique(hashes[starts[d] : starts[d + 1]]) for d in range(starts.size - 1)]


@njit(nogil=True, cache=True)
def shared(a: U64, b: U64) -> int:
    """How many values two sorted arrays without repeats have in common."""
    i, j, common = 0, 0, 0
    while i < a.size and j < b.size:
        left, right = a[i], b[j]
        common += left == right
        i += left <= right
        j += right <= left
    return common


def jaccard(a: U64, b: U64) -> float:
    """|A ∩ B| / |A ∪ B| of two sorted arrays without repeats; 0 when both are empty."""
    common = shared(a, b)
    union = a.size + b.size - common
    return common / union if union else 0.0
