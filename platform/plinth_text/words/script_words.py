"""Splitter of a text into words, in any script.

    spaced scripts          text between white space, without punctuation around it; every mark is a word
    Han, kana, Thai         BudouX's words (`boundary_models`); in Chinese, the model depends on the characters
    Lao, Khmer, Myanmar     orthographic syllables, because no small model of words is maintained for these scripts
    Tibetan                 syllables, which a dot separates

A mark between letters stays in a word if it joins them (`e-mail`, `3.5`, `1,000`), and so does a hyphen, dot or slash
before a letter. After an apostrophe, a word of Latin letters ends (`l'|eau`). Dots and hyphens in a row are one mark. A
text is Japanese if at least a twentieth of its Han and kana characters are kana. Chinese text is traditional if more of
its characters are only traditional than only simplified.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from plinth_text.arrays import I32, I64, U8, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.unicode import kinds, variants


class BoundaryModels(NamedTuple):
    """Tables of all M boundary models.

    Args:
        ids: [M, 0x10000] small number of each character that the model knows, else 0.
        singles: [M, characters, 6] weights of a character for the positions around it.
        keys: [M, 8192] hash table of features with two or three characters.
        weights: [M, 8192, 4] weights of these features, for the positions from their first character on.
        bases: [M] negative sum of all weights.
    """

    ids: npt.NDArray[np.uint16]
    singles: I32
    keys: U64
    weights: I32
    bases: I64

    def flat(self) -> tuple[npt.NDArray[np.uint16], I32, U64, I32, I64]:
        """Return the arrays in one dimension, as kernels take them."""
        return self.ids.ravel(), self.singles.ravel(), self.keys.ravel(), self.weights.ravel(), self.bases


class ScriptSplitter(NamedTuple):
    """Tables, and scratch memory for the longest text of a column.

    Args:
        kinds, variants, models: the tables.
        points, places, here: code points of a text, their start positions, and their kinds.
        scores: scores of the positions in a text.
        first, thai: True for each position where a word begins, according to the models for Han and for Thai.
    """

    kinds: U8
    variants: npt.NDArray[np.int8]
    models: BoundaryModels
    points: I32
    places: I32
    here: U8
    scores: I32
    first: Bools
    thai: Bools

    def arguments(self) -> tuple[npt.NDArray[Any], ...]:
        """Return the arrays in the order in which kernels take them (`SPLITTER` in `script_words.h`)."""
        kinds, variants, models = self[:3]
        return kinds, variants, *models.flat(), *self[3:]


def splitter(longest: int) -> ScriptSplitter:
    """Return a splitter for texts of up to `longest` bytes. Memory pages that are not used cost nothing."""
    return ScriptSplitter(
        kinds(), variants(), boundary_models(), np.empty(longest + 1, dtype=np.int32),
        np.empty(longest + 1, dtype=np.int32), np.empty(longest + 1, dtype=np.uint8),
        np.empty(longest + 7, dtype=np.int32), np.empty(longest + 1, dtype=np.bool_),
        np.empty(longest + 1, dtype=np.bool_),
    )  # fmt: skip


def edge_buffer(longest: int) -> I32:
    """Return a buffer for the word edges of a text of `longest` bytes, in which every character may be a word."""
    return np.empty(2 * longest + 4, dtype=np.int32)


@compiled
def split(
    data: U8, start: int, end: int, kinds: U8, variants: npt.NDArray[np.int8], ids: npt.NDArray[np.uint16],
    singles: I32, keys: npt.NDArray[np.uint64], weights: I32, bases: npt.NDArray[np.int64], points: I32, places: I32,
    here: U8, scores: I32, first: Bools, thai: Bools, edges: I32,
) -> int:  # fmt: skip
    """Split `data[start:end]` into words and return their number; word i is `data[edges[2 * i] : edges[2 * i + 1]]`.

    The arguments between `end` and `edges` are those of `ScriptSplitter.arguments()`.
    """


def words(text: str) -> list[str]:
    """Return the words of one text; for tests and inspection."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    edges = edge_buffer(data.size)
    count = split(data, 0, data.size, *splitter(data.size).arguments(), edges)  # type: ignore[call-arg]
    return [bytes(data[edges[2 * i] : edges[2 * i + 1]]).decode() for i in range(count)]


