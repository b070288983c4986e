"""Bags of words as short vectors of whole numbers: TF-IDF, hashed.

A word of hash h adds its weight, with a sign, to one of `dimensions` numbers; h chooses both (Weinberger et al.
2009, "Feature hashing for large scale multitask learning"). Its weight is (1 + ln tf) (1 + ln((1 + N) / (1 + df))),
tf its count in the text, df the number of N texts that have it, counted by hash in `2^TABLE_BITS` cells.

Vectors are scaled to length `SCALE` and rounded. With `SCALE`^2 < 2^24, sums of products are whole numbers that
float32 holds exactly, in any order: the same cosine on every machine and with every BLAS.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import uint64

from plinth.compiled import njit
from plinth.text.words.ngrams import I64, U64, ngram_hashes

I16 = npt.NDArray[np.int16]

TABLE_BITS = 18
SCALE = 4095

_MASK = np.uint64((1 << TABLE_BITS) - 1)


def frequencies(texts: pa.Array, min_words: int) -> tuple[I64, int]:
    """Document frequencies of cells, [2^TABLE_BITS], over texts of at least `min_words` words; and how many texts."""
    starts, words = ngram_hashes(texts, 1)
    out = np.zeros(1 << TABLE_BITS, dtype=np.int64)
    return out, _frequencies(starts, words, min_words, out)


@njit(nogil=True, cache=True)
def _frequencies(starts: I64, words: U64, min_words: int, out: I64) -> int:
    last = np.full(out.size, -1, dtype=np.int64)
    texts = 0
    for doc in range(starts.size - 1):
        if starts[doc + 1] - starts[doc] < min_words:
            continue
        texts += 1
        for i in range(starts[doc], starts[doc + 1]):
            cell = words[i] & _MASK
            out[cell] += last[cell] != doc
            last[cell] = doc
    return texts


def vectors(texts: pa.Array, df: I64, count: int, dimensions: int, min_words: int) -> tuple[I16, npt.NDArray[np.bool_]]:
    """Vectors [D, dimensions] of texts, and a mask of the texts that have one: at least `min_words` words.

    Args:
        df, count: summed over the corpus, from `frequencies`.
    """
    starts, words = ngram_hashes(texts, 1)
    idf = 1.0 + np.log((1.0 + count) / (1.0 + df))
    out = np.zeros((starts.size - 1, dimensions), dtype=np.float64)
    for doc in np.flatnonzero(np.diff(starts) >= min_words):
        _add(np.sort(words[starts[doc] : starts[doc + 1]]), idf, out[doc])
    return quantised(out), np.diff(starts) >= min_words


@njit(nogil=True, cache=True)
def _add(words: U64, idf: npt.NDArray[np.float64], out: npt.NDArray[np.float64]) -> None:
    begin = 0
    for end in range(1, words.size + 1):
        if end < words.size and words[end] == words[begin]:
            continue
        word = words[begin]
        weight = (1.0 + math.log(end - begin)) * idf[word & _MASK]
        # other bits than the cell's choose the place, so that words of one cell do not share it
        place = ((word >> uint64(32)) * uint64(out.size)) >> uint64(32)
        out[place] += weight if (word >> uint64(31)) & uint64(1) else -weight
        begin = end


@njit(nogil=True, cache=True)
def cosine(x: I16, y: I16) -> np.float32:
    """The cosine of two quantised vectors in FP32, from sums of whole numbers; 0 where it is none or negative.

    It is a millionth too high, so that what rounding took from it keeps nothing below a threshold.
    """
    product, left, right = np.int64(0), np.int64(0), np.int64(0)
    for i in range(x.size):
        p, q = np.int64(x[i]), np.int64(y[i])
        product += p * q
        left += p * p
        right += q * q
    if product <= 0:
        return np.float32(0.0)
    return np.float32(product / math.sqrt(float(left) * float(right)) + 1e-6)


def quantised(values: npt.NDArray[np.float64]) -> I16:
    """Rows scaled to length `SCALE` and rounded; rows of zeros stay."""
    lengths = np.sqrt((values * values).sum(axis=1, keepdims=True))
    scaled = np.divide(values, lengths, out=np.zeros_like(values), where=lengths > 0)
    rounded: I16 = np.rint(scaled * SCALE).astype(np.int16)
    return rounded
