"""The input side of a model as arrays for the kernels of `predict` and `documents`, and the row of a text's end.

Does not belong here: where tokens begin and end (`tokens.h`), the features of a token (`rows.h`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plinth_text.arrays import F32, I64, U8, U32, U64
from plinth_text.compiled import compiled
from plinth_text.fasttext.model_file import EOS, CodedRows, FastTextModel


class InputLayer(NamedTuple):
    """Input side of a model, in the order of the kernels' parameters.

    Args:
        rows, bits, before, words: as those of `FastTextModel`.
        codes, centroids, norms: as those of `CodedRows`, where rows are not written out; else empty.
        starts, ends: of the words.
        table: words by their key, open addressing, at most half taken: the upper half of the key, and the number of
            the word plus one; 0 is a free place.
        nwords: labels not counted.
        width, last: numbers in a part of a coded row, and in its last part.
    """

    rows: F32
    codes: U8
    centroids: F32
    norms: F32
    bits: U32
    before: U32
    words: U8
    starts: I64
    ends: I64
    table: U64
    nwords: int
    minn: int
    maxn: int
    bucket: int
    width: int
    last: int


def input_layer(model: FastTextModel) -> InputLayer:
    """The input side of a model."""
    table = np.zeros(1 << (2 * model.word_ends.size).bit_length(), np.uint64)
    fill_table(model.words, model.word_starts, model.word_ends, table)
    no_floats = np.zeros(0, np.float32)
    coded = model.coded or CodedRows(np.zeros((0, 0), np.uint8), no_floats, 0, 0, no_floats)
    return InputLayer(
        model.rows, coded.codes, coded.centroids, coded.norms, model.bits, model.before, model.words,
        model.word_starts, model.word_ends, table, model.nwords, model.minn, model.maxn, model.bucket, coded.width,
        coded.last,
    )  # fmt: skip


def end_row(model: FastTextModel, given: InputLayer) -> F32:
    """The row of the end of a text, which has no n-grams, and 1 behind it; zeros where the model has none."""
    word = number_of(np.frombuffer(EOS, dtype=np.uint8), given.words, given.starts, given.ends, given.table)
    out = np.zeros(model.output.shape[1] + 1, dtype=np.float32)
    if 0 <= word < model.nwords:
        out[: model.dim] = model.coded.take(np.array([word])).floats()[0] if model.coded else model.rows[word]
        out[-1] = 1
    return out


@compiled
def fill_table(words: U8, starts: I64, ends: I64, table: U64) -> None:
    """Enter the words into `InputLayer.table`."""


@compiled
def number_of(word: U8, words: U8, starts: I64, ends: I64, table: U64) -> int:
    """Number of a word in the dictionary, or -1."""
