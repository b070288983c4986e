"""C4's line and page rules as counts (Raffel et al. 2020, section 2.2, and its published code).

A line is one of `str.splitlines`, stripped; citations like `[3]` or `[edit]` are taken out of it; then the
first rule that fires says what becomes of it, in the order of datatrove: an overlong word, no terminal
punctuation, too few words, lorem ipsum (stops the page), javascript, a curly bracket (stops the page), a policy
notice. Sentences are counted in the lines that stay: a run of `.`, `!` or `?`, closing quotes after it, and
then white space or the end; a line is at least one sentence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from plinth.text.characters import BREAK, SPACE, flags
from plinth.text.codepoints import decode, utf8
from plinth.text.ngrams import I64, U8

#: Columns of `page_counts`.
(LINES, KEPT, SENTENCES, LONG_WORD, UNENDED, FEW_WORDS, LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, NOTICE) = range(10)

_PHRASES = (
    b"lorem ipsum", b"javascript", b"{", b"terms of use", b"privacy policy", b"cookie policy", b"uses cookies",
    b"use of cookies", b"use cookies",
)  # fmt: skip
_WHAT = np.array([1, 2, 4, 8, 8, 8, 8, 8, 8], dtype=np.int64)
_ENDS = np.cumsum([0, *map(len, _PHRASES)]).astype(np.int64)
_BYTES = np.frombuffer(b"".join(_PHRASES), dtype=np.uint8)
_CITATIONS = (b"edit]", b"citation needed]")
_CITATION_ENDS = np.cumsum([0, *map(len, _CITATIONS)]).astype(np.int64)
_CITATION_BYTES = np.frombuffer(b"".join(_CITATIONS), dtype=np.uint8)


def page_counts(texts: pa.Array, min_words: int, max_word_characters: int, ends_required: bool = True) -> I64:
    """Lines of each text by what became of them, [documents, 10]: all, kept, sentences of the kept, and the
    lines that each rule caught first.

    Args:
        min_words: fewer words than this and the line does not count.
        max_word_characters: a longer word and the line does not count.
        ends_required: whether a line must end in terminal punctuation.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 10), dtype=np.int64)
    longest = int(np.max(np.diff(offsets))) if len(texts) else 0
    line = np.zeros(longest + 1, dtype=np.uint8)
    _pages(
        data, offsets, flags(), min_words, max_word_characters, ends_required,
        _BYTES, _ENDS, _WHAT, _CITATION_BYTES, _CITATION_ENDS, line, out,
    )  # fmt: skip
    return out


@njit(nogil=True, cache=True)
def _pages(
    data: U8, offsets: I64, table: U8, min_words: int, max_word: int, ends_required: bool,
    phrases: U8, ends: I64, what: I64, citations: U8, citation_ends: I64, line: U8, out: I64,
) -> None:  # fmt: skip
    for doc in range(len(offsets) - 1):
        counts = out[doc]
        at, end = offsets[doc], offsets[doc + 1]
        start, previous = at, np.int64(0)
        while at <= end:
            size, point, flag = 1, np.int64(0), BREAK
            if at < end:
                byte = data[at]
                if byte < 128:
                    point = np.int64(byte)
                else:
                    point, size = decode(data, at, end)
                flag = table[point]
            if not (flag & BREAK):
                previous = point
                at += size
                continue
            if point == 10 and previous == 13 and at < end:
                start = at + size  # the second half of one line end
            elif at < end or at > start:
                counts[LINES] += 1
                left, right, words, longest = _shape(data, start, at, table)
                n = _without_citations(data, left, right, citations, citation_ends, line)
                _judge(line, n, words, longest, min_words, max_word, ends_required, phrases, ends, what, counts)
                start = at + size
            previous = point
            at += size


@njit(nogil=True, cache=True)
def _shape(data: U8, start: int, end: int, table: U8) -> tuple[int, int, int, int]:
    """Ends of a line without white space around it, its words, and the characters of the longest."""
    left, right, words, longest, length = end, start, 0, 0, 0
    at = start
    while at < end:
        byte = data[at]
        if byte < 128:
            point, size = np.int64(byte), 1
        else:
            point, size = decode(data, at, end)
        if table[point] & SPACE:
            length = 0
        else:
            left = min(left, at)
            right = at + size
            words += length == 0
            length += 1
            longest = max(longest, length)
        at += size
    return left, max(left, right), words, longest


