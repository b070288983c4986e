"""Texts as sentences of tokens, for language models: a line is a sentence, a word or a mark is a token.

Letters are lower-cased and digits become `0`, as CCNet (Wenzek et al. 2020) does before its language models;
unlike there, words stay words and every mark of punctuation is a token of its own. Tokens are 64-bit hashes, and
`BOUNDARY` ends a sentence; a line without tokens is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compiled import njit
from plinth.text.unicode.codepoints import LETTER, LOWER, WIDE_SPACES, decode, kind, utf8
from plinth.text.words.ngrams import I64, U8, U64

#: Ends a sentence in the stream of hashes.
BOUNDARY = np.uint64(0)

#: By byte: its letter in lower case, 0 for white space, 1 for a mark, 2 for a line end.
_ASCII = np.array(
    [
        2
        if byte in (10, 13)
        else 0
        if byte < 33 or byte == 127
        else 48
        if 48 <= byte <= 57
        else ord(chr(byte).lower())
        if byte < 128 and chr(byte).isalpha()
        else 1
        for byte in range(256)
    ],
    dtype=np.uint8,
)
_SEED, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def tokens(texts: pa.Array) -> tuple[U64, I64, I64]:
    """All tokens of all texts, sentence by sentence.

    Returns:
        hashes: [tokens and boundaries]; never `BOUNDARY` for a token.
        places: [the same, 2] first and last byte (half open) of each token in the texts' buffer; boundaries are empty.
        offsets: [documents + 1] where each text's stream starts.
    """
    data, offsets = utf8(texts)
    most = int(offsets[-1] - offsets[0]) * 2 + len(texts) + 1
    hashes, places = np.empty(most, dtype=np.uint64), np.empty((most, 2), dtype=np.int64)
    out = np.zeros(len(texts) + 1, dtype=np.int64)
    size = _tokens(data, offsets, hashes, places, out)
    return hashes[:size], places[:size], out


def normalised_token(text: str) -> str:
    """A token in the form that the kernel hashes, for people and ARPA files."""
    return "".join(_normalised_character(char) for char in text)


def _normalised_character(char: str) -> str:
    point = ord(char)
    if point < 128:
        return "0" if char.isdigit() else char.lower()
    return chr(int(LOWER[point])) if point < LOWER.size else char


@njit(nogil=True, cache=True)
def _tokens(data: U8, offsets: I64, hashes: U64, places: I64, out: I64) -> int:
    size = 0
    for doc in range(offsets.size - 1):
        at, end = offsets[doc], offsets[doc + 1]
        begin, value, first = np.int64(-1), _SEED, np.int64(size)
        while at < end:
            byte, length = data[at], np.int64(1)
            point, what = np.int64(_ASCII[byte]), np.int64(_ASCII[byte])
            if byte >= 128:
                point, length = decode(data, at, end)
                point, what = _wide(point)
            elif what == 1:
                point = np.int64(byte)
            if what > 2:  # a letter or a digit
                if begin < 0:
                    begin, value = at, _SEED
                value = (value ^ np.uint64(point)) * _PRIME
            else:
                if begin >= 0:
                    size = _put(hashes, places, size, value, begin, at)
                    begin = np.int64(-1)
                if what == 1:
                    size = _put(hashes, places, size, (_SEED ^ np.uint64(point)) * _PRIME, at, at + length)
                elif what == 2:
                    size = _close(hashes, places, size, first, at)
            at += length
        if begin >= 0:
            size = _put(hashes, places, size, value, begin, end)
        size = _close(hashes, places, size, first, end)
        out[doc + 1] = size
    return size


@njit(inline="always")
def _wide(point: Any) -> Any:
    """Lower case of a code point beyond ASCII, and its class, as in the table of ASCII."""
    for i in range(WIDE_SPACES.size):
        if WIDE_SPACES[i] == point:
            return point, np.int64(2 if point in (0x85, 0x2028, 0x2029) else 0)
    if kind(point) != LETTER:
        return point, np.int64(1)
    return (np.int64(LOWER[point]) if point < LOWER.size else point), np.int64(3)


@njit(inline="always")
def _put(hashes: Any, places: Any, size: Any, value: Any, begin: Any, end: Any) -> Any:
    mixed = value ^ (value >> np.uint64(32))
    mixed = mixed * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    hashes[size] = mixed if mixed != BOUNDARY else np.uint64(1)
    places[size, 0], places[size, 1] = begin, end
    return size + 1


@njit(inline="always")
def _close(hashes: Any, places: Any, size: Any, first: Any, at: Any) -> Any:
    if size == first or hashes[size - 1] == BOUNDARY:
        return size
    hashes[size] = BOUNDARY
    places[size, 0], places[size, 1] = at, at
    return size + 1
