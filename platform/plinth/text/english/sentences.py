"""How many sentences a text has for spaCy's rule-based splitter (`spacy/pipeline/sentencizer.pyx`).

A sentence starts with the first word behind an end of a sentence that is neither an end nor punctuation. White space
counts as a word unless it is one space between words.
"""

from __future__ import annotations

import numpy as np

from plinth.compiled import kernel
from plinth.text.english.merges import apart
from plinth.text.english.tables import END, I32, MARK, U8, U16
from plinth.text.english.words import Splitter, edge_buffer, split, splitter
from plinth.text.unicode.codepoints import decode


@kernel
def sentences(data: U8, start: int, end: int, by: Splitter, edges: I32) -> int:
    """Sentences of `data[start:end]`, at least one."""
    if not ends_inside(data, start, end, by.rules.flags):
        return 1
    return sentences_of_words(data, end, edges, split(data, start, end, by, edges), by.rules.flags)


@kernel
def sentences_of_words(data: U8, end: int, edges: I32, count: int, flags: U16) -> int:
    """Sentences of a text that ends at a byte and has these words, at least one."""
    found, ended = 1, False
    for i in range(count):
        begin, stop = edges[2 * i], edges[2 * i + 1]
        ends, marks = _kind(data, begin, stop, flags)
        if ended and (apart(data, edges[2 * i - 1], begin) or not (marks or ends)):
            found += 1
            ended = False
        ended |= ends
    return found + (ended and apart(data, edges[2 * count - 1], end))


@kernel
def ends_inside(data: U8, start: int, end: int, flags: U16) -> bool:
    """Whether something that is not an ASCII mark follows a character that may end a sentence."""
    ended, at = False, start
    while at < end:
        point, size = np.int64(data[at]), 1
        if point >= 128:
            point, size = decode(data, at, end)
        what = flags[point]
        if what & END:
            ended = True
        elif ended and (point >= 128 or not what & MARK):
            return True
        at += size
    return False


@kernel
def _kind(data: U8, start: int, end: int, flags: U16) -> tuple[bool, bool]:
    """Whether a word is one character that ends a sentence, and whether it is punctuation alone."""
    at, ends, marks = start, False, True
    while at < end and marks:
        point, size = np.int64(data[at]), 1
        if point >= 128:
            point, size = decode(data, at, end)
        ends = at == start and at + size == end and (flags[point] & END) != 0
        marks = (flags[point] & MARK) != 0
        at += size
    return ends, marks


def sentence_count(text: str) -> int:
    """Sentences of one text, for people and tests."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    return int(sentences(data, 0, data.size, splitter(data.size), edge_buffer(data.size)))
