"""Counts behind Gopher's rules as Dolma's tagger `gopher_v1` makes them (Soldaini et al. 2024; dolma 1.2).

Words are separated by white space, lines by `\\n`. Differences from `gopher_quality` and `repetition`: the
median word length; a word with a symbol counts once; stop words count every time; **all** copies of a line that
repeats are duplicates, blank lines too; n-grams are measured without spaces, against the characters of words (top
n-gram) or of all n-grams, overlaps counted again (repeated n-grams).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.unicode.characters import ALPHA, SPACE, flags
from plinth.text.unicode.codepoints import decode, utf8
from plinth.text.words.hash_sets import FNV, PRIME, shift_for, slot_count, slot_of
from plinth.text.words.ngrams import I64, U8, U64
from plinth.text.words.repeated_ngrams import extend, in_all_copies, in_every_gram, ngram_buffers, repeated_words

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

#: Columns of `shares`.
COLUMNS = (
    "word_count", "median_word_characters", "symbol_words", "letter_words", "stop_words", "bullet_lines",
    "ellipsis_lines", "duplicate_lines", "duplicate_line_characters", "top_2_gram", "top_3_gram", "top_4_gram",
    "duplicate_5_grams", "duplicate_6_grams", "duplicate_7_grams", "duplicate_8_grams", "duplicate_9_grams",
    "duplicate_10_grams",
)  # fmt: skip

_NEWLINE, _STAR, _HYPHEN, _HASH, _ELLIPSIS = 10, 0x2A, 0x2D, 0x23, 0x2026


def _fnv(text: str) -> int:
    value = int(FNV)
    for byte in text.encode():
        value = ((value ^ byte) * int(PRIME)) & 0xFFFFFFFFFFFFFFFF
    return value


#: Gopher's eight stop words (Rae et al. 2021, section A.1.1).
_STOP_HASHES = np.array(
    [_fnv(word) for word in ("the", "be", "to", "of", "and", "that", "have", "with")], dtype=np.uint64
)
#: Word lengths below this are counted; a median above is sorted for.
_LENGTHS = 64
#: Entries of a line's numbers.
_LINES, _BULLETS, _ELLIPSES, _COPIES, _COPIED = range(5)


def shares(texts: pa.Array, join_blank_lines: bool = False) -> F64:
    """Numbers of each text, [documents, 18] in the order of `COLUMNS`; zeros for an empty one.

    Args:
        join_blank_lines: a run of line ends is one, as in the tagger `gopher_v2`.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(COLUMNS)), dtype=np.float64)
    scratch = ngram_buffers(int(np.diff(offsets).max(initial=0)))
    _shares(data, offsets, flags(), join_blank_lines, *scratch, out)
    return out


@njit(nogil=True, cache=True)
def _shares(
    data: U8, offsets: I64, table: U8, join: bool, keys: U64, counts: I32, spots: I32, ids: I32, words: U64,
    characters: I64, out: F64,
) -> None:  # fmt: skip
    lengths, line = np.zeros(_LENGTHS, dtype=np.int64), np.zeros(5, dtype=np.int64)
    for doc in range(offsets.size - 1):
        if offsets[doc] == offsets[doc + 1]:
            continue
        row = out[doc]
        n = _scan(data, offsets[doc], offsets[doc + 1], table, words, characters, lengths, row)
        _lines(data, offsets[doc], offsets[doc + 1], join, keys, counts, line)
        total = max(characters[n], 1)
        row[0], row[1] = n, _median(lengths, characters, n)
        for column in range(2, 4):
            row[column] /= max(n, 1)
        row[5], row[6] = line[_BULLETS] / line[_LINES], line[_ELLIPSES] / line[_LINES]
        row[7], row[8] = line[_COPIES] / line[_LINES], line[_COPIED] / total
        found, _ = repeated_words(words, n, keys, counts, spots, ids)
        for size in range(2, 11):
            found, where, most = extend(spots, ids, found, keys, counts)
            if size < 5 and n >= size:
                where, most = max(where, 0), max(most, 1)  # when none repeats, the first stands for all
                row[7 + size] = most * (characters[where + size] - characters[where]) / total
            elif found:
                row[7 + size] = in_all_copies(spots, found, size, characters) / max(
                    in_every_gram(n, size, characters), 1
                )


