"""Shingles of a text, of words or of characters, by the parameters: their signatures and their sets.

Words are those of `text.ngrams`. A character shingle is n code points of the folded text (`text.fold`: lower case,
one space for any white space); a text of fewer is one shingle. Of a text longer than `max_characters` only its
beginning counts (Marin cuts at 500,000), here as there for signature and set alike: a book stays comparable with
its copies, costs no more than a long article, and its minima do not sink to where they all meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import uint64

from plinth.compiled import njit
from plinth.corpus.dedup.parameters import MinHash
from plinth.text.similarity import signatures as minhash
from plinth.text.unicode.codepoints import decode, utf8
from plinth.text.unicode.fold import fold
from plinth.text.words.ngrams import I64, U8, U64, hash_ngrams, ngram_sets
from plinth.text.words.word_hashes import mix

U32 = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]


def signatures(texts: pa.Array, params: MinHash, a: U64, b: U64) -> tuple[U32, Bools]:
    """Signatures [D, K] of every text, and whether it has a shingle [D].

    Args:
        a, b: coefficients of the permutations, [K] each.
    """
    texts = shortened(texts, params.max_characters)
    if params.shingle_characters is None:
        return minhash.signatures(texts, params.shingle_words, a, b)
    data, offsets = utf8(texts)
    out = np.empty((offsets.size - 1, a.size), dtype=np.uint32)
    filled = np.zeros(offsets.size - 1, dtype=np.bool_)
    _sign(data, offsets, params.shingle_characters, a, b, _longest(offsets), out, filled)
    return out, filled


def sets(texts: pa.Array, params: MinHash) -> list[U64]:
    """The set of shingle hashes of every text, sorted."""
    texts = shortened(texts, params.max_characters)
    if params.shingle_characters is None:
        return ngram_sets(texts, params.shingle_words)
    data, offsets = utf8(texts)
    longest = _longest(offsets)
    return [
        np.unique(_grams(data, offsets[d], offsets[d + 1], params.shingle_characters, longest))
        for d in range(offsets.size - 1)
    ]


def shortened(texts: pa.Array, characters: int | None) -> pa.Array:
    """Every text's first so many characters."""
    if characters is None or int(pc.max(pc.binary_length(texts)).as_py() or 0) <= characters:
        return texts
    return pc.utf8_slice_codeunits(texts, 0, characters)


def _longest(offsets: Any) -> int:
    return int(np.diff(offsets).max(initial=0)) + 2


@njit(nogil=True, cache=True)
def _grams(data: U8, start: int, end: int, n: int, longest: int) -> U64:
    """Hashes of the character n-grams of the folded `data[start:end]`, repeats included."""
    folded = np.empty(longest, dtype=np.uint8)
    size = fold(data, start, end, folded)
    points = np.empty(size + 2, dtype=np.uint64)
    at, count = 0, 0
    while at < size:
        point, length = decode(folded, at, size)
        points[count] = mix(uint64(point) + uint64(1))
        count += 1
        at += length
    grams = np.empty(count + 2, dtype=np.uint64)
    return grams[: hash_ngrams(points, count, n, grams)]


@njit(nogil=True, cache=True)
def _sign(data: U8, offsets: I64, n: int, a: U64, b: U64, longest: int, out: U32, filled: Bools) -> None:
    for doc in range(offsets.size - 1):
        grams = _grams(data, offsets[doc], offsets[doc + 1], n, longest)
        for i in range(grams.size):
            grams[i] >>= uint64(32)
        for k in range(a.size):
            factor, term, least = a[k], b[k], uint64(0xFFFFFFFFFFFFFFFF)
            for i in range(grams.size):
                least = min(least, factor * grams[i] + term)
            out[doc, k] = np.uint32(least >> uint64(32))
        filled[doc] = grams.size > 0
