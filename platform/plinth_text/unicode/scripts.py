"""Kinds of code points for splitting words in any script: spaced letters, scripts without spaces, marks, white space.

The scripts are ranges of Unicode blocks; marks and white space follow the running Python's tables.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from plinth_text.unicode.characters import SPACE, flags

#: What a code point is. LETTER: anything that words are made of where spaces stand between words, digits too.
LETTER, BLANK, MARK, HAN, KANA, THAI, LAO, KHMER, MYANMAR = range(9)
#: A mark that stays inside a word when letters stand on both sides: `l'eau`, `foo(3)`, `3.5`.
JOINER = 9
#: Scripts that are written without spaces between words, by their kind.
UNSPACED = {HAN: "han", KANA: "kana", THAI: "thai", LAO: "lao", KHMER: "khmer", MYANMAR: "myanmar"}
#: Beyond, nothing is assigned but symbols, tags and private use.
SIZE = 0x32000

_RANGES = (
    (HAN, 0x2E80, 0x2FDF), (HAN, 0x3005, 0x3007), (HAN, 0x3021, 0x3029), (HAN, 0x3400, 0x4DBF), (HAN, 0x4E00, 0x9FFF),
    (HAN, 0xF900, 0xFAFF), (HAN, 0x20000, 0x31FFF),
    (KANA, 0x3031, 0x3035), (KANA, 0x3041, 0x309F), (KANA, 0x30A1, 0x30FA), (KANA, 0x30FC, 0x30FF),
    (KANA, 0x31F0, 0x31FF), (KANA, 0xFF66, 0xFF9F), (KANA, 0x1B000, 0x1B16F),
    (THAI, 0x0E01, 0x0E3A), (THAI, 0x0E40, 0x0E4E), (LAO, 0x0E81, 0x0ECD), (LAO, 0x0EDC, 0x0EDF),
    (KHMER, 0x1780, 0x17D3), (KHMER, 0x17D7, 0x17D7), (KHMER, 0x17DC, 0x17DD),
    (MYANMAR, 0x1000, 0x103F), (MYANMAR, 0x1050, 0x108F), (MYANMAR, 0x109A, 0x109D), (MYANMAR, 0xA9E0, 0xA9EF),
    (MYANMAR, 0xA9FA, 0xA9FE), (MYANMAR, 0xAA60, 0xAA7F),
)  # fmt: skip
#: CJK punctuation and full-width forms of ASCII marks, for a character class.
_WIDE_MARKS = "\u3000-\u3004\u3008-\u3020\u3030\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
#: Between Tibetan syllables, and spaces of no width, which publishers put between Khmer, Lao and Thai words.
_SEPARATORS = (0x0F0B, 0x0F0C, 0x200B, 0xFEFF)
#: ASCII marks but those at which spaCy splits inside words, and a few of other blocks.
_ASCII_JOINERS = "!\"#$%&'()*+-.;?@[\\]^_`{|}"
_JOINERS = (*map(ord, _ASCII_JOINERS), 0xB7, 0x5F3, 0x5F4, 0x2010, 0x2011, 0x2019, 0x30FB)


@lru_cache(maxsize=1)
def kinds() -> npt.NDArray[np.uint8]:
    """The kind of each code point below `SIZE`."""
    table = np.full(SIZE, LETTER, dtype=np.uint8)
    marks = [point for point in range(SIZE) if unicodedata.category(chr(point))[0] in "PS"]
    table[marks] = MARK
    for kind, first, last in _RANGES:
        table[first : last + 1] = kind
    table[list(_JOINERS)] = JOINER
    table[np.flatnonzero(flags()[:SIZE] & SPACE)] = BLANK
    table[list(_SEPARATORS)] = BLANK
    return table


def word_counts(text: str) -> dict[str, int]:
    """Count white-space-separated words, and the characters of each script that has no spaces between words.

    Returns:
        `words`, and the names in `UNSPACED` that occur. Spaced words inside such a script count as words; CJK and
        full-width marks separate words and are not counted.
    """
    unspaced, pieces = _patterns()
    if not unspaced.search(text):  # twenty times faster
        return {"words": len(text.split())}
    return {"words": 0} | Counter(found.lastgroup or "words" for found in pieces.finditer(text))


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A character that makes white space insufficient; a character of a script without spaces, or a word."""
    classes: dict[str, str] = dict.fromkeys(UNSPACED.values(), "")
    for kind, first, last in _RANGES:
        classes[UNSPACED[kind]] += f"{chr(first)}-{chr(last)}"
    every = "".join(classes.values()) + _WIDE_MARKS
    groups = "|".join(f"(?P<{name}>[{characters}])" for name, characters in classes.items())
    return re.compile(f"[{every}]"), re.compile(rf"{groups}|(?P<words>[^\s{every}]+)")


@lru_cache(maxsize=1)
def variants() -> npt.NDArray[np.int8]:
    """Of Han characters: 1 what only simplified Chinese has, -1 what only traditional has, else 0, below 0x10000.

    By the character sets of mainland China and Taiwan, GB 2312 and Big5.
    """
    table = np.zeros(0x10000, dtype=np.int8)
    for point in range(0x4E00, 0xA000):
        table[point] = _in(chr(point), "gb2312") - _in(chr(point), "big5")
    return table


def _in(character: str, charset: str) -> bool:
    return bool(character.encode(charset, "ignore"))
