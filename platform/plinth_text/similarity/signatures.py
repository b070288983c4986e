"""MinHash signatures of word n-grams, and the keys of locality-sensitive hashing.

Broder (1997): over random permutations of the hash space, the share of permutations in which two sets have the
same minimum estimates their Jaccard similarity. Permutation k is the multiply-add-shift function
h_k(x) = (a_k x + b_k mod 2^64) >> 32 on 32-bit x, strongly universal by Dietzfelbinger (1996); x is the upper half
of an n-gram's 64-bit hash. The shift is taken after the minimum, which it does not change.

With `bands` bands of `rows` rows, a pair of similarity s shares a band key with probability
1 - (1 - s^rows)^bands. A key only nominates a pair: the caller must verify it.

Letters: D texts, K = bands * rows permutations.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I64, U8, U32, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.unicode.codepoints import utf8
from plinth_text.words.word_hashes import scratch

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def permutations(count: int, seed: int) -> tuple[U64, U64]:
    """Coefficients a [K] and b [K], from SplitMix64 (Steele et al. 2014) so that no library's version matters."""
    state, values = (seed * _GOLDEN + 0x5851F42D4C957F2D) & _MASK, []
    for _ in range(2 * count):
        state = (state + _GOLDEN) & _MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        values.append(z ^ (z >> 31))
    both = np.array(values, dtype=np.uint64)
    return both[:count], both[count:]


def signatures(texts: pa.Array, n: int, a: U64, b: U64) -> tuple[U32, Bools]:
    """Signatures [D, K] of the word n-grams of every text, and whether it has any [D].

    A text without words has the signature of nothing, all ones; it must never be compared.
    """
    data, offsets = utf8(texts)
    count = offsets.size - 1
    out = np.empty((count, a.size), dtype=np.uint32)
    filled = np.zeros(count, dtype=np.bool_)
    words = scratch(offsets)
    sign(data, offsets, n, a, b, words, np.empty_like(words), np.empty_like(a), out, filled)
    return out, filled


@compiled
def sign(
    data: U8, offsets: I64, n: int, a: U64, b: U64, words: U64, grams: U64, minima: U64, out: U32, filled: Bools
) -> None:
    """As `signatures`; `words`, `grams` and `minima` are scratch memory."""


def band_keys(signature: U32, bands: int, rows: int) -> U64:
    """Keys [D, bands] of signatures [D, bands * rows]; keys of different bands never mean the same."""
    out = np.empty((signature.shape[0], bands), dtype=np.uint64)
    hash_bands(signature, bands, rows, out.reshape(-1))
    return out


@compiled
def hash_bands(signature: U32, bands: int, rows: int, out: U64) -> None:
    """As `band_keys`."""


def recall(similarity: float, bands: int, rows: int) -> float:
    """Probability that a pair of this Jaccard similarity shares at least one band key."""
    return float(1 - (1 - similarity**rows) ** bands)
