"""Texts as sentences of tokens, for language models: a line is a sentence, a word or a mark is a token.

Letters are lower-cased and digits become `0`, as CCNet (Wenzek et al. 2020) does before its language models;
unlike there, words stay words and every mark of punctuation is a token of its own. Tokens are 64-bit hashes, and
`BOUNDARY` ends a sentence; a line without tokens is none.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.unicode.codepoints import LOWER_SIZE, lower, utf8

#: Ends a sentence in the stream of hashes.
BOUNDARY = np.uint64(0)


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
    size = sentence_tokens(data, offsets, hashes, places, out)
    return hashes[:size], places[:size], out


def normalised_token(text: str) -> str:
    """A token in the form that the kernel hashes, for people and ARPA files."""
    return "".join(_normalised_character(char) for char in text)


def _normalised_character(char: str) -> str:
    point = ord(char)
    if point < 128:
        return "0" if char.isdigit() else char.lower()
    return chr(int(lower()[point])) if point < LOWER_SIZE else char


@compiled
def sentence_tokens(data: U8, offsets: I64, hashes: U64, places: I64, out: I64) -> int:
    """Fill in the stream of all texts as `tokens` returns it; returns its size."""