# BudouX's models of word boundaries, for scripts without spaces, as tables for kernels.
#
# A model is a sum of integer weights of the one, two and three characters around a place; above half the sum of all
# weights a word begins there (`budoux/parser.py`). `json` has the models of BudouX 0.10.1 (written by
# tests/agreement/boundary_models.py); the tests hold both equal.

#: Models by number. Japanese is the model of words, not that of phrases.
SIMPLIFIED, TRADITIONAL, JAPANESE, THAI = range(4)
_NAMES = ("zh-hans", "zh-hant", "ja_word", "th")

#: Features by length in characters; each length in the order of the places that its characters count for, the first
#: two characters after the place (`UW6`), the last three before it (`UW1`, `TW1`).
_FEATURES = (("UW6", "UW5", "UW4", "UW3", "UW2", "UW1"), ("BW3", "BW2", "BW1"), ("TW4", "TW3", "TW2", "TW1"))
_BITS = 13
_SPREAD = 0x9E3779B97F4A7C15
#: Code points from here on are in no model.
_LIMIT = 0x10000


@lru_cache(maxsize=1)
def boundary_models() -> BoundaryModels:
    """Return the boundary models, which are read once per process."""
    found = json.loads(Path(__file__).with_name("boundary_models.json").read_text("utf-8"))
    return _tables([found[name] for name in _NAMES])


def _tables(models: list[dict[str, dict[str, int]]]) -> BoundaryModels:
    letters = [sorted({one for group in model.values() for key in group for one in key}) for model in models]
    most, count = max(map(len, letters)) + 1, len(models)
    made = BoundaryModels(
        np.zeros((count, _LIMIT), dtype=np.uint16),
        np.zeros((count, most, len(_FEATURES[0])), dtype=np.int32),
        np.zeros((count, 1 << _BITS), dtype=np.uint64),
        np.zeros((count, 1 << _BITS, len(_FEATURES[2])), dtype=np.int32),
        np.zeros(count, dtype=np.int64),
    )
    for m, model in enumerate(models):
        number = {letter: n for n, letter in enumerate(letters[m], 1)}
        for letter, n in number.items():
            made.ids[m, ord(letter)] = n
        made.bases[m] = -sum(sum(group.values()) for group in model.values())
        for size, names in enumerate(_FEATURES, 1):
            for place, name in enumerate(names):
                for key, weight in model.get(name, {}).items():
                    if len(key) == size:  # the Thai model has others: they match nothing and count in the base alone
                        _put(made, m, [number[one] for one in key], place, weight)
    return made


def _put(made: BoundaryModels, m: int, numbers: list[int], place: int, weight: int) -> None:
    if len(numbers) == 1:
        made.singles[m, numbers[0], place] = weight
        return
    key = sum(number << 16 * k for k, number in enumerate(numbers))
    slot = (key * _SPREAD % 2**64) >> (64 - _BITS)
    while made.keys[m, slot] not in (0, key):
        slot = (slot + 1) % (1 << _BITS)
    made.keys[m, slot], made.weights[m, slot, place] = key, weight


def begins(models: BoundaryModels, m: int, points: I32, n: int, scratch: I32, out: npt.NDArray[np.bool_]) -> None:
    """Fill `out[:n]` with True for each code point of the text `points[:n]` where a word begins.

    The first element is always True.

    Args:
        m: number of the model.
        scratch: array with at least n + 6 elements.
    """
    word_begins(*models.flat(), m, points, n, scratch, out)


@compiled
def word_begins(
    ids: npt.NDArray[np.uint16], singles: I32, keys: U64, weights: I32, bases: I64, model: int, points: I32, n: int,
    scratch: I32, out: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Fill `out[:n]` with True for each code point where a word begins, according to the boundary model `model`."""
