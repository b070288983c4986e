r"""Prediction with fastText models over Arrow string buffers, for whole documents and for blocks of lines.

Features and scores are those of fastText 0.9.2 for `text.replace("\n", " ")`, as datatrove and FineWeb call it. Tokens
end at the seven ASCII characters that fastText treats as white space. A known word has its own row. The character
n-grams of each token, enclosed in `<` and `>`, are hashed with 32-bit FNV-1a over *signed* bytes. The end of the text
is one more token. The mean row goes through the label tree or a softmax. There are two differences from fastText: a
literal `</s>` does not end a text, and sums are taken by word and block first, so the last bits may differ.

Words repeat, so the sum over a word's n-grams is cached in a small table by the word's 64-bit hash, and most words cost
one look-up. A **block** is a run of whole lines. A block ends at a blank line, or at the first line end after it has
enough letters. Blocks are therefore paragraphs, whether or not the text wraps its lines.

Letters: D documents, B labeled blocks, P padded dimensions, L labels.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from plinth_text.arrays import F32, I32, I64, U8, U32, U64
from plinth_text.compiled import compiled
from plinth_text.errors import ModelFileError
from plinth_text.fasttext.model_file import EOS, HIERARCHICAL, LANES, CodedRows, FastTextModel
from plinth_text.unicode import ALPHA, flags, utf8

#: Columns of the counts by document.
LETTERS, CHARACTERS, DAMAGED = 0, 1, 2


@dataclass(frozen=True)
class Predictions:
    """Labels of the texts of a column, and of their blocks.

    Args:
        labels, scores: [D, 2] the two most likely labels (-1 for none) and their probabilities.
        counts: [D, 3] numbers of letters, code points and damaged code points.
        block_doc, block_label, block_score: [B] document, label and probability of each labeled block.
        block_start, block_end: [B] position of each block, in code points of the document.
    """

    labels: I32
    scores: F32
    counts: I64
    block_doc: I64
    block_label: I32
    block_score: F32
    block_start: I64
    block_end: I64


class Predictor:
    """Predictor for the labels of texts and of their blocks, with a model without word n-grams.

    Raises:
        ModelFileError: the model has word n-grams, which may cross the borders of blocks.
    """

    def __init__(self, model: FastTextModel) -> None:
        if model.word_ngrams > 1:
            raise ModelFileError(
                "this fastText model cannot label blocks of lines",
                found=f"word n-grams of up to {model.word_ngrams} words in the fastText model",
                expected="a model without word n-grams, such as fastText's models for language identification",
                remedy="use the model with the annotator `fasttext`, which labels whole documents",
            )
        self.model = model
        self._input, self._output = input_layer(model), output_layer(model)
        self._eos = end_row(model, self._input)

    def predict(self, texts: pa.Array, min_letters: int, max_characters: int = 0) -> Predictions:
        """Return the labels of texts, and of their blocks with at least `min_letters` letters.

        Args:
            texts: strings.
            min_letters: minimum letters of a labeled block, at least 1.
            max_characters: maximum characters to read, taken from the middle of the text; 0 reads all.
        """
        data, offsets = utf8(texts)
        docs = offsets.size - 1
        most = int(offsets[-1] - offsets[0]) // max(1, min_letters) + 1
        labels, scores = np.full((docs, 2), -1, np.int32), np.zeros((docs, 2), np.float32)
        counts = np.zeros((docs, 3), np.int64)
        blocks, sure = np.empty((most, 4), np.int64), np.empty(most, np.float32)
        size = predict_texts(
            data, offsets, min_letters, max_characters, self._eos, point_flags(), *self._input, *self._output, labels,
            scores, counts, blocks, sure,
        )  # fmt: skip
        blocks, sure = blocks[:size].copy(), sure[:size].copy()
        return Predictions(
            labels, scores, counts, blocks[:, 0], blocks[:, 1].astype(np.int32), sure, blocks[:, 2], blocks[:, 3]
        )


@compiled
def predict_texts(
    data: U8, offsets: I64, min_letters: int, max_characters: int, end: F32, points: U8,
    rows: F32, codes: U8, centroids: F32, norms: F32, bits: U32, before: U32, words: U8, starts: I64, ends: I64,
    table: U64, nwords: int, minn: int, maxn: int, bucket: int, width: int, last: int, nodes: F32, left: I32,
    right: I32, size: int, loss: int, path: I64,
    labels: I32, scores: F32, counts: I64, blocks: I64, sure: F32,
) -> int:  # fmt: skip
    """Label all documents, and return the number of labeled blocks. `Predictor.predict` allocates the arrays."""


# fastText scores of whole documents by any supervised model: the likeliest label, and a chosen one's probability.
#
# As `Predictor`, and word n-grams too (`Dictionary::addWordNgrams`): from each word on, the hashes of the words that
# follow, line ends passed over, up to the end of the text, which counts as a word. A text without a letter is scored as
# any other.
#
# Letters: D documents, P padded dimensions.

#: Rows that are noted before they are added, so that their reads overlap.
NOTED = 64
_EOS = np.frombuffer(EOS, dtype=np.uint8)


@dataclass(frozen=True)
class DocumentScores:
    """Labels of the texts of a column, and scores of one chosen label.

    Args:
        labels, scores: [D] the most likely label and its probability; -1 and 0 if the text has no known features.
        targets: [D] probability of the chosen label; 0 if no label was chosen.
    """

    labels: I32
    scores: F32
    targets: F32


class DocumentScorer:
    """Scorer of whole documents with any supervised model.

    Args:
        target: label whose probability is returned, or None.

    Raises:
        ValueError: the model has no such label.
    """

    def __init__(self, model: FastTextModel, target: str | None = None) -> None:
        if target is not None and target not in model.labels:
            raise ValueError(f"the fastText model has no label {target!r}")
        self.model, self.target = model, target
        self._number = -1 if target is None else model.labels.index(target)
        self._input, self._output = input_layer(model), output_layer(model, self._number)
        self._end = end_row(model, self._input)

    def score(self, texts: pa.Array) -> DocumentScores:
        """Return the most likely label of each text, and the probability of the target label.

        Raises:
            ModelFileError: the model is damaged: a score is NaN.
        """
        data, offsets = utf8(texts)
        docs = offsets.size - 1
        found = DocumentScores(np.full(docs, -1, np.int32), np.zeros(docs, np.float32), np.zeros(docs, np.float32))
        fault = score_texts(
            data, offsets, self.model.word_ngrams, self._number, self._end, point_flags(), _EOS, *self._input,
            *self._output, found.labels, found.scores, found.targets,
        )  # fmt: skip
        if fault >= 0:
            raise ModelFileError("the fastText model is damaged: a score is NaN", found=f"NaN for text {fault}")
        return found


@compiled
def score_texts(
    data: U8, offsets: I64, ngram: int, target: int, end: F32, points: U8, eos: U8,
    rows: F32, codes: U8, centroids: F32, norms: F32, bits: U32, before: U32, words: U8, starts: I64, ends: I64,
    table: U64, nwords: int, minn: int, maxn: int, bucket: int, width: int, last: int, nodes: F32, left: I32,
    right: I32, size: int, loss: int, path: I64,
    labels: I32, scores: F32, targets: F32,
) -> int:  # fmt: skip
    """Score all documents. Return the row of the first document whose scores are NaN, or -1.

    The arrays are those of `DocumentScores`.
    """


BROKEN = 32  # next to `unicode.flags`


@lru_cache(maxsize=1)
def point_flags() -> U8:
    """Return the flags `ALPHA` and `BROKEN` of each code point.

    Broken code points are private, unassigned, surrogates, C1 controls, or U+FFFD.
    """
    table = flags() & np.uint8(ALPHA)
    broken = [point for point in range(0x110000) if unicodedata.category(chr(point)) in {"Cn", "Co", "Cs"}]
    table[broken] |= BROKEN
    table[0x80:0xA0] |= BROKEN
    table[0x85] &= 0xFF ^ BROKEN  # NEL is a line end
    table[0xFFFD] |= BROKEN
    return table


# The input side of a model as arrays for the kernels, and the row of a text's end.


class InputLayer(NamedTuple):
    """Input side of a model, in the order of the kernels' parameters.

    Args:
        rows, bits, before, words: as in `FastTextModel`.
        codes, centroids, norms: as in `CodedRows` if rows stay quantized; else empty.
        starts, ends: positions of the words.
        table: open-addressing table of words by key, at most half full. A slot has the upper half of the key, and the
            number of the word plus one; 0 is an empty slot.
        nwords: number of words, without labels.
        width, last: numbers in a part of a quantized row, and in its last part.
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
    """Return the input layer of a model."""
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
    """Return the input row of the token that ends a text, and append a 1. The row is zero if the model has no such
    token."""
    word = number_of(np.frombuffer(EOS, dtype=np.uint8), given.words, given.starts, given.ends, given.table)
    out = np.zeros(model.output.shape[1] + 1, dtype=np.float32)
    if 0 <= word < model.nwords:
        out[: model.dim] = model.coded.take(np.array([word])).floats()[0] if model.coded else model.rows[word]
        out[-1] = 1
    return out


