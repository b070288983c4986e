"""C4's line and page rules as counts (Raffel et al. 2020, section 2.2, and its published code).

A line is one of `str.splitlines`, stripped; citations like `[3]` or `[edit]` are taken out of it; then the
first rule that fires decides, in the order of datatrove: an overlong word, no terminal
punctuation, too few words, lorem ipsum (stops the page), javascript, a curly bracket (stops the page), a policy
notice. Sentences are counted in the lines that stay, as spaCy's rule-based splitter has them, as in datatrove, or at
white space: a run of `.`, `!` or `?`, closing quotes after it, and then white space or the end; a line is at least one
sentence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I32, I64, U8, U16, U64
from plinth_text.compiled import compiled
from plinth_text.english.columns import NO_WORDS, column_words
from plinth_text.english.words import edge_buffer as word_edges
from plinth_text.english.words import splitter
from plinth_text.unicode.characters import flags
from plinth_text.unicode.codepoints import utf8
from plinth_text.words.split import edge_buffer

#: Columns of `page_counts`: a line is counted under one of them in addition to the first.
(LINES, KEPT, SENTENCES, LONG_WORD, UNENDED, FEW_WORDS, LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, NOTICE) = range(10)

__all__ = [
    "CURLY_BRACKET", "FEW_WORDS", "JAVASCRIPT", "KEPT", "LINES", "LONG_WORD", "LOREM_IPSUM", "NOTICE", "SENTENCES",
    "UNENDED", "KeptLines", "Lines", "kept_lines", "page_counts",
]  # fmt: skip

class Lines(NamedTuple):
    """Which lines stay.

    Args:
        min_words: a line with fewer words goes.
        max_word_characters: a line with a longer word goes.
        ends_required: whether a line must end in terminal punctuation.
        english: whether words and sentences are spaCy's.
    """

    min_words: int
    max_word_characters: int
    ends_required: bool = True
    english: bool = False


class KeptLines(NamedTuple):
    """What stays of the texts of a column: the lines, stripped and without citations, one `\\n` between them.

    Args:
        data, offsets: as `codepoints.utf8` gives texts.
        words: [texts] how many words of spaCy each has; empty where `Lines.english` is not set.
    """

    data: U8
    offsets: I64
    words: I64


def page_counts(texts: pa.Array, lines: Lines) -> I64:
    """Lines of each text by outcome, [documents, 10]: all, kept, sentences of the kept, and the lines that each rule
    caught first."""
    return _counted(*utf8(texts), lines, pages=False)[0]


def kept_lines(texts: pa.Array, lines: Lines) -> KeptLines:
    """What datatrove's C4 filter leaves of each text."""
    return _counted(*utf8(texts), lines, pages=True)[1]


def _counted(data: U8, offsets: I64, lines: Lines, pages: bool) -> tuple[I64, KeptLines]:
    rows, ends = offsets.size - 1, edge_buffer(offsets)
    longest = ends.size if lines.english else 0
    memory = ends, np.zeros(ends.size, dtype=np.uint8), *splitter(longest).arguments(), word_edges(longest)
    size = int(offsets[-1] - offsets[0]) + rows + 1 if pages else 0
    counted = np.zeros(rows if pages and lines.english else 0, dtype=np.int64)
    kept = KeptLines(np.empty(size, dtype=np.uint8), np.zeros(rows + 1, dtype=np.int64), counted)
    words, out = column_words(data, offsets) if lines.english else NO_WORDS, np.zeros((rows, 10), dtype=np.int64)
    count_pages(data, offsets, flags(), *lines, *words, *memory, *kept, out)  # type: ignore[call-arg]
    return out, kept


@compiled
def count_pages(
    data: U8, offsets: I64, table: U8, min_words: int, max_word_characters: int, ends_required: bool, english: bool,
    word_first: I64, word_edges: I32, line_ends: I64, line: U8, flags: U16, tables: U64, pairs: U64, rows: U64,
    whole: U8, most: int, points: I32, places: I32, matched: U64, starts: I64, taken: U8, copy: I32, edges: I32,
    pages: U8, page_offsets: I64, page_words: I64, out: I64,
) -> None:  # fmt: skip
    """Fill in the counts of all texts, and their pages where `pages` has room.

    After `table`: `Lines`; the words of the texts (`ColumnWords`); buffers for line ends and a line; a splitter
    (`Splitter.arguments`) and its edges.
    """
