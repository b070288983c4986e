"""One line under C4's rules: white space and citations around and in it, its words, phrases and sentences.

Most texts hold none of the phrases and most lines no citation: a scan of the whole text rules them out first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64

from plinth.compiled import kernel, njit
from plinth.text.rules.citations import citation_bytes
from plinth.text.unicode.characters import SPACE
from plinth.text.unicode.codepoints import decode
from plinth.text.words.ngrams import I64, U8

#: Columns of `c4_pages.page_counts`: a line is counted under one of them beside the first.
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
#: Whether a line that ends with this byte may end a sentence: behind a bracket a citation may be taken out.
_MAY_END = np.isin(np.arange(256), [ord(one) for one in ".?!\"']"])
#: Whether a text may hold one of the phrases, a `[`, and a `{`.
May = tuple[bool, bool, bool]
_SENTENCE = np.array([_END if byte in b".!?" else _TEXT if byte > 32 else 0 for byte in range(256)], dtype=np.uint8)


@kernel
def may_hold(text: U8) -> tuple[bool, bool, bool]:
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


@kernel
def stripped(data: U8, start: int, end: int, table: U8) -> tuple[int, int]:
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


@kernel
def longest_word(data: U8, start: int, end: int, table: U8) -> int:
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


@kernel
def has_words(data: U8, start: int, end: int, least: int, table: U8) -> bool:
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


@kernel
def without_citations(piece: U8, line: U8) -> int:
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


@kernel
def judged(text: U8, left: int, right: int, table: U8, rules: Any, line: U8, may: May, counts: I64) -> int:
    """Count a line under the first rule that catches it, or as kept; returns the bytes that stay of it, or -1.

    Args:
        rules: `c4_pages.Lines`.
        line: filled with what stays where citations are taken out.
        may: of the text, as `may_hold` gives it.
    """
    phrases, brackets, curly = may
    counts[LINES] += 1
    longest = rules.max_word_characters
    if right - left > longest and longest_word(text, left, right, table) > longest:
        counts[LONG_WORD] += 1
        return -1
    if rules.ends_required and not (right > left and _MAY_END[text[right - 1]]):
        counts[UNENDED] += 1
        return -1
    piece = text[left:right]
    size = without_citations(piece, line) if brackets else right - left
    if size < right - left:
        piece = line[:size]
    if rules.ends_required and not _ended(piece):
        counts[UNENDED] += 1
        return -1
    if not has_words(text, left, right, rules.min_words, table):
        counts[FEW_WORDS] += 1
        return -1
    found = _phrases(piece) if phrases or size < right - left else 0
    for byte in piece[: piece.size if curly else 0]:
        found |= _CURLY if byte == 123 else 0
    kept = not found
    counts[KEPT] += kept
    counts[LOREM_IPSUM] += found & 1
    counts[JAVASCRIPT] += found & 3 == 2
    counts[CURLY_BRACKET] += found & 3 == 0 and found & _CURLY != 0
    counts[NOTICE] += found == 8
    return int(size) if kept else -1


@njit(inline="always")
def _ended(line: Any) -> Any:
    """Whether a line ends with one of `.?!"'` and not with three dots."""
    n = line.size
    if n == 0 or line[n - 1] not in (46, 63, 33, 34, 39):
        return False
    return not (n >= 3 and line[n - 1] == 46 and line[n - 2] == 46 and line[n - 3] == 46)


@kernel
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


@kernel
def sentences_at_white_space(line: U8) -> int:
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
