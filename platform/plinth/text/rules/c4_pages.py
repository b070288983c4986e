"""C4's line and page rules as counts (Raffel et al. 2020, section 2.2, and its published code).

A line is one of `str.splitlines`, stripped; citations like `[3]` or `[edit]` are taken out of it; then the
first rule that fires decides, in the order of datatrove: an overlong word, no terminal
punctuation, too few words, lorem ipsum (stops the page), javascript, a curly bracket (stops the page), a policy
notice. Sentences are counted in the lines that stay: a run of `.`, `!` or `?`, closing quotes after it, and
then white space or the end; a line is at least one sentence.

Most texts hold none of the phrases and most lines no citation: a scan of the whole text rules them out first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import uint64

from plinth.compiled import njit
from plinth.text.rules.citations import citation_bytes
from plinth.text.unicode.characters import SPACE, flags
from plinth.text.unicode.codepoints import decode, utf8
from plinth.text.words.ngrams import I64, U8
from plinth.text.words.split import breaks, edge_buffer

#: Columns of `page_counts`.
(LINES, KEPT, SENTENCES, LONG_WORD, UNENDED, FEW_WORDS, LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, NOTICE) = range(10)

_PHRASES = (
    b"lorem ipsum", b"javascript", b"terms of use", b"privacy policy", b"cookie policy", b"uses cookies",
    b"use of cookies", b"use cookies",
)  # fmt: skip
_WHAT = np.array([1, 2, 8, 8, 8, 8, 8, 8], dtype=np.int64)
_CURLY = 1 << 2
_ENDS = np.cumsum([0, *map(len, _PHRASES)]).astype(np.int64)
_BYTES = np.frombuffer(b"".join(_PHRASES), dtype=np.uint8)
_FIRST = np.isin(np.arange(256), [ord(c) for phrase in _PHRASES for c in (chr(phrase[0]), chr(phrase[0]).upper())])
#: Each phrase holds one of these.
_RARE = np.frombuffer(b"ipsuvascms ocy pcook", dtype=np.uint8).reshape(5, 4)
_END, _TEXT = 1, 2
_SENTENCE = np.array([_END if byte in b".!?" else _TEXT if byte > 32 else 0 for byte in range(256)], dtype=np.uint8)


def page_counts(texts: pa.Array, min_words: int, max_word_characters: int, ends_required: bool = True) -> I64:
    """Lines of each text by outcome, [documents, 10]: all, kept, sentences of the kept, and the lines that each rule
    caught first.

    Args:
        min_words: fewer words than this and the line does not count.
        max_word_characters: a longer word and the line does not count.
        ends_required: whether a line must end in terminal punctuation.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 10), dtype=np.int64)
    ends = edge_buffer(offsets)
    line = np.zeros(ends.size, dtype=np.uint8)
    _pages(data, offsets, flags(), min_words, max_word_characters, ends_required, ends, line, out)
    return out


@njit(nogil=True, cache=True)
def _pages(
    data: U8, offsets: I64, table: U8, min_words: int, max_word: int, ends_required: bool, ends: I64, line: U8, out: I64
) -> None:
    for doc in range(offsets.size - 1):
        counts, begin, end = out[doc], offsets[doc], offsets[doc + 1]
        found = breaks(data, begin, end, table, ends)
        phrases, brackets, curly = _may_hold(data[begin:end])
        ends[found] = end
        for i in range(found + 1):
            stop = ends[i]
            if i == found and begin == end:
                break
            if i and begin == stop < end and data[stop] == 10 and data[stop - 1] == 13:
                begin = stop + 1  # the second half of one line end
                continue
            counts[LINES] += 1
            left, right = _stripped(data, begin, stop, table)
            if right - left > max_word and _longest_word(data, left, right, table) > max_word:
                counts[LONG_WORD] += 1
            else:
                piece = data[left:right]
                size = _without_citations(piece, line) if brackets else right - left
                if size < right - left:
                    piece = line[:size]
                few = not _has_words(data, left, right, min_words, table)
                _judge(piece, few, phrases or size < right - left, curly, ends_required, counts)
            if i < found:
                begin = stop + (1 if data[stop] < 128 else (2 if data[stop] < 0xE0 else 3))


@njit(nogil=True, cache=True)
def _may_hold(text: U8) -> tuple[bool, bool, bool]:
    """Whether a rare part of a phrase occurs, in upper or lower case, a `[`, and a `{`: the loops vectorise."""
    found, square, curly = False, False, False
    first, second, third, fourth = text[:-3], text[1:-2], text[2:-1], text[3:]
    for k in range(_RARE.shape[0]):
        a, b, c, d = _RARE[k]
        for at in range(fourth.size):
            here = ((first[at] | 32) == a) & ((second[at] | 32) == b)
            found |= here & ((third[at] | 32) == c) & ((fourth[at] | 32) == d)
    for byte in text:
        square |= byte == 91
        curly |= byte == 123
    return found, square, curly


