"""fastText prediction over Arrow string buffers: for whole documents, and for blocks of lines within them.

Features and scores are those of fastText 0.9.2 for `text.replace("\\n", " ")`, as datatrove and FineWeb call it:
tokens end at the seven ASCII characters that fastText calls white space; a known word has a row of its own; each token
between `<` and `>` has its character n-grams, hashed with 32-bit FNV-1a over *signed* bytes; the end of the text is
one more token. The mean row goes through the label tree or a softmax. Two differences: a literal `</s>` does not end
a text, and sums are taken by word and block before they are added up, so the last bits may differ.

Words repeat: the sum over a word's n-grams is kept in a small table by the word's 64-bit hash, so that most words
cost one look-up. A **block** is a run of whole lines that ends at a blank line, or at the end of a line once it holds
enough letters: paragraphs, whether the text breaks its lines or not.

Letters: D documents, B labelled blocks, P padded dimensions, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from plinth_text.arrays import F32, I32, I64, U8, U32, U64
from plinth_text.compiled import compiled
from plinth_text.errors import ModelFileError
from plinth_text.fasttext.model_file import FastTextModel
from plinth_text.fasttext.rows import end_row, input_layer
from plinth_text.fasttext.scores import output_layer
from plinth_text.fasttext.tokens import point_flags
from plinth_text.unicode.codepoints import utf8

#: Columns of the counts by document.
LETTERS, CHARACTERS, DAMAGED = 0, 1, 2


@dataclass(frozen=True)
class Predictions:
    """Labels of a column of texts, and of their blocks.

    Args:
        labels, scores: the two likeliest labels (-1: none) and their probabilities, [D, 2].
        counts: letters, code points, damaged code points, [D, 3].
        block_doc, block_label, block_score: of labelled blocks, [B].
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
        """Labels of texts, and of their blocks with at least `min_letters` letters.

        Args:
            texts: strings.
            min_letters: letters of a block that is labelled, at least 1.
            max_characters: read only so many characters from the middle; 0: all.
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
    """Label all documents; returns how many blocks were labelled. Arrays as in `Predictor.predict`."""