@compiled
def fill_table(words: U8, starts: I64, ends: I64, table: U64) -> None:
    """Insert the words into `InputLayer.table`."""


@compiled
def number_of(word: U8, words: U8, starts: I64, ends: I64, table: U64) -> int:
    """Return the number of a word in the dictionary, or -1."""


# The output side of a model as arrays for the kernels: label tree or rows of labels.
#
# Letters: G groups of `LANES` nodes (inner nodes of the tree from the root on, or labels), P padded dimensions.


class OutputLayer(NamedTuple):
    """Output side of a model, in the order of the kernels' parameters: output rows, arranged for products, and the
    tree.

    Args:
        nodes: [G, P * LANES] output rows in groups; within a group, the numbers of a dimension are adjacent.
        left, right: as in `FastTextModel`.
        size: number of labels.
        path: [n, 2] path from the root of the tree to the target label: position of each node, and 1 if the path turns
            right there, else 0.
    """

    nodes: F32
    left: I32
    right: I32
    size: int
    loss: int
    path: I64


def output_layer(model: FastTextModel, target: int = -1) -> OutputLayer:
    """Return the output layer of a model.

    Args:
        target: number of the label whose probability is returned, or -1.
    """
    labels = len(model.labels)
    rows = model.output[: labels - 1][::-1] if model.loss == HIERARCHICAL else model.output[:labels]
    groups = -(-rows.shape[0] // LANES)
    nodes = np.zeros((groups * LANES, rows.shape[1]), np.float32)
    nodes[: rows.shape[0]] = rows
    nodes = nodes.reshape(groups, LANES, -1).transpose(0, 2, 1).reshape(groups, rows.shape[1] * LANES)
    path = _path(model, target)
    return OutputLayer(np.ascontiguousarray(nodes), model.left, model.right, labels, model.loss, path)


def _path(model: FastTextModel, target: int) -> I64:
    if target < 0 or model.loss != HIERARCHICAL:
        return np.zeros((0, 2), np.int64)
    above = {int(child): node for node, pair in enumerate(zip(model.left, model.right, strict=True)) for child in pair}
    root, node, steps = model.left.size - 1, target, list[tuple[int, int]]()
    while node != root:
        steps.append((root - above[node], int(model.right[above[node]] == node)))
        node = above[node]
    return np.array(steps[::-1], np.int64).reshape(-1, 2)


@compiled
def sigmoids(dots: F32) -> None:
    """Replace each number x by 1 / (1 + e^-x) in place, in groups of `LANES` numbers."""
