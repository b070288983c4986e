"""The plain letter that a character stands for in an obfuscated word: accents, lookalikes, signs.

A small table for code points below U+2100, and arithmetic for wide letters (`fold_letters.h`). It uses Python's
decompositions of Latin letters, which Unicode's stability policy never changes. The lookalikes are those of Unicode's
confusables (UTS 39) that are letters of Cyrillic and Greek with the shape of one Latin letter.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

import numpy as np

#: A code of the table: the letter's code point, and flags.
FOLDED = 0x1FFFFF  # bits of the letter; 0: separates pieces
LEET = 1 << 21  # a sign of obfuscation: anything but a plain letter
BOTH = 1 << 22  # may be i or l
SIGN = 1 << 23  # by itself no letter that could be meant: a digit, a sign, a letter of another alphabet
MARK = 1 << 24  # a punctuation mark that ends sentences or separates: a letter only before another one
INVISIBLE = 1  # the letter of a character without a glyph
LEET_L = ord("l")

_SIGNS = {"0": "o", "3": "e", "4": "a", "5": "s", "6": "g", "7": "t", "8": "b", "9": "g", "@": "a", "$": "s", "€": "e"}
_I_OR_L = "1!|"
#: Each with the letter that it looks like: small Cyrillic and Greek, then capital.
_ALIKE = (
    "аa еe оo рp сc уy хx іi јj ѕs ԁd һh кk мm нh тt вb αa εe ρp οo υu νv ιi κk τt γy "
    "ІI ЈJ ЅS АA ЕE ОO РP СC УY ХX КK МM НH ТT ВB ΑA ΕE ΟO ΡP ΥY ΝN ΙI ΚK ΤT ΜM ΒB ΖZ ΧX ΗH"
)
_LOOKALIKES = _ALIKE.split()
_INVISIBLES = (0xAD, 0x200B, 0x200C, 0x200D, 0x2060)


def _base(point: int) -> int:
    """The ASCII letter below the accents, or 0."""
    first = unicodedata.normalize("NFD", chr(point))[0].lower()
    return ord(first) if first.isascii() and first.isalpha() else 0


@lru_cache(maxsize=1)
def fold_table() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The table, [0x2100]: by code point, the plain letter and the marks above."""
    table = np.zeros(0x2100, dtype=np.uint32)
    for point in range(0x2100):
        one = chr(point)
        if one.isascii():
            table[point] = ord(one.lower()) if one.isalpha() else 0
        elif one.isalpha():
            base = _base(point)
            lower = one.lower() if len(one.lower()) == 1 else one
            table[point] = base | LEET if base else ord(lower)
    for sign, letter in _SIGNS.items():
        table[ord(sign)] = ord(letter) | LEET | SIGN
    for sign in _I_OR_L:
        table[ord(sign)] = ord("i") | LEET | BOTH | SIGN | (0 if sign.isdigit() else MARK)
    for pair in _LOOKALIKES:
        table[ord(pair[0])] = ord(pair[1].lower()) | LEET | SIGN
    for point in range(0x300, 0x370):  # accents that stand by themselves
        table[point] = INVISIBLE | LEET
    for point in _INVISIBLES:
        table[point] = INVISIBLE | LEET
    return table
