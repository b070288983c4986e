"""How many sentences a text has for spaCy's rule-based splitter (`spacy/pipeline/sentencizer.pyx`).

A sentence starts with the first word behind an end of a sentence that is neither an end nor punctuation. White space
counts as a word unless it is one space between words.
"""

from __future__ import annotations

import numpy as np

from plinth_text.arrays import I32, I64, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.english.words import edge_buffer, splitter


@compiled
def sentences(
    data: U8, start: int, end: int, flags: U16, tables: U64, pairs: U64, rows: U64, whole: U8, most: int,
    points: I32, places: I32, matched: U64, starts: I64, taken: U8, copy: I32, edges: I32,
) -> int:  # fmt: skip
    """Count the sentences of `data[start:end]`, at least one; the parameters are those of `words.split`."""


def sentence_count(text: str) -> int:
    """Sentences of one text, for people and tests."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    return sentences(data, 0, data.size, *splitter(data.size).arguments(), edge_buffer(data.size))  # type: ignore[call-arg]
