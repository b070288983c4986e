"""Candidates for personal data: their kinds and their table (`pii_places.h`)."""

from __future__ import annotations

from dataclasses import dataclass

from plinth_text.arrays import I64

#: Kinds of candidates: an `@`, dotted numbers, hexadecimal groups, a number, letters and a number, a long run, a PEM
#: line.
AT, DOTTED, HEXES, NUMBER, LETTERED, RUN, PEM = range(7)


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
