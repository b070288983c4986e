"""Bands and rows of MinHash: published settings by name, or chosen for a threshold and a number of hashes.

A pair of similarity s shares a band key with probability 1 - (1 - s^rows)^bands (`plinth_text.similarity.recall`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from plinth_text.similarity import recall

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
