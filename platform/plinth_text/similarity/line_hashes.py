"""Lines of Arrow `large_string` columns: positions, sizes and two hashes of each, in one pass.

A line ends with U+000A and includes it. Its hashes are over its text folded as in `fold`: lower-cased, runs of
white space one space, none at the ends; so lines that differ in case or white space alone are equal. A line
without a letter or digit is **blank** when it has only white space, else **structural** (rules, brackets).
A **paragraph** is a maximal run of lines that are not blank; its hashes are over those of its lines.

Letters: L lines of all texts of a column, P paragraphs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I32, I64, U8, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.unicode.codepoints import utf8


@dataclass(frozen=True)
class HashedLines:
    """The lines of a column of texts.

    Args:
        starts: [D + 1] text d has lines `starts[d]:starts[d + 1]`.
        byte: [L + 1] first byte of each line in the column's buffer, and the end of the last one.
        start_cp, end_cp: [L] code points in the text, half open; the line end is inside.
        high, low: [L] hashes; both 0 for a blank line.
        size: [L] characters that are no white space.
        words: [L] words, as `ngrams` counts them but for those that a line end splits.
        alphanumeric: [L] whether the line has a letter or digit.
    """

    starts: I64
    byte: I64
    start_cp: I32
    end_cp: I32
    high: U64
    low: U64
    size: I32
    words: I32
    alphanumeric: Bools


@dataclass(frozen=True)
class Paragraphs:
    """Paragraphs of a column: first and one past the last line [P], hashes [P], characters [P]."""

    first: I64
    last: I64
    high: U64
    low: U64
    size: I64
    alphanumeric: Bools


def lines(texts: pa.Array) -> HashedLines:
    """Find and hash the lines of every text. A text of no characters has no lines."""
    data, offsets = utf8(texts)
    count = int(np.count_nonzero(data[offsets[0] : offsets[-1]] == 10)) + offsets.size - 1
    starts, byte = np.zeros(offsets.size, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    cp, numbers = np.zeros((2, count), dtype=np.int32), np.zeros((2, count), dtype=np.int32)
    hashes, alphanumeric = np.zeros((2, count), dtype=np.uint64), np.zeros(count, dtype=np.bool_)
    found = scan(data, offsets, starts, byte, cp, hashes, numbers, alphanumeric)
    byte[found] = offsets[-1]
    return HashedLines(
        starts, byte[: found + 1], cp[0, :found], cp[1, :found], hashes[0, :found], hashes[1, :found],
        numbers[0, :found], numbers[1, :found], alphanumeric[:found],
    )  # fmt: skip


@compiled
def scan(
    data: U8, offsets: I64, starts: I64, byte: I64, cp: I32, hashes: U64, numbers: I32, alphanumeric: Bools
) -> int:
    """Fill in the lines of all texts, as `lines` returns them; returns how many there are."""


def paragraphs(found: HashedLines) -> Paragraphs:
    """The paragraphs of every text, in order."""
    most = found.high.size
    spans, hashes = np.zeros((3, most), dtype=np.int64), np.zeros((2, most), dtype=np.uint64)
    alphanumeric = np.zeros(most, dtype=np.bool_)
    count = blocks(found.starts, found.high, found.low, found.size, found.alphanumeric, spans, hashes, alphanumeric)
    return Paragraphs(
        spans[0, :count], spans[1, :count], hashes[0, :count], hashes[1, :count], spans[2, :count], alphanumeric[:count]
    )


@compiled
def blocks(
    starts: I64, high: U64, low: U64, size: I32, by_line: Bools, spans: I64, hashes: U64, alphanumeric: Bools
) -> int:
    """Fill in the paragraphs of all texts, as `paragraphs` returns them; returns how many there are."""


def edges(found: HashedLines, count: int) -> Bools:
    """[L] whether a line is among the first or last `count` lines of its text, blank lines not counted."""
    out = np.zeros(found.high.size, dtype=np.bool_)
    mark_edges(found.starts, found.size, count, out)
    return out


@compiled
def mark_edges(starts: I64, size: I32, count: int, out: Bools) -> None:
    """As `edges`."""


@compiled
def close_gaps(starts: I64, size: I32, cut: U8) -> None:
    """Cut blank lines that cut lines leave behind, in place: between two lines that stay, one blank run stays.

    Args:
        starts, size: of `HashedLines`.
        cut: [L] 0, or why a line is cut; a blank line takes the reason of the cut line before it.
    """
