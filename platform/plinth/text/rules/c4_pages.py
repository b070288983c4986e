"""C4's line and page rules as counts (Raffel et al. 2020, section 2.2, and its published code).

A line is one of `str.splitlines`, stripped; citations like `[3]` or `[edit]` are taken out of it; then the
first rule that fires decides, in the order of datatrove: an overlong word, no terminal
punctuation, too few words, lorem ipsum (stops the page), javascript, a curly bracket (stops the page), a policy
notice. Sentences are counted in the lines that stay, as spaCy's rule-based splitter has them, as in datatrove, or at
white space: a run of `.`, `!` or `?`, closing quotes after it, and then white space or the end; a line is at least one
sentence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from plinth.compiled import kernel, njit
from plinth.text.english.columns import I32, NO_WORDS, ColumnWords, column_words
from plinth.text.english.sentences import ends_inside, sentences, sentences_of_words
from plinth.text.english.words import Splitter, split, splitter
from plinth.text.english.words import edge_buffer as word_edges
from plinth.text.rules.c4_line import (
    CURLY_BRACKET,
    FEW_WORDS,
    JAVASCRIPT,
    KEPT,
    LINES,
    LONG_WORD,
    LOREM_IPSUM,
    NOTICE,
    SENTENCES,
    UNENDED,
    judged,
    may_hold,
    sentences_at_white_space,
    stripped,
)
from plinth.text.unicode.characters import flags
from plinth.text.unicode.codepoints import utf8
from plinth.text.words.ngrams import I64, U8
from plinth.text.words.split import breaks, edge_buffer

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


class _Scratch(NamedTuple):
    """Memory for one text: line ends; a line without citations, and its words."""

    ends: I64
    line: U8
    by: Splitter
    edges: I32


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
    memory = _Scratch(ends, np.zeros(ends.size, dtype=np.uint8), splitter(longest), word_edges(longest))
    size = int(offsets[-1] - offsets[0]) + rows + 1 if pages else 0
    counted = np.zeros(rows if pages and lines.english else 0, dtype=np.int64)
    kept = KeptLines(np.empty(size, dtype=np.uint8), np.zeros(rows + 1, dtype=np.int64), counted)
    words, out = column_words(data, offsets) if lines.english else NO_WORDS, np.zeros((rows, 10), dtype=np.int64)
    _pages(data, offsets, flags(), lines, words, memory, kept, out)
    return out, kept


@kernel
def _pages(
    data: U8, offsets: I64, table: U8, rules: Lines, words: ColumnWords, memory: _Scratch, pages: KeptLines, out: I64
) -> None:
    for doc in range(offsets.size - 1):
        text, end, ends = data[offsets[doc] :], offsets[doc + 1] - offsets[doc], memory.ends
        found, may, begin, filled = breaks(text, 0, end, table, ends), may_hold(text[:end]), 0, pages.offsets[doc]
        edges = words.edges[2 * words.first[doc] :] if rules.english else words.edges
        n, after = words.first[doc + 1] - words.first[doc] if rules.english else 0, 0
        ends[found] = end
        for i in range(found + 1):
            stop = ends[i]
            if i == found and begin == end:
                break
            if i and begin == stop < end and text[stop] == 10 and text[stop - 1] == 13:
                begin = stop + 1  # the second half of one line end
                continue
            left, right = stripped(text, begin, stop, table)
            size = judged(text, left, right, table, rules, memory.line, may, out[doc])
            if size >= 0:
                piece = text[left:right]
                if size < right - left:
                    piece = memory.line[:size]
                word, after = _words_of_line(left, right, edges, after, n)
                if not pages.data.size:
                    line = edges[2 * word : 2 * after]
                    out[doc, SENTENCES] += _sentences(text, left, right, line, piece, rules.english, memory)
                elif rules.english:
                    whole = size == right - left
                    pages.words[doc] += after - word if whole else split(piece, 0, size, memory.by, memory.edges)
                filled = _put(piece, pages.data, filled)
            if i < found:
                begin = stop + (1 if text[stop] < 128 else (2 if text[stop] < 0xE0 else 3))
        pages.offsets[doc + 1] = _closed(pages.data, pages.offsets[doc], filled, table) if pages.data.size else 0


@njit(inline="always")
def _words_of_line(left: Any, right: Any, edges: Any, word: Any, n: Any) -> Any:
    """The first word of a line, not before `word`, and the one behind its last."""
    while word < n and edges[2 * word] < left:
        word += 1
    after = word
    while after < n and edges[2 * after] < right:
        after += 1
    return word, after


@kernel
def _sentences(text: U8, left: int, right: int, words: I32, piece: U8, english: bool, memory: _Scratch) -> int:
    """Sentences of a line that has these words of the text, or of what its citations leave, at least one."""
    if not english:
        return int(sentences_at_white_space(piece))
    if piece.size < right - left:
        return int(sentences(piece, 0, piece.size, memory.by, memory.edges))
    inside = ends_inside(text, left, right, memory.by.rules.flags)
    return int(sentences_of_words(text, right, words, words.size // 2, memory.by.rules.flags)) if inside else 1


@njit(inline="always")
def _put(piece: Any, page: Any, filled: Any) -> Any:
    """Append a line and a line end, where lines are wanted; returns how much is filled."""
    if not page.size:
        return filled
    for k in range(piece.size):
        page[filled + k] = piece[k]
    page[filled + piece.size] = 10
    return filled + piece.size + 1


@kernel
def _closed(page: U8, start: int, end: int, table: U8) -> int:
    """Strip the page of a text in place; returns where it ends."""
    left, right = stripped(page, start, end, table)
    for k in range(right - left if left > start else 0):
        page[start + k] = page[left + k]
    return start + right - left