@njit(nogil=True, cache=True)
def _scan(data: U8, start: int, end: int, table: U8, words: U64, characters: I64, lengths: I64, row: F64) -> int:
    """Hash and measure the words; adds up those with a symbol, those with a letter, and stop words."""
    lengths[:] = 0
    n, size, value, symbol, letter, head = 0, 0, FNV, False, False, start
    characters[0] = 0
    at = start
    while at <= end:
        point, step = np.int64(_NEWLINE), 1
        if at < end:
            point = np.int64(data[at])
            if point >= 128:
                point, step = decode(data, at, end)
        flag = table[point]
        if flag & SPACE:
            if size:
                words[n] = value
                characters[n + 1] = characters[n] + size
                lengths[min(size, _LENGTHS - 1)] += 1
                row[2] += symbol
                row[3] += letter
                if 2 <= at - head <= 4:
                    row[4] += _is_stop(value)
                n += 1
                size, value, symbol, letter = 0, FNV, False, False
            head = at + step
        else:
            size += 1
            symbol |= (point == _HASH) | (point == _ELLIPSIS)
            letter |= (flag & ALPHA) != 0
            for k in range(at, at + step):
                value = (value ^ np.uint64(data[k])) * PRIME
        at += step
    return n


@njit(inline="always")
def _is_stop(value: Any) -> Any:
    found = False
    for k in range(_STOP_HASHES.size):
        found |= _STOP_HASHES[k] == value
    return found


@njit(nogil=True, cache=True)
def _median(lengths: I64, characters: I64, n: int) -> float:
    """Median word length, the mean of the middle two of an even number; 0 without words."""
    if n == 0:
        return 0.0
    below, size, middle = 0, 0, -1
    while below + lengths[size] <= (n - 1) // 2:
        below += lengths[size]
        size += 1
    middle = size
    while below + lengths[size] <= n // 2:
        below += lengths[size]
        size += 1
    if size < _LENGTHS - 1:
        return (middle + size) / 2
    every = np.sort(characters[1 : n + 1] - characters[:n])
    return float(every[(n - 1) // 2] + every[n // 2]) / 2


@njit(nogil=True, cache=True)
def _lines(data: U8, start: int, end: int, join: bool, keys: U64, counts: I32, line: I64) -> None:
    """Lines, those that start with `*` or `-`, that end with an ellipsis, and that have copies, with characters."""
    line[:] = 0
    ends = 1
    for at in range(start, end):
        ends += data[at] == _NEWLINE
    space = slot_count(min(ends, (end - start) // 2 + 3))  # as many different lines as fit: a blank one is one
    shift = shift_for(space)
    keys[:space] = 0
    value, size, head = FNV, 0, start
    at = start
    while at <= end:
        if at < end and data[at] != _NEWLINE:
            value = (value ^ np.uint64(data[at])) * PRIME
            size += (data[at] & 0xC0) != 0x80
            at += 1
            continue
        if not (join and start < at < end and data[at - 1] == _NEWLINE):
            value |= np.uint64(value == 0)
            slot = slot_of(keys, space, shift, value)
            if keys[slot] == 0:
                keys[slot], counts[slot] = value, 0
            counts[slot] += 1
            copies = 0 if counts[slot] == 1 else (2 if counts[slot] == 2 else 1)
            line[_LINES] += 1
            line[_COPIES] += copies
            line[_COPIED] += copies * size
            line[_BULLETS] += head < at and (data[head] == _STAR or data[head] == _HYPHEN)
            line[_ELLIPSES] += at - head >= 3 and data[at - 3] == 0xE2 and data[at - 2] == 0x80 and data[at - 1] == 0xA6
        value, size, head = FNV, 0, at + 1
        at += 1
