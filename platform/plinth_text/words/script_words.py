"""The words of a text in any script.

    spaced scripts          what white space separates, without the marks around it; every mark is a word
    Han, kana, Thai         BudouX's words (`boundary_models`), in Chinese by the model of its characters
    Lao, Khmer, Myanmar     orthographic syllables: no small model of words is kept well for them
    Tibetan                 syllables, which a dot separates

A mark between letters stays in a word where it joins (`e-mail`, `3.5`, `1,000`), and so does a hyphen, dot or slash
before one; after an apostrophe a word of Latin letters ends (`l'|eau`). Dots and hyphens in a row are one mark. A text
is Japanese when a twentieth of its Han and kana is kana; Chinese is traditional when it has more characters that only
traditional script has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from plinth_text.arrays import I32, U8, Bools
from plinth_text.compiled import compiled
from plinth_text.unicode.scripts import kinds, variants
from plinth_text.words import boundary_models
from plinth_text.words.boundary_models import BoundaryModels


class ScriptSplitter(NamedTuple):
    """Tables, and scratch memory for the longest text of a column.

    Args:
        kinds, variants, models: the tables.
        points, places, here: of a text: code points, where each starts, and their kinds.
        scores, first, thai: scores of places, and whether a word begins there, by the models of Han and of Thai.
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
        """The arrays in the order in which kernels take them (`SPLITTER` in `script_words.h`)."""
        kinds, variants, models = self[:3]
        return kinds, variants, *models.flat(), *self[3:]


def splitter(longest: int) -> ScriptSplitter:
    """For texts of up to `longest` bytes; untouched pages cost nothing."""
    return ScriptSplitter(
        kinds(), variants(), boundary_models.boundary_models(), np.empty(longest + 1, dtype=np.int32),
        np.empty(longest + 1, dtype=np.int32), np.empty(longest + 1, dtype=np.uint8),
        np.empty(longest + 7, dtype=np.int32), np.empty(longest + 1, dtype=np.bool_),
        np.empty(longest + 1, dtype=np.bool_),
    )  # fmt: skip


def edge_buffer(longest: int) -> I32:
    """A buffer for the edges of the words of the longest text: every character may be one."""
    return np.empty(2 * longest + 4, dtype=np.int32)


@compiled
def split(
    data: U8, start: int, end: int, kinds: U8, variants: npt.NDArray[np.int8], ids: npt.NDArray[np.uint16],
    singles: I32, keys: npt.NDArray[np.uint64], weights: I32, bases: npt.NDArray[np.int64], points: I32, places: I32,
    here: U8, scores: I32, first: Bools, thai: Bools, edges: I32,
) -> int:  # fmt: skip
    """Find the words of `data[start:end]`: word i is `data[edges[2 * i] : edges[2 * i + 1]]`; returns how many.

    Between `end` and `edges`: `ScriptSplitter.arguments()`.
    """


def words(text: str) -> list[str]:
    """The words of one text, for people and tests."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    edges = edge_buffer(data.size)
    count = split(data, 0, data.size, *splitter(data.size).arguments(), edges)  # type: ignore[call-arg]
    return [bytes(data[edges[2 * i] : edges[2 * i + 1]]).decode() for i in range(count)]
