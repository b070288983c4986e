"""Facts of the lines of a text for C4's rules, and their positions, so that lines can be cut.

C4 (Raffel et al. 2020, section 2.2) and its reimplementations test the same facts and differ in the order of the rules,
in whether a blank line counts and in what ends a line. So the facts are computed here, and the annotator `c4_lines`
applies the rules. Citations (`[3]`, `[edit]`, `[citation needed]`) are removed before every test but that of the length
of words. Phrases are found in ASCII lower case.

Letters: D texts, L lines, C citations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.rules.citations import citation_bytes
from plinth.text.unicode.characters import BREAK, SPACE, flags
from plinth.text.unicode.codepoints import decode, utf8
from plinth.text.words.ngrams import I64, U8

I32 = npt.NDArray[np.int32]
U16 = npt.NDArray[np.uint16]

#: Facts of a line, in `Lines.facts`. ENDED, APOSTROPHE and DOTS look at the end of the line that was stripped before
#: its citations were taken out, BARE_ENDED and BARE_DOTS, to which `…` counts, also past white space left by them.
(
    LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, NOTICE, LONG_WORD, EMPTY, BLANK, ENDED, APOSTROPHE, DOTS, BARE_ENDED,
    BARE_DOTS,
) = (1 << bit for bit in range(12))  # fmt: skip

_PHRASES = (
    b"lorem ipsum", b"javascript", b"{", b"terms of use", b"privacy policy", b"cookie policy", b"uses cookies",
    b"use of cookies", b"use cookies",
)  # fmt: skip
_WHAT = np.array([LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, *[NOTICE] * 6], dtype=np.uint16)
_ENDS = np.cumsum([0, *map(len, _PHRASES)]).astype(np.int64)
_BYTES = np.frombuffer(b"".join(_PHRASES), dtype=np.uint8)
_FIRST = np.zeros(256, dtype=np.bool_)
_FIRST[[phrase[0] for phrase in _PHRASES]] = True
#: Bytes that can be the last of a line break.
_BREAK_BYTES = np.zeros(256, dtype=np.bool_)
_BREAK_BYTES[[0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x85, 0xA8, 0xA9]] = True


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
    most_lines, most_citations = _most(data, offsets, _BREAK_BYTES)
    starts, characters = np.zeros(offsets.size, dtype=np.int64), np.zeros(offsets.size - 1, dtype=np.int64)
    numbers = np.zeros((4, most_lines), dtype=np.int32)
    facts = np.zeros(most_lines, dtype=np.uint16)
    cite_line, cites = np.zeros(most_citations, dtype=np.int64), np.zeros((2, most_citations), dtype=np.int32)
    scratch = np.zeros(longest + 1, dtype=np.uint8)
    n, found = _lines(
        data, offsets, flags(), all_breaks, max_word_characters, citations, scratch, starts, numbers, facts,
        cite_line, cites, characters,
    )  # fmt: skip
    begin, end, words, sentences = numbers[:, :n]
    cite_begin, cite_end = cites[:, :found]
    return CitedLines(
        starts, begin, end, facts[:n], words, sentences, cite_line[:found], cite_begin, cite_end, characters
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _most(data: U8, offsets: I64, breaks: Any) -> tuple[int, int]:
    """Upper bounds of the lines and citations."""
    lines, citations = offsets.size, 0
    for at in range(offsets[0], offsets[-1]):
        lines += breaks[data[at]]
        citations += data[at] == 91
    return lines, citations


@njit(nogil=True, cache=True)
def _lines(
    data: U8, offsets: I64, table: U8, all_breaks: bool, max_word: int, citations: bool, scratch: U8, starts: I64,
    numbers: I32, facts: U16, cite_line: I64, cites: I32, characters: I64,
) -> tuple[int, int]:  # fmt: skip
    line, cited = 0, 0
    for doc in range(offsets.size - 1):
        at, end, cp = offsets[doc], offsets[doc + 1], 0
        more = at < end or not all_breaks
        while more:
            start, begin = at, cp
            left, right, bare, longest, length, brackets = -1, start, cp, 0, 0, False
            broke, point, size = False, np.int64(0), 0
            while at < end:
                point, size = np.int64(data[at]), 1
                if point >= 128:
                    point, size = decode(data, at, end)
                flag = table[point]
                if point == 10 or (all_breaks and flag & BREAK):
                    broke = True
                    break
                if flag & SPACE:
                    length = 0
                else:
                    if left < 0:
                        left, bare = at, cp
                    right = at + size
                    length += 1
                    longest = max(longest, length)
                    brackets |= point == 91
                at += size
                cp += 1
            facts[line] = (EMPTY if at == start else 0) | (BLANK if left < 0 else 0)
            facts[line] |= LONG_WORD if longest > max_word else 0
            left = left if left >= 0 else right
            n = right - left
            if brackets and citations:
                n, cited = _without_citations(data, left, right, bare, line, scratch, cite_line, cites, cited)
            else:
                for k in range(n):
                    scratch[k] = data[left + k]
            if broke:
                pair = all_breaks and point == 13 and at + 1 < end and data[at + 1] == 10
                at += size + pair
                cp += 1 + pair
            numbers[0, line], numbers[1, line] = begin, cp
            _add_facts(scratch, n, table, line, numbers, facts)
            line += 1
            more = broke and (at < end or not all_breaks)
        starts[doc + 1] = line
        characters[doc] = cp
    return line, cited


@njit(nogil=True, cache=True)
def _without_citations(
    data: U8, left: int, right: int, cp: int, line: int, scratch: U8, cite_line: I64, cites: I32, cited: int
) -> tuple[int, int]:
    """Copy a line without `[digits]`, `[edit]`, `[citation needed]`; its bytes, and citations so far."""
    n, at = 0, left
    while at < right:
        size = citation_bytes(data, at, right) if data[at] == 91 else 0
        if size:
            cite_line[cited], cites[0, cited], cites[1, cited] = line, cp, cp + size
            cited += 1
            at += size
            cp += size
            continue
        scratch[n] = data[at]
        cp += (data[at] & 0xC0) != 0x80
        n += 1
        at += 1
    return n, cited


@njit(nogil=True, cache=True)
def _add_facts(text: U8, n: int, table: U8, line: int, numbers: I32, facts: U16) -> None:
    """Words, sentences and facts of a line without citations."""
    words, sentences, in_word, open_text, skip, bare = 0, 0, False, False, 0, 0
    at = 0
    while at < n:
        byte = text[at]
        point, size = np.int64(byte), 1
        if byte >= 128:
            point, size = decode(text, at, n)
        space = (table[point] & SPACE) != 0
        words += (not space) and (not in_word)
        in_word = not space
        bare = bare if space else at + size
        lower = byte + 32 if 65 <= byte <= 90 else byte
        if _FIRST[lower]:
            facts[line] |= _phrase(text, at, n, lower)
        if at >= skip:
            if byte == 46 or byte == 33 or byte == 63:
                skip = at + 1
                while skip < n and (text[skip] == 46 or text[skip] == 33 or text[skip] == 63):
                    skip += 1
                while skip < n and (text[skip] == 34 or text[skip] == 39 or text[skip] == 41):
                    skip += 1
                if skip == n or text[skip] == 32 or text[skip] == 9:
                    sentences += open_text
                    open_text = False
            else:
                open_text = open_text or byte > 32
        at += size
    numbers[2, line], numbers[3, line] = words, max(1, sentences + open_text)
    last = text[n - 1] if n else 0
    facts[line] |= ENDED if last in (33, 34, 46, 63) else 0
    facts[line] |= APOSTROPHE if last == 39 else 0
    facts[line] |= DOTS if _dots(text, n) else 0
    last = text[bare - 1] if bare else 0
    ellipsis = bare >= 3 and text[bare - 3] == 0xE2 and text[bare - 2] == 0x80 and text[bare - 1] == 0xA6
    facts[line] |= BARE_ENDED if last in (33, 34, 46, 63) or ellipsis else 0
    facts[line] |= BARE_DOTS if _dots(text, bare) or ellipsis else 0


@njit(inline="always")
def _dots(text: Any, n: Any) -> Any:
    return n >= 3 and text[n - 1] == 46 and text[n - 2] == 46 and text[n - 3] == 46


@njit(nogil=True, cache=True)
def _phrase(text: U8, at: int, n: int, lower: int) -> int:
    """Which phrases start here, in any case of ASCII, as bits."""
    found = 0
    for k in range(_WHAT.size):
        size = _ENDS[k + 1] - _ENDS[k]
        same = _BYTES[_ENDS[k]] == lower and at + size <= n
        i = 1
        while same and i < size:
            byte = text[at + i]
            same = _BYTES[_ENDS[k] + i] == (byte + 32 if 65 <= byte <= 90 else byte)
            i += 1
        if same:
            found |= _WHAT[k]
    return found
