"""fastText prediction over Arrow string buffers: for whole documents, and for blocks of lines within them.

Features and scores are those of fastText 0.9.2 for `text.replace("\\n", " ")`, as datatrove and FineWeb call it:
tokens end at the seven ASCII characters that fastText calls white space; a known word has a row of its own; each token
between `<` and `>` has its character n-grams, hashed with 32-bit FNV-1a over *signed* bytes; the end of the text is
one more token. The mean row goes through the label tree or a softmax. Two differences: a literal `</s>` does not end
a text, and sums are taken by word and block before they are added up, so the last bits may differ.

Words repeat: the sum over a word's n-grams is kept in a small table by the word's 64-bit hash, so that most words
cost one look-up. A **block** is a run of whole lines that ends at a blank line, or at the end of a line once it holds
enough letters: paragraphs, whether the text breaks its lines or not.

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
    """Labels of a column of texts, and of their blocks.

    Args:
        labels, scores: the two likeliest labels (-1: none) and their probabilities, [D, 2].
        counts: letters, code points, damaged code points, [D, 3].
        block_doc, block_label, block_score: of labeled blocks, [B].
        block_start, block_end: in code points of the document, [B].
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
    """A model without word n-grams, ready to predict.

    Raises:
        ModelFileError: it has word n-grams, which cross the borders of blocks.
    """

    def __init__(self, model: FastTextModel) -> None:
        if model.word_ngrams > 1:
            raise ModelFileError(
                "this fastText model cannot label blocks of lines",
                found=f"word n-grams of up to {model.word_ngrams} words",
                expected="a model without word n-grams, as those of languages are",
                remedy="use it with the annotator `fasttext`, which labels whole documents",
            )
        self.model = model
        self._input, self._output = input_layer(model), output_layer(model)
        self._eos = end_row(model, self._input)

    def predict(self, texts: pa.Array, min_letters: int, max_characters: int = 0) -> Predictions:
        """Return the labels of texts, and of their blocks with at least `min_letters` letters.

        Args:
            texts: strings.
            min_letters: letters of a block that is labeled, at least 1.
            max_characters: maximum characters to read, from the middle; 0: all.
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
    """Label all documents; returns how many blocks were labeled. Arrays as in `Predictor.predict`."""


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
    """Labels of a column of texts.

    Args:
        labels, scores: the likeliest label and its probability, [D]; -1 and 0 where the model knows nothing of a text.
        targets: probability of the chosen label, [D]; 0 where none was chosen.
    """

    labels: I32
    scores: F32
    targets: F32


class DocumentScorer:
    """A model, ready to score documents.

    Args:
        target: the label whose probability is asked for; None: none.

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
        """Return the labels of texts.

        Raises:
            ModelFileError: the model gives no numbers.
        """
        data, offsets = utf8(texts)
        docs = offsets.size - 1
        found = DocumentScores(np.full(docs, -1, np.int32), np.zeros(docs, np.float32), np.zeros(docs, np.float32))
        fault = score_texts(
            data, offsets, self.model.word_ngrams, self._number, self._end, point_flags(), _EOS, *self._input,
            *self._output, found.labels, found.scores, found.targets,
        )  # fmt: skip
        if fault >= 0:
            raise ModelFileError("the fastText model gives no numbers: it is damaged", found=f"NaN for text {fault}")
        return found


@compiled
def score_texts(
    data: U8, offsets: I64, ngram: int, target: int, end: F32, points: U8, eos: U8,
    rows: F32, codes: U8, centroids: F32, norms: F32, bits: U32, before: U32, words: U8, starts: I64, ends: I64,
    table: U64, nwords: int, minn: int, maxn: int, bucket: int, width: int, last: int, nodes: F32, left: I32,
    right: I32, size: int, loss: int, path: I64,
    labels: I32, scores: F32, targets: F32,
) -> int:  # fmt: skip
    """Score all documents; returns the first for which there are no numbers, or -1. Arrays as in `DocumentScores`."""


BROKEN = 32  # next to `unicode.flags`


@lru_cache(maxsize=1)
def point_flags() -> U8:
    """Return `ALPHA` and `BROKEN` by code point: private, unassigned, surrogate, C1 control, or U+FFFD."""
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
    """Return the input side of a model."""
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
    """Return the row of the end of a text, which has no n-grams, and 1 behind it; zeros if the model has none."""
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
    """Return the number of a word in the dictionary, or -1."""


# The output side of a model as arrays for the kernels: label tree or rows of labels.
#
# Letters: G groups of `LANES` nodes (inner nodes of the tree from the root on, or labels), P padded dimensions.


class OutputLayer(NamedTuple):
    """Output rows in the form in which they are multiplied, and the tree, in the order of the kernels' parameters.

    Args:
        nodes: [G, P * LANES], the numbers of a dimension side by side.
        left, right: as those of `FastTextModel`.
        size: number of labels.
        path: from the root of the tree to one label: places of the nodes, and 1 where it goes to the right, [n, 2].
    """

    nodes: F32
    left: I32
    right: I32
    size: int
    loss: int
    path: I64


def output_layer(model: FastTextModel, target: int = -1) -> OutputLayer:
    """Return the output side of a model.

    Args:
        target: the label whose probability is returned; -1: none.
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
    """Compute 1 / (1 + e^-x) of groups of `LANES` numbers, in place, as the tree's nodes have it."""
