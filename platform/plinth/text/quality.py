"""Counts behind Gopher's quality rules (Rae et al. 2021, table A1) and FineWeb's (Penedo et al. 2024).

Words are what white space separates. Lines of the Gopher counts are those of `str.splitlines`, lines of the
FineWeb counts are separated by `\\n`, as in datatrove. One pass over the bytes each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from plinth.text.characters import ALPHA, BREAK, PUNCTUATION, SPACE, TERMINAL, flags
from plinth.text.codepoints import decode, utf8
from plinth.text.sets import FNV, PRIME, capacity, mask_for, seen

#: Columns of `gopher_counts`.
(WORDS, PLAIN_WORDS, PLAIN_CHARACTERS, HASHES, ELLIPSES, LINES, BULLETS, ELLIPSIS_LINES, ALPHA_WORDS, STOP_WORDS) = (
    range(10)
)
#: Columns of `fineweb_counts`.
(FULL_LINES, ENDED, SHORT, DUPLICATE_CHARACTERS, CHARACTERS, NEWLINES, ALL_WORDS) = range(7)

_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


def _fnv(text: str) -> int:
    value = int(FNV)
    for byte in text.encode():
        value = ((value ^ byte) * int(PRIME)) & 0xFFFFFFFFFFFFFFFF
    return value


_STOP_HASHES = np.array([_fnv(word) for word in _STOP_WORDS], dtype=np.uint64)


def gopher_counts(texts: pa.Array) -> npt.NDArray[np.int64]:
    """Counts of each text, [documents, 10]: all words, words that are not only symbols and their characters,
    `#`, ellipses, lines, lines that start with a bullet, lines that end with an ellipsis, words with a
    letter, and how many of Gopher's eight stop words occur."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 10), dtype=np.int64)
    _gopher(data, offsets, flags(), _STOP_HASHES, out)
    return out


def fineweb_counts(texts: pa.Array, short_line: int) -> npt.NDArray[np.int64]:
    """Counts of each text, [documents, 7]: lines with a character that is not white space, of those the ones
    that end a sentence and the ones of at most `short_line` characters, characters in repeated lines,
    characters without line ends, line ends, and words."""
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), 7), dtype=np.int64)
    longest = int(np.max(np.diff(offsets))) if len(texts) else 0
    keys = np.zeros(capacity(longest + 1), dtype=np.uint64)
    stamps = np.zeros(len(keys), dtype=np.int64)
    _fineweb(data, offsets, flags(), short_line, keys, stamps, out)
    return out


@njit(nogil=True, cache=True)
def _gopher(data, offsets, table, stop_hashes, out):  # type: ignore[no-untyped-def]
    for doc in range(len(offsets) - 1):
        at, end = offsets[doc], offsets[doc + 1]
        counts = out[doc]
        seen = 0  # bits: stop words found
        word_characters, plain, alpha = 0, False, False
        value = FNV
        line_first, line_last = np.int64(0), np.int64(0)  # first and last character of a line that is not white space
        line_characters, dots, dots_in_text = 0, 0, 0
        previous = np.int64(0)
        while at < end:
            byte = data[at]
            if byte < 128:
                point, size = np.int64(byte), 1
            else:
                point, size = decode(data, at, end)
            flag = table[point]
            if flag & SPACE:
                if word_characters:
                    counts[WORDS] += 1
                    counts[ALPHA_WORDS] += alpha
                    if plain:
                        counts[PLAIN_WORDS] += 1
                        counts[PLAIN_CHARACTERS] += word_characters
                    for k in range(len(stop_hashes)):
                        if stop_hashes[k] == value:
                            seen |= 1 << k
                word_characters, plain, alpha = 0, False, False
                value = FNV
            else:
                word_characters += 1
                plain = plain or not (flag & PUNCTUATION)
                alpha = alpha or bool(flag & ALPHA)
                for k in range(size):
                    value = (value ^ np.uint64(data[at + k])) * PRIME
            dots_in_text = dots_in_text + 1 if point == 46 else 0
            if dots_in_text == 3:
                counts[ELLIPSES] += 1
                dots_in_text = 0
            counts[ELLIPSES] += point == 0x2026
            counts[HASHES] += point == 35
            if flag & BREAK:
                if not (point == 10 and previous == 13):
                    counts[LINES] += 1
                    counts[BULLETS] += line_first == 0x2022 or line_first == 45
                    counts[ELLIPSIS_LINES] += dots >= 3 or line_last == 0x2026
                line_first, line_last, line_characters, dots = np.int64(0), np.int64(0), 0, 0
            else:
                line_characters += 1
                if not (flag & SPACE):
                    dots = (dots + 1 if previous == 46 else 1) if point == 46 else 0
                    line_first = point if line_first == 0 else line_first
                    line_last = point
            previous = point
            at += size
        if word_characters:
            counts[WORDS] += 1
            counts[ALPHA_WORDS] += alpha
            if plain:
                counts[PLAIN_WORDS] += 1
                counts[PLAIN_CHARACTERS] += word_characters
            for k in range(len(stop_hashes)):
                if stop_hashes[k] == value:
                    seen |= 1 << k
        if line_characters:
            counts[LINES] += 1
            counts[BULLETS] += line_first == 0x2022 or line_first == 45
            counts[ELLIPSIS_LINES] += dots >= 3 or line_last == 0x2026
        for k in range(len(stop_hashes)):
            counts[STOP_WORDS] += (seen >> k) & 1


@njit(nogil=True, cache=True)
def _fineweb(data, offsets, table, short_line, keys, stamps, out):  # type: ignore[no-untyped-def]
    for doc in range(len(offsets) - 1):
        at, end = offsets[doc], offsets[doc + 1]
        counts = out[doc]
        mask = mask_for(end - at, len(keys))
        characters, blank, last_flag = 0, True, 0
        in_word = False
        value = FNV
        while at <= end:
            if at == end or data[at] == 10:
                if not blank:
                    counts[FULL_LINES] += 1
                    counts[ENDED] += (last_flag & TERMINAL) != 0
                    counts[SHORT] += characters <= short_line
                    if seen(keys, stamps, doc + 1, mask, value):
                        counts[DUPLICATE_CHARACTERS] += characters
                counts[CHARACTERS] += characters
                counts[NEWLINES] += at < end
                in_word = False
                characters, blank, last_flag = 0, True, 0
                value = FNV
                at += 1
                continue
            byte = data[at]
            if byte < 128:
                point, size = np.int64(byte), 1
            else:
                point, size = decode(data, at, end)
            flag = table[point]
            if flag & SPACE:
                in_word = False
            else:
                counts[ALL_WORDS] += not in_word
                in_word = True
                blank = False
            for k in range(size):
                value = (value ^ np.uint64(data[at + k])) * PRIME
            characters += 1
            last_flag = flag
            at += size
