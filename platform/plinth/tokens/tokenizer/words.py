"""Cut UTF-8 text into the words of our pipelines, as their regular expressions do, at the speed of a scan.

Letters, marks, digits and white space are classified by the library itself, once per process: its regular expressions
and its digit splitter have Unicode tables of their own, and the words must agree exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, pre_tokenizers

from plinth.compiled import njit
from plinth.text.unicode.codepoints import decode
from plinth.tokens.tokenizer import pipelines
from plinth.tokens.tokenizer.parameters import TokenizerParameters

U8 = npt.NDArray[np.uint8]

#: Bits of a character's class. NUMERIC: the digit splitter isolates it; NUMBER: the `\\p{N}` of the patterns.
LETTER, MARK, NUMBER, SPACE, NUMERIC = 1, 2, 4, 8, 16

#: A longer word is cut: an encoding takes a hundred times the memory of its text.
MAX_WORD_BYTES = 2**16

_APOSTROPHE, _BLANK, _LINE_FEED, _RETURN = 0x27, 0x20, 0x0A, 0x0D


class WordPattern(NamedTuple):
    """How a pipeline cuts words.

    Attributes:
        letters: classes that make a word together.
        alone: class whose characters are split off first and end the words on either side; 0 for none.
        group: digits of one word; 0 for any number, with the space before them.
        lines: line ends close a word of white space.
    """

    letters: int
    alone: int
    group: int
    lines: bool


def pattern_of(pre_tokenizer: Any) -> WordPattern | None:
    """The pattern of one of our pipelines, or None for any other pre-tokenizer."""
    return _patterns().get(bytes(pre_tokenizer.__getstate__())) if pre_tokenizer is not None else None


@cache
def _patterns() -> dict[bytes, WordPattern]:
    groups = {"single": 1, "triples": 3, "runs": 0}
    found = {}
    for digits, group in groups.items():
        for kind in ("bpe-bytes", "bpe-fallback", "unigram"):
            params = TokenizerParameters(kind=kind, digits=digits)
            state = bytes(pipelines.pipeline(params).pre_tokenizer.__getstate__())
            if kind == "bpe-bytes":
                found[state] = WordPattern(LETTER, {1: NUMERIC, 3: NUMBER, 0: 0}[group], group, False)
            else:
                found[state] = WordPattern(LETTER | MARK, 0, group, True)
    return found


@cache
def classes() -> U8:
    """The class of every code point, [0x110000]."""
    table = np.zeros(0x110000, dtype=np.uint8)
    for bit, name in ((LETTER, r"\p{L}"), (MARK, r"\p{M}"), (NUMBER, r"\p{N}"), (SPACE, r"\s")):
        _mark(table, bit, pre_tokenizers.Split(Regex(f"{name}+"), "isolated"))
    _mark(table, NUMERIC, pre_tokenizers.Digits(individual_digits=False))
    return table


def _mark(table: U8, bit: int, splitter: Any) -> None:
    """Set a bit for the characters that a splitter isolates."""
    for text in _every_character():
        # The first character is in no class, and runs are as long as they can be: every second piece is one.
        for piece, _ in splitter.pre_tokenize_str(text)[1::2]:
            table[ord(piece[0]) : ord(piece[-1]) + 1] |= np.uint8(bit)


def _every_character() -> Iterator[str]:
    """All code points of the planes in use, in order, in texts that begin with a character of no class."""
    for low in (*range(0, 0xD800, 2048), *range(0xE000, 0x40000, 2048), *range(0xE0000, 0xE1000, 2048)):
        yield "\0" + "".join(map(chr, range(low, low + 2048)))


@njit(inline="always")
def _class_at(data: Any, at: Any, end: Any, table: Any) -> Any:
    """Class and bytes of the character at a position."""
    byte = data[at]
    if byte < 128:
        return table[byte], 1
    point, size = decode(data, at, end)
    return table[point], size


@njit(inline="always")
def _run(data: Any, at: Any, end: Any, table: Any, mask: Any, limit: Any) -> Any:
    """The end of the characters with a class in `mask`."""
    while at < end and at < limit:
        kind, size = _class_at(data, at, end, table)
        if kind & mask == 0:
            break
        at += size
    return at


@njit(nogil=True, cache=True)
def _short_form(data: U8, at: int, end: int) -> int:
    """The end of an English short form (`'s`, `'ll`) that begins at an apostrophe, or its beginning."""
    if at + 1 < end:
        one = data[at + 1]
        if one in (0x73, 0x74, 0x6D, 0x64):  # s t m d
            return at + 2
        if at + 2 < end:
            two = data[at + 2]
            if (one in (0x72, 0x76) and two == 0x65) or (one == 0x6C and two == 0x6C):  # re ve ll
                return at + 3
    return at


@njit(nogil=True, cache=True)
def _blanks(data: U8, at: int, end: int, table: U8, alone: int, lines: bool) -> int:
    """The end of a word of white space: up to the last line end, else all but the last before other text."""
    limit, stop, last, line = at + MAX_WORD_BYTES, at, at, at
    while stop < end:
        kind, size = _class_at(data, stop, end, table)
        if kind & SPACE == 0:
            break
        if stop >= limit:
            return stop
        if data[stop] == _LINE_FEED or data[stop] == _RETURN:
            line = stop + 1
        last = stop
        stop += size
    if lines and line > at:
        return line
    if stop == end or last == at:
        return stop
    kind, _ = _class_at(data, stop, end, table)
    return stop if kind & alone else last


@njit(nogil=True, cache=True)
def word_end(data: U8, at: int, end: int, table: U8, letters: int, alone: int, group: int, lines: bool) -> Any:
    """Where the word that begins at `at` ends; the last four arguments are a `Pattern`."""
    first, limit, start = data[at], at + MAX_WORD_BYTES, at
    if first == _APOSTROPHE:
        short = _short_form(data, at, end)
        if short > at:
            return short
    kind, size = _class_at(data, at, end, table)
    if first == _BLANK and at + 1 < end:
        after, wide = _class_at(data, at + 1, end, table)
        digit = after & NUMBER and (group or after & alone)
        if not (after & (SPACE | alone) or (digit and not after & letters)):
            start, kind, size = at + 1, after, wide
    if kind & alone:
        return _digits(data, start, end, table, alone, group)
    if kind & letters:
        return _run(data, start + size, end, table, letters, limit)
    if kind & NUMBER:
        if group and not alone:
            return _digits(data, start, end, table, NUMBER, group)
        return _run(data, start + size, end, table, NUMBER, limit)
    if kind & SPACE:
        return _blanks(data, at, end, table, alone, lines)
    stop = start + size
    while stop < end and stop < limit:
        kind, size = _class_at(data, stop, end, table)
        if kind & (letters | NUMBER | SPACE | alone):
            break
        stop += size
    return stop


@njit(nogil=True, cache=True)
def _digits(data: U8, at: int, end: int, table: U8, mask: int, group: int) -> int:
    """The end of up to `group` digits."""
    for _ in range(group):
        if at >= end:
            break
        kind, size = _class_at(data, at, end, table)
        if kind & mask == 0:
            break
        at += size
    return at
