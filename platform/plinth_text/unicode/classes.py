"""Classes of code points as flags, and their normal forms, for the rule sets beyond datatrove's.

`characters` has the few flags of datatrove's counts in one byte; here are the classes of `str` methods and regular
expressions that RedPajama, Dolma and DCLM use, and RedPajama's normal form of a code point. All follow the running
Python's Unicode tables: results that depend on them are stored with `unicodedata.unidata_version`.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: `str.isspace`; `\w`; `str.isalpha`; `str.isdigit`; `\d`; `str.isnumeric`.
SPACE, WORD, LETTER, DIGIT, DECIMAL, NUMERIC = 1, 2, 4, 8, 16, 32
#: `str.isupper` of the character; a cased letter that is not upper case; `str.isalnum`.
UPPER, NOT_UPPER, ALNUM = 64, 128, 256
#: General categories P, S, M, and C without white space.
PUNCTUATION, SYMBOL, MARK, CONTROL = 512, 1024, 2048, 4096
#: `str.splitlines` ends a line here.
BREAK = 8192

_BREAKS = frozenset((0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029))
_GENERAL = {"P": PUNCTUATION, "S": SYMBOL, "M": MARK}
#: Beyond these planes nothing is assigned but tags, variation selectors and private use.
_LAST, _TAGS, _PRIVATE = 0x34000, range(0xE0000, 0xE01F0), range(0xF0000, 0x110000)


@lru_cache(maxsize=1)
def classes() -> npt.NDArray[np.uint16]:
    """Flags by code point, shape [0x110000]."""
    table = np.full(0x110000, CONTROL, dtype=np.uint16)  # unassigned and private use are category C
    for point in (*range(_LAST), *_TAGS):
        table[point] = _flags(chr(point))
    return table


def _flags(character: str) -> int:
    space, alnum, category = character.isspace(), character.isalnum(), unicodedata.category(character)
    return (
        SPACE * space
        | WORD * (alnum or character == "_")
        | LETTER * character.isalpha()
        | DIGIT * character.isdigit()
        | DECIMAL * character.isdecimal()
        | NUMERIC * character.isnumeric()
        | UPPER * character.isupper()
        | NOT_UPPER * (character.islower() or category == "Lt")
        | ALNUM * alnum
        | _GENERAL.get(category[0], 0)
        | CONTROL * (category[0] == "C" and not space)
        | BREAK * (ord(character) in _BREAKS)
    )


class Expansions(NamedTuple):
    """The result of `unicodedata.normalize("NFD", character.lower())`, by code point.

    Args:
        starts: [0x30001] the result of p is `points[starts[p]:starts[p + 1]]`; beyond, a code point is itself.
        points: the results, one after the other.
        numeric: [0x30000] characters of the result that are numeric.
        combines: [0x30000] bit 0: the code point itself combines, so marks before it may have to change places;
            bit 1: its result ends with a combining mark.
    """

    starts: npt.NDArray[np.int32]
    points: npt.NDArray[np.uint32]
    numeric: npt.NDArray[np.uint8]
    combines: npt.NDArray[np.uint8]


@lru_cache(maxsize=1)
def expansions() -> Expansions:
    """The table. It does not cover text with a capital sigma, or with marks that normalisation reorders."""
    starts, points = np.zeros(0x30001, dtype=np.int32), []
    numeric, combines = np.zeros(0x30000, dtype=np.uint8), np.zeros(0x30000, dtype=np.uint8)
    for point in range(0x30000):
        character = chr(point)
        made = unicodedata.normalize("NFD", character.lower())
        points += [ord(one) for one in made]
        starts[point + 1] = len(points)
        numeric[point] = sum(one.isnumeric() for one in made)
        combines[point] = (unicodedata.combining(made[0]) > 0) | (unicodedata.combining(made[-1]) > 0) << 1
    return Expansions(starts, np.array(points, dtype=np.uint32), numeric, combines)
