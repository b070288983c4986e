"""Flags of code points for fastText's tokens. Does not belong here: the features of a token (`rows`)."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import numpy as np

from plinth_text.arrays import U8
from plinth_text.unicode.characters import ALPHA, flags

BROKEN = 32  # next to the flags of `characters`


@lru_cache(maxsize=1)
def point_flags() -> U8:
    """`ALPHA` and `BROKEN` by code point: private, unassigned, surrogate, C1 control, or U+FFFD."""
    table = flags() & np.uint8(ALPHA)
    broken = [point for point in range(0x110000) if unicodedata.category(chr(point)) in {"Cn", "Co", "Cs"}]
    table[broken] |= BROKEN
    table[0x80:0xA0] |= BROKEN
    table[0x85] &= 0xFF ^ BROKEN  # NEL is a line end
    table[0xFFFD] |= BROKEN
    return table
