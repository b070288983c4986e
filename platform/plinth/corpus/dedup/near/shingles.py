"""Shingles of a text, of words or of characters: their signatures and their sets.

Words are those of `plinth_text.words`. A character shingle is n code points of the folded text (lower case, one space
for any white space); a shorter text is one shingle. Of a text longer than `max_characters` only the beginning counts
(Marin cuts at 500,000), for signature and set alike: a book stays comparable with its copies, costs no more than a long
article, and its minima do not sink to where they all meet.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.dedup.parameters import MinHash
from plinth_text import similarity as minhash
from plinth_text.arrays import I64, U8, U32, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.unicode import utf8
from plinth_text.words import ngram_sets


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
    sign(data, offsets, params.shingle_characters, a, b, *_scratch(offsets), out, filled)
    return out, filled


def sets(texts: pa.Array, params: MinHash) -> list[U64]:
    """The set of shingle hashes of every text, sorted."""
    texts = shortened(texts, params.max_characters)
    if params.shingle_characters is None:
        return ngram_sets(texts, params.shingle_words)
    data, offsets = utf8(texts)
    folded, points, grams = _scratch(offsets)
    n, edges = params.shingle_characters, offsets.tolist()
    return [
        np.unique(grams[: hash_characters(data, start, end, n, folded, points, grams)])
        for start, end in pairwise(edges)
    ]


def shortened(texts: pa.Array, characters: int | None) -> pa.Array:
    """Every text's first so many characters."""
    if characters is None or int(pc.max(pc.binary_length(texts)).as_py() or 0) <= characters:
        return texts
    return pc.utf8_slice_codeunits(texts, 0, characters)


def _scratch(offsets: I64) -> tuple[U8, U64, U64]:
    """Memory for the longest text: folded, its code points, its n-grams."""
    longest = int(np.diff(offsets).max(initial=0)) + 2
    return np.empty(longest, np.uint8), np.empty(longest, np.uint64), np.empty(longest + 2, np.uint64)


@compiled
def hash_characters(data: U8, start: int, end: int, n: int, folded: U8, points: U64, grams: U64) -> int:
    """Hash the character n-grams of the folded `data[start:end]`, repeats included; returns how many there are.

    The last three: `_scratch`.
    """


@compiled
def sign(
    data: U8, offsets: I64, n: int, a: U64, b: U64, folded: U8, points: U64, grams: U64, out: U32, filled: Bools
) -> None:
    """Fill in what `signatures` returns. After `b`: `_scratch`."""
