"""Facts of the lines of a text for C4's rules, and their positions, so that lines can be cut.

C4 (Raffel et al. 2020, section 2.2) and its reimplementations test the same facts and differ in the order of the rules,
in whether a blank line counts and in what ends a line. So the facts are computed here, and the annotator `c4_lines`
applies the rules. Citations (`[3]`, `[edit]`, `[citation needed]`) are removed before every test but that of the length
of words. Phrases are found in ASCII lower case.

Letters: D texts, L lines, C citations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I32, I64, U8, U16
from plinth_text.compiled import compiled
from plinth_text.unicode.characters import flags
from plinth_text.unicode.codepoints import utf8

#: Facts of a line, in `Lines.facts`. ENDED, APOSTROPHE and DOTS look at the end of the line that was stripped before
#: its citations were taken out, BARE_ENDED and BARE_DOTS, to which `…` counts, also past white space left by them.
(
    LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, NOTICE, LONG_WORD, EMPTY, BLANK, ENDED, APOSTROPHE, DOTS, BARE_ENDED,
    BARE_DOTS,
) = (1 << bit for bit in range(12))  # fmt: skip


class CitedLines(NamedTuple):
    """The lines of a column, and the citations in them.

    Args:
        starts: [D + 1] text d has lines `starts[d]:starts[d + 1]`.
        begin, end: [L] code points in the text, half open, the line end inside.
        facts: [L] bits.
        words, sentences: [L] without citations; a line is at least one sentence.
        cite_line, cite_begin, cite_end: [C] the line of a citation, and its code points.
        characters: [D] of the text.
    """

    starts: I64
    begin: I32
    end: I32
    facts: U16
    words: I32
    sentences: I32
    cite_line: I64
    cite_begin: I32
    cite_end: I32
    characters: I64


def lines(texts: pa.Array, all_breaks: bool, max_word_characters: int, citations: bool = True) -> CitedLines:
    """Find the lines of every text, and their facts.

    Args:
        all_breaks: split as `str.splitlines` does; else at every `\\n`, and the last line is always one, as in
            `str.split`.
        max_word_characters: a longer word is LONG_WORD.
        citations: whether to find them and take them out.
    """
    data, offsets = utf8(texts)
    longest = int(np.diff(offsets).max(initial=0))
    most_lines, most_citations = upper_bounds(data, offsets)
    starts, characters = np.zeros(offsets.size, dtype=np.int64), np.zeros(offsets.size - 1, dtype=np.int64)
    numbers = np.zeros((4, most_lines), dtype=np.int32)
    facts = np.zeros(most_lines, dtype=np.uint16)
    cite_line, cites = np.zeros(most_citations, dtype=np.int64), np.zeros((2, most_citations), dtype=np.int32)
    scratch = np.zeros(longest + 1, dtype=np.uint8)
    n, found = find_lines(
        data, offsets, flags(), all_breaks, max_word_characters, citations, scratch, starts, numbers, facts,
        cite_line, cites, characters,
    )  # fmt: skip
    begin, end, words, sentences = numbers[:, :n]
    cite_begin, cite_end = cites[:, :found]
    return CitedLines(
        starts, begin, end, facts[:n], words, sentences, cite_line[:found], cite_begin, cite_end, characters
    )  # fmt: skip


@compiled
def upper_bounds(data: U8, offsets: I64) -> tuple[int, int]:
    """Return upper bounds of the numbers of lines and citations."""


@compiled
def find_lines(
    data: U8, offsets: I64, table: U8, all_breaks: bool, max_word: int, citations: bool, scratch: U8, starts: I64,
    numbers: I32, facts: U16, cite_line: I64, cites: I32, characters: I64,
) -> tuple[int, int]:  # fmt: skip
    """Fill in the lines of all texts as `lines` returns them; returns the numbers of lines and citations."""
