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

from plinth.compiled import njit
from plinth.text.english.sentences import sentences
from plinth.text.english.words import Splitter, scratch
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
    has_words,
    judge,
    longest_word,
    may_hold,
    sentences_at_white_space,
    stripped,
    without_citations,
)
from plinth.text.unicode.characters import flags
from plinth.text.unicode.codepoints import utf8
from plinth.text.words.ngrams import I64, U8
from plinth.text.words.split import breaks, edge_buffer

__all__ = [
    "CURLY_BRACKET", "FEW_WORDS", "JAVASCRIPT", "KEPT", "LINES", "LONG_WORD", "LOREM_IPSUM", "NOTICE", "SENTENCES",
    "UNENDED", "Lines", "kept_lines", "page_counts",
]  # fmt: skip
#: Whether a text may hold one of the phrases, a `[`, and a `{`.
_May = tuple[bool, bool, bool]


class Lines(NamedTuple):
    """Which lines stay.

    Args:
        min_words: a line with fewer words goes.
        max_word_characters: a line with a longer word goes.
        ends_required: whether a line must end in terminal punctuation.
        english: whether sentences are spaCy's.
    """

    min_words: int
    max_word_characters: int
    ends_required: bool = True
    english: bool = False


class _Scratch(NamedTuple):
    """Memory for one text: line ends, a line without citations, the words of a line; and all lines that stay."""

    ends: I64
    line: U8
    by: Splitter
    edges: I64
    page: U8


def page_counts(texts: pa.Array, lines: Lines) -> I64:
    """Lines of each text by outcome, [documents, 10]: all, kept, sentences of the kept, and the lines that each rule
    caught first."""
    return _counted(*utf8(texts), lines, pages=False)[0]


def kept_lines(texts: pa.Array, lines: Lines) -> tuple[U8, I64]:
    """What datatrove's C4 filter leaves of each text, as bytes and offsets: the lines that stay, stripped and without
    citations, one `\\n` between them."""
    return _counted(*utf8(texts), lines, pages=True)[1:]


def _counted(data: U8, offsets: I64, lines: Lines, pages: bool) -> tuple[I64, U8, I64]:
    out, starts = np.zeros((offsets.size - 1, 10), dtype=np.int64), np.zeros(offsets.size, dtype=np.int64)
    ends = edge_buffer(offsets)
    size = int(offsets[-1] - offsets[0]) + offsets.size if pages else 0
    memory = _Scratch(
        ends, np.zeros(ends.size, dtype=np.uint8), *scratch(offsets, lines.english), np.empty(size, dtype=np.uint8)
    )
    _pages(data, offsets, flags(), lines, memory, pages, starts, out)
    return out, memory.page, starts


@njit(nogil=True, cache=True)
def _pages(
    data: U8, offsets: I64, table: U8, rules: Lines, memory: _Scratch, pages: bool, starts: I64, out: I64
) -> None:
    for doc in range(offsets.size - 1):
        counts, begin, end = out[doc], offsets[doc], offsets[doc + 1]
        ends, filled = memory.ends, starts[doc]
        found = breaks(data, begin, end, table, ends)
        may = may_hold(data[begin:end])
        ends[found] = end
        for i in range(found + 1):
            stop = ends[i]
            if i == found and begin == end:
                break
            if i and begin == stop < end and data[stop] == 10 and data[stop - 1] == 13:
                begin = stop + 1  # the second half of one line end
                continue
            left, right = stripped(data, begin, stop, table)
            kept = _line(data, left, right, table, rules, memory, may, counts)
            if pages and kept >= 0:
                piece = data[left:right] if kept == right - left else memory.line[:kept]
                memory.page[filled : filled + kept] = piece
                memory.page[filled + kept] = 10
                filled += kept + 1
            if i < found:
                begin = stop + (1 if data[stop] < 128 else (2 if data[stop] < 0xE0 else 3))
        starts[doc + 1] = _closed(memory.page, starts[doc], filled, table) if pages else 0


@njit(nogil=True, cache=True)
def _closed(page: U8, start: int, end: int, table: U8) -> int:
    """Strip the page of a text in place; returns where it ends."""
    left, right = stripped(page, start, end, table)
    for k in range(right - left if left > start else 0):
        page[start + k] = page[left + k]
    return start + right - left


@njit(nogil=True, cache=True)
def _line(
    data: U8,
    left: int,
    right: int,
    table: U8,
    rules: Lines,
    memory: _Scratch,
    may: _May,
    counts: I64,
) -> int:
    """Count a line; returns the bytes that stay of it, which are in `memory.line` where some are missing, or -1."""
    phrases, brackets, curly = may
    counts[LINES] += 1
    longest = rules.max_word_characters
    if right - left > longest and longest_word(data, left, right, table) > longest:
        counts[LONG_WORD] += 1
        return -1
    piece = data[left:right]
    size = without_citations(piece, memory.line) if brackets else right - left
    if size < right - left:
        piece = memory.line[:size]
    few = not has_words(data, left, right, rules.min_words, table)
    if not judge(piece, few, phrases or size < right - left, curly, rules.ends_required, counts):
        return -1
    if rules.english:
        counts[SENTENCES] += sentences(piece, 0, size, memory.by, memory.edges)
    else:
        counts[SENTENCES] += sentences_at_white_space(piece)
    return int(size)
