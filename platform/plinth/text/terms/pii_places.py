"""Candidates for personal data: their kinds, their table, and the classes of bytes that they are told by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.compiled import njit
from plinth.text.words.ngrams import I64

#: Kinds of candidates: an `@`, dotted numbers, hexadecimal groups, a number, letters and a number, a long run, a PEM
#: line.
AT, DOTTED, HEXES, NUMBER, LETTERED, RUN, PEM = range(7)

TOKEN, DIGIT, UPPER, LOWER, AT_SIGN, COLON, HEX, WORD = 1, 2, 4, 8, 16, 32, 64, 128


def _classes() -> npt.NDArray[np.uint8]:
    table = np.zeros(256, dtype=np.uint8)
    digits, upper, lower = b"0123456789", bytes(range(65, 91)), bytes(range(97, 123))
    for characters, flag in (
        (digits + upper + lower + b"_-", TOKEN), (digits, DIGIT), (upper, UPPER), (lower, LOWER), (b"@", AT_SIGN),
        (b":", COLON), (b"0123456789abcdefABCDEF", HEX), (digits + upper + lower + b"_", WORD),
    ):  # fmt: skip
        table[list(characters)] |= flag
    return table


CLASSES = _classes()


@dataclass(frozen=True)
class PiiPlaces:
    """Candidates in the order of the texts, [P].

    Args:
        doc: row of the text.
        kind: one of `AT`, …, `PEM`.
        start, end: bytes from the beginning of the text; a rule may read further than `end`.
        meaning: bits of `pii_words` of the words near it.
    """

    doc: I64
    kind: I64
    start: I64
    end: I64
    meaning: I64


@njit(inline="always")
def put(found: I64, size: Any, doc: Any, kind: Any, start: Any, end: Any, meaning: Any) -> Any:
    """Note a candidate, or count it only once `found` is full."""
    if size < found.shape[0]:
        found[size, 0], found[size, 1], found[size, 2], found[size, 3] = doc, kind, start, end
        found[size, 4] = meaning
    return size + 1
