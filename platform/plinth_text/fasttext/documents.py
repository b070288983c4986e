"""fastText scores of whole documents by any supervised model: the likeliest label, and a chosen one's probability.

As `predict`, and word n-grams too (`Dictionary::addWordNgrams`): from each word on, the hashes of the words that
follow, line ends passed over, up to the end of the text, which counts as a word. A text without a letter is scored as
any other. Does not belong here: labels of blocks of lines (`predict`).

Letters: D documents, P padded dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from plinth_text.arrays import F32, I32, I64, U8, U32, U64
from plinth_text.compiled import compiled
from plinth_text.errors import ModelFileError
from plinth_text.fasttext.model_file import EOS, FastTextModel
from plinth_text.fasttext.rows import end_row, input_layer
from plinth_text.fasttext.scores import output_layer
from plinth_text.fasttext.tokens import point_flags
from plinth_text.unicode.codepoints import utf8

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
        """Labels of texts.

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