@njit(nogil=True, cache=True)
def _stripped(data: U8, start: int, end: int, table: U8) -> tuple[int, int]:
    """Ends of a line without the white space around it."""
    left, right = start, end
    while left < end:
        point, size = np.int64(data[left]), 1
        if point >= 128:
            point, size = decode(data, left, end)
        if not table[point] & SPACE:
            break
        left += size
    while right > left:
        at = right - 1
        point = np.int64(data[at])
        if point >= 128:
            while at > left and data[at] & 0xC0 == 0x80:
                at -= 1
            point, _ = decode(data, at, right)
        if not table[point] & SPACE:
            break
        right = at
    return left, right


@njit(nogil=True, cache=True)
def _longest_word(data: U8, start: int, end: int, table: U8) -> int:
    """Characters of the longest word."""
    longest, length, at = 0, 0, start
    while at < end:
        point, size = np.int64(data[at]), 1
        if point >= 128:
            point, size = decode(data, at, end)
        length = 0 if table[point] & SPACE else length + 1
        longest = max(longest, length)
        at += size
    return longest


@njit(nogil=True, cache=True)
def _has_words(data: U8, start: int, end: int, least: int, table: U8) -> bool:
    """Whether a line has at least so many words."""
    words, inside, at = 0, 0, start
    while at < end and words < least:
        point, size = np.int64(data[at]), 1
        if point >= 128:
            point, size = decode(data, at, end)
        word = 1 - (table[point] & SPACE)
        words += word & (inside ^ 1)
        inside = word
        at += size
    return words >= least


@njit(nogil=True, cache=True)
def _without_citations(piece: U8, line: U8) -> int:
    """Copy a line without `[digits]`, `[edit]`, `[citation needed]`; returns its bytes.

    A line without brackets is not copied.
    """
    brackets = False
    for byte in piece:
        brackets |= byte == 91
    if not brackets:
        return piece.size
    n, at = 0, 0
    while at < piece.size:
        skipped = citation_bytes(piece, at, piece.size) if piece[at] == 91 else 0
        if skipped:
            at += skipped
        else:
            line[n] = piece[at]
            n += 1
            at += 1
    return n


@njit(nogil=True, cache=True)
def _judge(piece: U8, few: bool, phrases: bool, curly: bool, ends_required: bool, counts: I64) -> None:
    """Count a line under the first rule that catches it, or as kept with its sentences.

    Args:
        few: too few words.
        phrases, curly: whether it may hold a phrase, or a curly bracket.
    """
    if ends_required and not _ended(piece):
        counts[UNENDED] += 1
        return
    if few:
        counts[FEW_WORDS] += 1
        return
    found = _phrases(piece) if phrases else 0
    if curly:
        for byte in piece:
            found |= _CURLY if byte == 123 else 0
    if found & 1:
        counts[LOREM_IPSUM] += 1
    elif found & 2:
        counts[JAVASCRIPT] += 1
    elif found & _CURLY:
        counts[CURLY_BRACKET] += 1
    elif found & 8:
        counts[NOTICE] += 1
    else:
        counts[KEPT] += 1
        counts[SENTENCES] += _sentences(piece)


@njit(inline="always")
def _ended(line: Any) -> Any:
    """Whether a line ends with one of `.?!"'` and not with three dots."""
    n = line.size
    if n == 0 or line[n - 1] not in (46, 63, 33, 34, 39):
        return False
    return not (n >= 3 and line[n - 1] == 46 and line[n - 2] == 46 and line[n - 3] == 46)


@njit(nogil=True, cache=True)
def _phrases(line: U8) -> int:
    """Which of the phrases occur in upper or lower case, as bits."""
    found = 0
    for at in range(line.size):
        if not _FIRST[line[at]]:
            continue
        for k in range(_WHAT.size):
            size = _ENDS[k + 1] - _ENDS[k]
            same, i = at + size <= line.size, 0
            while same and i < size:
                byte = line[at + i]
                same = (byte + 32 if 65 <= byte <= 90 else byte) == _BYTES[_ENDS[k] + i]
                i += 1
            if same:
                found |= _WHAT[k]
    return found


@njit(nogil=True, cache=True)
def _sentences(line: U8) -> int:
    """Sentences of a line, at least one. A piece without anything but ends and spaces is none."""
    ends = False
    for byte in line:
        ends |= (byte == 46) | (byte == 33) | (byte == 63)
    if not ends:
        return 1
    sentences, at, n, one = np.int64(0), uint64(0), uint64(line.size), uint64(1)
    text = np.uint8(0)  # above 1: something but ends and spaces since the last sentence
    while at < n:
        what = _SENTENCE[line[at]]
        text |= what
        at += one
        if what == _END:
            while at < n and _SENTENCE[line[at]] == _END:
                at += one
            while at < n and (line[at] == 34 or line[at] == 39 or line[at] == 41):
                at += one
            if at == n or line[at] == 32 or line[at] == 9:
                sentences += text > 1
                text = np.uint8(0)
    return int(sentences + (text > 1 or sentences == 0))
