"""Words and pairs of words as rows of a hashed table: the features of linear models, and their scores.

Words are those of `ngrams`: lower-cased runs of letters, digits and underscores. Every word and every two
successive words are one feature each; a feature's row is the top bits of its hash (the hashing trick, Weinberger
et al. 2009, as fastText uses it for word n-grams: Joulin et al. 2016). A text's margin is the mean of the rows of its
features plus a bias. fastText's mean of word vectors times its output matrix is such a table, of lower rank.

Letters: D texts, F features of all of them, R = 2^bits rows, K labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.unicode.codepoints import utf8
from plinth.text.words.ngrams import I64, U8, U64
from plinth.text.words.word_hashes import hash_words, scratch

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

_FIRST = np.uint64(0xD6E8FEB86659FD93)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio


@njit(inline="always")
def word_row(word: Any, shift: Any) -> Any:
    """The row of a word's hash."""
    return np.int64(word >> shift)


@njit(inline="always")
def pair_row(word: Any, after: Any, shift: Any) -> Any:
    """The row of two successive words."""
    return np.int64(((word * _FIRST + after) * _SPREAD) >> shift)


def rows(texts: pa.Array, bits: int, max_words: int) -> tuple[I64, I32]:
    """The rows of the features of every text, words first, then pairs; of the first `max_words` words.

    Returns:
        starts [D + 1] and rows [F]: text d has `rows[starts[d]:starts[d + 1]]`, none where it has no words.
    """
    data, offsets = utf8(texts)
    words = scratch(offsets)
    starts = np.zeros(offsets.size, dtype=np.int64)
    most = np.minimum(np.diff(offsets) // 2 + 2, max_words)
    out = np.empty(int(2 * most.sum()), dtype=np.int32)
    _rows(data, offsets, np.uint64(64 - bits), max_words, words, starts, out)
    return starts, out[: starts[-1]].copy()


@njit(nogil=True, cache=True)
def _rows(data: U8, offsets: I64, shift: Any, max_words: int, words: U64, starts: I64, out: I32) -> None:
    for doc in range(offsets.size - 1):
        count = min(hash_words(data, offsets[doc], offsets[doc + 1], words), max_words)
        at = starts[doc]
        for i in range(count):
            out[at + i] = word_row(words[i], shift)
        at += count
        for i in range(count - 1):
            out[at + i] = pair_row(words[i], words[i + 1], shift)
        starts[doc + 1] = at + max(0, count - 1)


def margins(texts: pa.Array, table: F32, bias: F32, window: int = 0) -> F64:
    """The margin of every text for every label, [D, K]; the bias alone where a text has no words.

    Args:
        table: [R, K], R a power of two.
        bias: [K].
        window: words of a stretch; a text longer than that has the largest margin of its stretches, the last of
            which ends with the text, so that a short passage of a long text is not averaged away. 0: the whole text.
    """
    data, offsets = utf8(texts)
    out = np.empty((len(texts), table.shape[1]), dtype=np.float64)
    shift = np.uint64(64 - (table.shape[0].bit_length() - 1))
    words = scratch(offsets)
    if table.shape[1] == 1:
        _margin(data, offsets, np.ascontiguousarray(table[:, 0]), bias[0], shift, window, words, out[:, 0])
    else:
        _margins(data, offsets, table, bias, shift, window, words, out)
    return out


@njit(nogil=True, cache=True)
def _margin(data: U8, offsets: I64, table: F32, bias: Any, shift: Any, window: int, words: U64, out: F64) -> None:
    for doc in range(offsets.size - 1):
        count = hash_words(data, offsets[doc], offsets[doc + 1], words)
        out[doc] = _of_words(words, 0, count, table, shift) + bias
        if window and count > window:
            best, last = -np.inf, count - window
            for start in range(0, count, window):
                best = max(best, _of_words(words, min(start, last), window, table, shift) + bias)
            out[doc] = best


@njit(inline="always")
def _of_words(words: Any, start: Any, count: Any, table: Any, shift: Any) -> Any:
    """Mean of the rows of `words[start:start + count]`; 0 where there are none."""
    if count == 0:
        return 0.0
    total = np.float64(table[word_row(words[start], shift)])
    for i in range(start + 1, start + count):
        total += np.float64(table[word_row(words[i], shift)]) + table[pair_row(words[i - 1], words[i], shift)]
    return total / (2 * count - 1)


@njit(nogil=True, cache=True)
def _margins(data: U8, offsets: I64, table: F32, bias: F32, shift: Any, window: int, words: U64, out: F64) -> None:
    labels = table.shape[1]
    total = np.empty(labels, dtype=np.float64)
    for doc in range(offsets.size - 1):
        count = hash_words(data, offsets[doc], offsets[doc + 1], words)
        size = window if window and count > window else count
        for k in range(labels):
            out[doc, k] = -np.inf if size else bias[k]
        for start in range(0, count, max(size, 1)):
            _sum(words, min(start, count - size), size, table, shift, total)
            for k in range(labels):
                out[doc, k] = max(out[doc, k], total[k] / (2 * size - 1) + bias[k])


@njit(nogil=True, cache=True)
def _sum(words: U64, start: int, count: int, table: F32, shift: Any, total: F64) -> None:
    first = table[word_row(words[start], shift)]
    for k in range(total.size):
        total[k] = first[k]
    for i in range(start + 1, start + count):
        one, two = table[word_row(words[i], shift)], table[pair_row(words[i - 1], words[i], shift)]
        for k in range(total.size):
            total[k] += np.float64(one[k]) + two[k]
