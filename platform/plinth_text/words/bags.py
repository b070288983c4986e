"""Bags of words as short vectors of whole numbers: TF-IDF, hashed.

A word of hash h adds its weight, with a sign, to one of `dimensions` numbers; h chooses both (Weinberger et al.
2009, "Feature hashing for large scale multitask learning"). Its weight is (1 + ln tf) (1 + ln((1 + N) / (1 + df))),
tf its count in the text, df the number of N texts that have it, counted by hash in `2^TABLE_BITS` cells.

Vectors are scaled to length `SCALE` and rounded. With `SCALE`^2 < 2^24, sums of products are whole numbers that
float32 holds exactly, in any order: the same cosine on every machine and with every BLAS.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth_text.arrays import I16, I64, U64
from plinth_text.compiled import compiled
from plinth_text.words.ngrams import ngram_hashes

TABLE_BITS = 18
SCALE = 4095


def frequencies(texts: pa.Array, min_words: int) -> tuple[I64, int]:
    """Document frequencies of cells, [2^TABLE_BITS], over texts of at least `min_words` words; and how many texts."""
    starts, words = ngram_hashes(texts, 1)
    out = np.zeros(1 << TABLE_BITS, dtype=np.int64)
    return out, count_texts(starts, words, min_words, np.full(out.size, -1, dtype=np.int64), out)


@compiled
def count_texts(starts: I64, words: U64, min_words: int, last: I64, out: I64) -> int:
    """Add the texts that have each cell to `out`; returns the number of texts. `last`: -1 for each cell."""


def vectors(texts: pa.Array, df: I64, count: int, dimensions: int, min_words: int) -> tuple[I16, npt.NDArray[np.bool_]]:
    """Vectors [D, dimensions] of texts, and a mask of the texts that have one: at least `min_words` words.

    Args:
        df, count: summed over the corpus, from `frequencies`.
    """
    starts, words = ngram_hashes(texts, 1)
    idf = 1.0 + np.log((1.0 + count) / (1.0 + df))
    out = np.zeros((starts.size - 1, dimensions), dtype=np.float64)
    for doc in np.flatnonzero(np.diff(starts) >= min_words):
        add_words(np.sort(words[starts[doc] : starts[doc + 1]]), idf, out[doc])
    return quantised(out), np.diff(starts) >= min_words


@compiled
def add_words(words: U64, idf: npt.NDArray[np.float64], out: npt.NDArray[np.float64]) -> None:
    """Add the weights of a text's words, which are sorted, to its vector."""


@compiled
def cosine(x: I16, y: I16) -> float:
    """Return the cosine of two quantised vectors in FP32, from sums of whole numbers; 0 where it is none or negative.

    It is a millionth too high, so that what rounding took from it keeps nothing below a threshold.
    """


def quantised(values: npt.NDArray[np.float64]) -> I16:
    """Rows scaled to length `SCALE` and rounded; rows of zeros stay."""
    lengths = np.sqrt((values * values).sum(axis=1, keepdims=True))
    scaled = np.divide(values, lengths, out=np.zeros_like(values), where=lengths > 0)
    rounded: I16 = np.rint(scaled * SCALE).astype(np.int16)
    return rounded
