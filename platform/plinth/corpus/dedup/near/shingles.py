"""Settings and inputs of MinHash: bands and rows, and shingles of a text with their signatures and sets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.dedup.parameters import MinHash
from plinth_text import similarity as minhash
from plinth_text.arrays import I64, U8, U32, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.similarity import recall
from plinth_text.unicode import utf8
from plinth_text.words.hashes import ngram_sets

# Bands and rows: published settings by name, or chosen for a threshold and a number of hashes.
#
# A pair of similarity s shares a band key with probability 1 - (1 - s^rows)^bands (`text.minhash.recall`).

#: Settings as their projects publish them. Where only a number of hashes is, bands and rows are optimised for the
#: threshold as the project does itself, with datasketch's routine.
#:
#:   fineweb      Penedo et al. 2024 (2406.17557), and datatrove's defaults: word 5-grams, 14 bands of 8
#:   marin        marin-community/marin: character 5-grams, 26 bands of 11, at most 500,000 characters
#:   nemo         NVIDIA NeMo Curator: character 24-grams, 20 bands of 13
#:   redpajama    RedPajama-Data-V2: word 13-grams, 128 hashes, here at its 0.8
#:   text-dedup   ChenghaoMou/text-dedup: word 5-grams, 240 hashes, 0.7
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "fineweb": {"shingle_words": 5, "bands": 14, "rows": 8, "threshold": 0.8},
    "marin": {"shingle_characters": 5, "bands": 26, "rows": 11, "max_characters": 500_000, "threshold": 0.8},
    "nemo": {"shingle_characters": 24, "bands": 20, "rows": 13, "threshold": 0.8},
    "redpajama": {"shingle_words": 13, "hashes": 128, "threshold": 0.8},
    "text-dedup": {"shingle_words": 5, "hashes": 240, "threshold": 0.7},
}
DEFAULT_THRESHOLD = 0.8


def resolve(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `MinHash` with `preset`, `hashes` and `target_recall` turned into bands and rows.

    Raises:
        ValueError: fields that contradict each other, or a recall that the hashes cannot give.
    """
    found, shape = dict(given), given.keys() & {"bands", "rows"}
    for name, value in PRESETS.get(str(given.get("preset")), {}).items():
        chosen_otherwise = (name in ("bands", "rows") and "hashes" in given) or (name == "hashes" and shape)
        if not chosen_otherwise:
            found.setdefault(name, value)
    hashes, target, threshold = found.get("hashes"), found.get("target_recall"), found.get("threshold")
    if hashes is None:
        if target is not None:
            raise ValueError("`target_recall` needs `hashes`")
        return found
    if shape:
        raise ValueError("give either `hashes`, or `bands` and `rows`")
    threshold = DEFAULT_THRESHOLD if threshold is None else threshold
    if not isinstance(hashes, int) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        return found  # the fields' own checks say what is wrong
    found["bands"], found["rows"] = for_recall(threshold, hashes, target) if target else optimal(threshold, hashes)
    return found


@lru_cache
def optimal(threshold: float, hashes: int) -> tuple[int, int]:
    """Bands and rows of at most so many hashes with the least sum of false positives and negatives.

    The areas under the curve of recall below, and over it above, the threshold; computed by datasketch.
    """
    from datasketch.lsh import _optimal_param

    bands, rows = _optimal_param(threshold, hashes, 0.5, 0.5)
    return int(bands), int(rows)


def for_recall(threshold: float, hashes: int, target: float) -> tuple[int, int]:
    """The most rows, and so the fewest false candidates, that find such a share of pairs at the threshold.

    Raises:
        ValueError: not even single rows do.
    """
    for rows in range(hashes, 0, -1):
        if recall(threshold, hashes // rows, rows) >= target:
            return hashes // rows, rows
    raise ValueError(f"{hashes} hashes find no {target:.0%} of pairs at {threshold}")


# Shingles of a text, of words or of characters, by the parameters: their signatures and their sets.
#
# Words are those of `text.ngrams`. A character shingle is n code points of the folded text (`text.fold`: lower case,
# one space for any white space); a text of fewer is one shingle. Of a text longer than `max_characters` only its
# beginning counts (Marin cuts at 500,000), here as there for signature and set alike: a book stays comparable with
# its copies, costs no more than a long article, and its minima do not sink to where they all meet.


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
