"""C4's line and page rules (Raffel et al. 2020, section 2.2, and its published code), as counts and as facts of lines.

Lines are those of `str.splitlines`, stripped, and citations such as `[3]` or `[edit]` are removed. The first rule that
matches decides, in the order of datatrove: an overlong word, no terminal punctuation, too few words, lorem ipsum (stops
the page), javascript, a curly bracket (stops the page), a policy notice. Sentences are counted in the kept lines in one
of two ways: by spaCy's rule-based splitter, which datatrove uses, or by punctuation. In the second way, a sentence
ends with a run of `.`, `!` or `?` and closing quotes, before white space or the end of the line. A line has at least
one sentence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from plinth_text import shared
from plinth_text.arrays import I32, I64, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.english import NO_WORDS, column_words, splitter
from plinth_text.english import edge_buffer as word_edges
from plinth_text.unicode import flags, utf8
from plinth_text.words import edge_buffer

#: Columns of `JudgedLines.counts`: a line is counted under one of them in addition to the first.
(LINES, KEPT, SENTENCES, LONG_WORD, UNENDED, FEW_WORDS, LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, NOTICE) = range(10)


class Lines(NamedTuple):
    """Rules by which lines are kept.

    Args:
        min_words: lines with fewer words are removed.
        max_word_characters: lines with a longer word are removed.
        ends_required: True if a line must end in terminal punctuation.
        english: True if words and sentences are spaCy's.
    """

    min_words: int
    max_word_characters: int
    ends_required: bool = True
    english: bool = False


class KeptLines(NamedTuple):
    r"""Kept lines of the texts of a column: stripped, without citations, and separated by one `\n`.

    Args:
        data, offsets: the texts, in the form of `unicode.utf8`.
        words: [texts] number of spaCy words in each text; empty if `Lines.english` is not set.
    """

    data: U8
    offsets: I64
    words: I64


class JudgedLines(NamedTuple):
    """Lines of the texts of a column: counts by outcome, and the lines that are kept.

    Args:
        counts: [documents, 10] all lines, kept lines, sentences in kept lines, and the lines that each rule removed
            first.
        kept: the kept lines.
    """

    counts: I64
    kept: KeptLines


def pages(texts: pa.Array, lines: Lines) -> JudgedLines:
    """Count the lines of each text by outcome, and return the lines that datatrove's C4 filter keeps."""
    found: JudgedLines = shared.of_column(*utf8(texts), lines, lambda data, offsets: _pages(data, offsets, lines))
    return found


def _pages(data: U8, offsets: I64, lines: Lines) -> JudgedLines:
    rows, ends = offsets.size - 1, edge_buffer(offsets)
    longest = ends.size if lines.english else 0
    memory = ends, np.zeros(ends.size, dtype=np.uint8), *splitter(longest).arguments(), word_edges(longest)
    kept = KeptLines(
        np.empty(int(offsets[-1] - offsets[0]) + rows + 1, dtype=np.uint8), np.zeros(rows + 1, dtype=np.int64),
        np.zeros(rows if lines.english else 0, dtype=np.int64),
    )  # fmt: skip
    words, out = column_words(data, offsets) if lines.english else NO_WORDS, np.zeros((rows, 10), dtype=np.int64)
    count_pages(data, offsets, flags(), *lines, *words, *memory, *kept, out)  # type: ignore[call-arg]
    return JudgedLines(out, kept)


@compiled
def count_pages(
    data: U8, offsets: I64, table: U8, min_words: int, max_word_characters: int, ends_required: bool, english: bool,
    word_first: I64, word_edges: I32, line_ends: I64, line: U8, flags: U16, tables: U64, pairs: U64, rows: U64,
    whole: U8, most: int, points: I32, places: I32, matched: U64, starts: I64, taken: U8, copy: I32, edges: I32,
    pages: U8, page_offsets: I64, page_words: I64, out: I64,
) -> None:  # fmt: skip
    """Write the counts of all texts into `out`, and their kept lines into `pages`.

    The arguments after `table` are those of `Lines`, the words of the texts (`ColumnWords`), buffers for line ends and
    a line, and a splitter (`Splitter.arguments`) with its edges.
    """


# Facts of the lines of a text for C4's rules, and their positions, so that lines can be cut.
#
# C4 and its reimplementations test the same facts and differ in the order of the rules, in whether a blank line counts
# and in what ends a line. So the facts are computed here, and the annotator
# `c4_lines` applies the rules. Citations (`[3]`, `[edit]`, `[citation needed]`) are removed before every test but that
# of the length of words. Phrases are found in ASCII lower case.
#
# Letters: D texts, L lines, C citations.

#: Facts of a line, in `CitedLines.facts`. ENDED, APOSTROPHE and DOTS look at the end of the line that was stripped
#: before its citations were taken out, BARE_ENDED and BARE_DOTS, to which `…` counts, also past white space left by
#: them.
(
    HAS_LOREM_IPSUM, HAS_JAVASCRIPT, HAS_CURLY_BRACKET, HAS_NOTICE, HAS_LONG_WORD, EMPTY, BLANK, ENDED, APOSTROPHE,
    DOTS, BARE_ENDED, BARE_DOTS,
) = (1 << bit for bit in range(12))  # fmt: skip


class CitedLines(NamedTuple):
    """Lines of the texts of a column, and the citations in them.

    Args:
        starts: [D + 1] text d has lines `starts[d]:starts[d + 1]`.
        begin, end: [L] code points in the text, half open, including the line end.
        facts: [L] bits for the facts of each line, such as HAS_LONG_WORD.
        words, sentences: [L] counts without citations; a line has at least one sentence.
        cite_line, cite_begin, cite_end: [C] line of each citation, and its code points.
        characters: [D] number of characters in each text.
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
    r"""Return the lines of every text, with facts about each line, and the citations.

    Args:
        all_breaks: True to split as `str.splitlines` does. If False, split at every `\n` as `str.split` does, so that
            the last line may be empty.
        max_word_characters: a line with a longer word has the fact HAS_LONG_WORD.
        citations: True if citations are found and removed.
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
    """Return upper bounds for the number of lines and the number of citations."""


@compiled
def find_lines(
    data: U8, offsets: I64, table: U8, all_breaks: bool, max_word: int, citations: bool, scratch: U8, starts: I64,
    numbers: I32, facts: U16, cite_line: I64, cites: I32, characters: I64,
) -> tuple[int, int]:  # fmt: skip
    """Write the lines and citations of all texts into the arrays, and return the number of lines and of citations."""
