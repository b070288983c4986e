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

from plinth.compiled import njit
from plinth.text.unicode.codepoints import decode
from plinth.text.unicode.scripts import (
    BLANK,
    HAN,
    JOINER,
    KANA,
    KHMER,
    LAO,
    LETTER,
    MARK,
    MYANMAR,
    SIZE,
    THAI,
    kinds,
    variants,
)
from plinth.text.words import boundary_models
from plinth.text.words.boundary_models import JAPANESE, SIMPLIFIED, TRADITIONAL, BoundaryModels, begins
from plinth.text.words.ngrams import U8

I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

#: Kana among Han and kana from which a text is Japanese: one in so many.
_JAPANESE_FROM = 20
_COENG, _VIRAMA, _ASAT, _DOT_BELOW = 0x17D2, 0x1039, 0x103A, 0x1037
_COMMA, _HYPHEN, _DOT, _SLASH, _APOSTROPHE, _QUOTE = 0x2C, 0x2D, 0x2E, 0x2F, 0x27, 0x2019
#: Latin letters are below; behind an apostrophe after one, a new word begins, as in French and Italian.
_LATIN_END = 0x250


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


@njit(nogil=True, cache=True)
def split(data: U8, start: int, end: int, by: ScriptSplitter, edges: I32) -> int:
    """The words of `data[start:end]`: word i is `data[edges[2 * i] : edges[2 * i + 1]]`; returns how many."""
    n, counts = _decoded(data, start, end, by.kinds, by.variants, by.points, by.places, by.here)
    han, kana, simple, thai, syllables = counts
    if han + kana:
        model = TRADITIONAL if simple < 0 else SIMPLIFIED
        if kana and kana * _JAPANESE_FROM >= han + kana:
            model = JAPANESE
        begins(by.models, model, by.points, n, by.scores, by.first)
    if thai:
        begins(by.models, boundary_models.THAI, by.points, n, by.scores, by.thai)
        _choose(by.here, n, THAI, by.thai, by.first)
    if syllables:
        _syllables(by.points, by.here, n, by.first)
    return int(_words(by.points, by.places, by.here, n, by.first, edges))


@njit(nogil=True, cache=True)
def _decoded(
    data: U8, start: int, end: int, kinds: U8, variants: npt.NDArray[np.int8], points: I32, places: I32, here: U8
) -> tuple[int, tuple[int, int, int, int, int]]:
    """Code points, where each starts, and kinds; returns how many, and of them: Han, kana, those of simplified script
    less those of traditional, Thai, and those of scripts in syllables."""
    n, at, han, kana, thai, syllables = 0, start, 0, 0, 0, 0
    simple: Any = np.int64(0)
    while at < end:
        point, size = np.int64(data[at]), 1
        if point >= 128:
            point, size = decode(data, at, end)
        kind = kinds[point] if point < SIZE else np.uint8(MARK)
        if kind >= HAN:
            han += kind == HAN
            kana += kind == KANA
            thai += kind == THAI
            syllables += LAO <= int(kind) <= MYANMAR
            simple += variants[point] if point < variants.size else np.int8(0)
        points[n], places[n], here[n] = point, at, np.uint8(HAN) if kind == KANA else kind
        n += 1
        at += size
    places[n] = end
    return n, (han, kana, simple, thai, syllables)


@njit(nogil=True, cache=True)
def _choose(here: U8, n: int, kind: int, other: Bools, first: Bools) -> None:
    for i in range(n):
        if here[i] == kind:
            first[i] = other[i]


@njit(nogil=True, cache=True)
def _syllables(points: I32, here: U8, n: int, first: Bools) -> None:
    """Where syllables of Lao, Khmer and Myanmar begin."""
    for i in range(n):
        kind, point = here[i], points[i]
        if not LAO <= kind <= MYANMAR:
            continue
        before = points[i - 1] if i else np.int32(0)
        after = points[i + 1] if i + 1 < n else np.int32(0)
        if kind == LAO:  # a vowel that is written before its consonant, or a consonant without one
            first[i] = 0xEC0 <= point <= 0xEC4 or (0xE81 <= point <= 0xEAE and not 0xEC0 <= before <= 0xEC4)
        elif kind == KHMER:  # a consonant or independent vowel that is not written below another
            first[i] = point <= 0x17B3 and before != _COENG
        else:
            dotted = after == _DOT_BELOW and i + 2 < n and points[i + 2] == _ASAT
            closes = after in (_ASAT, _VIRAMA) or dotted
            first[i] = (point <= 0x102A or point == 0x103F) and before != _VIRAMA and not closes


@njit(nogil=True, cache=True)
def _words(points: I32, places: I32, here: U8, n: int, first: Bools, edges: I32) -> int:
    """Words end at white space, between kinds, at every mark, and where the script has a boundary."""
    count, previous, cut = 0, np.uint8(BLANK), False
    for i in range(n):
        kind, point = here[i], points[i]
        if kind in (MARK, JOINER):
            kind = _mark(points, here, i, n, previous)
        again = kind == MARK and previous == MARK and point == points[i - 1] and point in (_DOT, _HYPHEN)
        if (kind != previous or kind == MARK or cut or (HAN <= kind <= MYANMAR and first[i])) and not again:
            if previous != BLANK:
                edges[2 * count + 1] = places[i]
                count += 1
            edges[2 * count] = places[i]
        cut = kind == LETTER and point in (_APOSTROPHE, _QUOTE) and i > 0 and points[i - 1] < _LATIN_END
        previous = kind
    if previous != BLANK:
        edges[2 * count + 1] = places[n]
        count += 1
    return count


@njit(inline="always")
def _mark(points: Any, here: Any, i: Any, n: Any, previous: Any) -> Any:
    """The kind of a mark: LETTER where it is part of a word."""
    point, after = points[i], i + 1
    inside = previous == LETTER and after < n and here[after] == LETTER
    if inside and here[i] == JOINER:
        return np.uint8(LETTER)
    if inside and point == _COMMA and 48 <= points[i - 1] <= 57 and 48 <= points[after] <= 57:
        return np.uint8(LETTER)
    if previous == BLANK and point in (_HYPHEN, _DOT, _SLASH):  # `--all`, `.profile`, `/usr`
        while after < n and points[after] == point:
            after += 1
        if after < n and here[after] == LETTER:
            here[i:after] = LETTER
    return np.uint8(MARK) if here[i] == JOINER else here[i]


def words(text: str) -> list[str]:
    """The words of one text, for people and tests."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    edges = edge_buffer(data.size)
    count = split(data, 0, data.size, splitter(data.size), edges)
    return [bytes(data[edges[2 * i] : edges[2 * i + 1]]).decode() for i in range(count)]