@njit(nogil=True, cache=True)
def _without_citations(data: U8, left: int, right: int, citations: U8, citation_ends: I64, line: U8) -> int:
    """Copy a line in ASCII lower case without `[digits]`, `[edit]`, `[citation needed]`; returns its bytes."""
    n, at = 0, left
    while at < right:
        byte = data[at]
        if byte == 91:
            stop = at + 1
            while stop < right and 48 <= data[stop] <= 57:
                stop += 1
            if stop < right and data[stop] == 93:
                at = stop + 1
                continue
            skipped = 0
            for k in range(len(citation_ends) - 1):
                size = citation_ends[k + 1] - citation_ends[k]
                same = at + 1 + size <= right
                i = 0
                while same and i < size:
                    same = data[at + 1 + i] == citations[citation_ends[k] + i]
                    i += 1
                if same:
                    skipped = size + 1
                    break
            if skipped:
                at += skipped
                continue
        line[n] = byte + 32 if 65 <= byte <= 90 else byte
        n += 1
        at += 1
    return n


@njit(nogil=True, cache=True)
def _judge(
    line: U8, n: int, words: int, longest: int, min_words: int, max_word: int, ends_required: bool,
    phrases: U8, ends: I64, what: I64, counts: I64,
) -> None:  # fmt: skip
    """Count a line under the first rule that catches it, or as kept with its sentences."""
    if longest > max_word:
        counts[LONG_WORD] += 1
        return
    if ends_required and not _ended(line, n):
        counts[UNENDED] += 1
        return
    if words < min_words:
        counts[FEW_WORDS] += 1
        return
    found = _phrases(line, n, phrases, ends, what)
    if found & 1:
        counts[LOREM_IPSUM] += 1
    elif found & 2:
        counts[JAVASCRIPT] += 1
    elif found & 4:
        counts[CURLY_BRACKET] += 1
    elif found & 8:
        counts[NOTICE] += 1
    else:
        counts[KEPT] += 1
        counts[SENTENCES] += _sentences(line, n)


@njit(inline="always")
def _ended(line: Any, n: Any) -> Any:
    """Whether a line ends with one of `.?!"'` and not with three dots."""
    if n == 0 or line[n - 1] not in (46, 63, 33, 34, 39):
        return False
    return not (n >= 3 and line[n - 1] == 46 and line[n - 2] == 46 and line[n - 3] == 46)


@njit(nogil=True, cache=True)
def _phrases(line: U8, n: int, phrases: U8, ends: I64, what: I64) -> int:
    """Which of the phrases occur, as bits."""
    found = 0
    for at in range(n):
        byte = line[at]
        if byte not in (108, 106, 123, 116, 112, 99, 117):  # first letters of the phrases
            continue
        for k in range(len(what)):
            size = ends[k + 1] - ends[k]
            same = phrases[ends[k]] == byte and at + size <= n
            i = 1
            while same and i < size:
                same = line[at + i] == phrases[ends[k] + i]
                i += 1
            if same:
                found |= what[k]
    return found


@njit(nogil=True, cache=True)
def _sentences(line: U8, n: int) -> int:
    """Sentences of a line, at least one. A piece without anything but ends and spaces is none."""
    sentences, at = 0, 0
    open_text = False
    while at < n:
        byte = line[at]
        if byte == 46 or byte == 33 or byte == 63:
            stop = at + 1
            while stop < n and (line[stop] == 46 or line[stop] == 33 or line[stop] == 63):
                stop += 1
            while stop < n and (line[stop] == 34 or line[stop] == 39 or line[stop] == 41):
                stop += 1
            if stop == n or line[stop] == 32 or line[stop] == 9:
                sentences += open_text
                open_text = False
            at = stop
            continue
        open_text = open_text or byte > 32
        at += 1
    return max(1, sentences + open_text)
