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
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numba import uint64

from plinth.compiled import njit
from plinth.errors import SourceError
from plinth.text.fasttext.model_file import F32, I32, FastTextModel
from plinth.text.fasttext.rows import InputLayer, add, clear, end_row, features, input_layer, with_buffers
from plinth.text.fasttext.scores import OutputLayer, likeliest, output_layer, with_own_buffers
from plinth.text.fasttext.tokens import SEPARATOR, bare, point_flags, token
from plinth.text.unicode.codepoints import utf8
from plinth.text.words.ngrams import I64, U8, U64

#: Words whose sums are kept, a power of two: half a megabyte for 16 dimensions, which stays in the processor's cache.
CACHE = 1 << 13
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


class _Cache(NamedTuple):
    """Sums of the rows of recent words by key (0: free), and the sums of a block and of a text."""

    keys: U64
    sizes: I32
    sums: F32
    block: F32
    whole: F32
    mean: F32


def _cache(width: int) -> _Cache:
    sums = np.zeros((CACHE + 3, width), np.float32)
    return _Cache(np.zeros(CACHE, np.uint64), np.zeros(CACHE, np.int32), sums[:CACHE], *sums[CACHE:])


class Predictor:
    """A model without word n-grams, ready to predict.

    Raises:
        SourceError: it has word n-grams, which cross the borders of blocks.
    """

    def __init__(self, model: FastTextModel) -> None:
        if model.word_ngrams > 1:
            raise SourceError(
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
        longest = int(np.diff(offsets).max(initial=0))
        # buffers of its own for every call: threads may predict at the same time
        size = _predict(
            data, offsets, min_letters, max_characters, with_buffers(self._input, longest),
            with_own_buffers(self._output), _cache(self.model.output.shape[1]), self._eos, point_flags(), labels,
            scores, counts, blocks, sure,
        )  # fmt: skip
        blocks, sure = blocks[:size].copy(), sure[:size].copy()
        return Predictions(
            labels, scores, counts, blocks[:, 0], blocks[:, 1].astype(np.int32), sure, blocks[:, 2], blocks[:, 3]
        )


@bare
def _predict(
    data: U8, offsets: I64, min_letters: int, max_characters: int, given: InputLayer, layer: OutputLayer, cache: _Cache,
    eos: F32, points: U8, labels: I32, scores: F32, counts: I64, blocks: I64, sure: F32,
) -> int:  # fmt: skip
    """Label all documents; returns how many blocks were labelled. Arrays as in `Predictor.predict`."""
    keys, sizes, sums = cache.keys, cache.sizes, cache.sums
    block, whole, mean = cache.block, cache.whole, cache.mean
    best, top = layer.best, layer.top
    labelled = 0
    for doc in range(offsets.size - 1):
        at, stop, point = _middle(data, offsets[doc], offsets[doc + 1], max_characters)
        clear(whole)
        clear(block)
        total, size = 0, 0  # features of the text and of the block
        letters, first_point, line_filled = 0, point, False
        all_letters, begin_point, damaged = 0, point, 0
        while at <= stop:
            over = at == stop
            byte = 10 if over else np.int64(data[at])
            if SEPARATOR[byte]:
                at += 1
                point += not over
                if byte == 10:
                    if over or not line_filled or letters >= min_letters:
                        if letters >= min_letters:
                            mean_of(block, size, eos, mean)
                            likeliest(mean, 1, layer)
                            _put(blocks, sure, labelled, doc, best[0], first_point, point, top[0])
                            labelled += 1
                        all_letters += letters
                        if size:
                            add(whole, block)
                            clear(block)
                        total += size
                        size, letters, first_point = 0, 0, point
                    line_filled = False
                continue
            line_filled = True
            start = at
            at, key, more_letters, characters, more_damaged = token(data, at, stop, points)
            letters += more_letters
            damaged += more_damaged
            point += characters
            slot = np.int64(key >> uint64(40)) & (CACHE - 1)
            if keys[slot] != key:
                found = features(data, start, at, key, characters == at - start, given, sums[slot])
                sizes[slot] = max(0, found)
                keys[slot] = key
            add(block, sums[slot])
            size += sizes[slot]
        counts[doc, LETTERS], counts[doc, CHARACTERS], counts[doc, DAMAGED] = all_letters, point - begin_point, damaged
        if all_letters:
            mean_of(whole, total, eos, mean)
            likeliest(mean, 2, layer)
            labels[doc, 0], labels[doc, 1], scores[doc, 0], scores[doc, 1] = best[0], best[1], top[0], top[1]
    return labelled


@njit(inline="always")
def _put(blocks: I64, sure: F32, row: int, doc: int, label: int, start: int, end: int, score: float) -> None:
    blocks[row, 0], blocks[row, 1], blocks[row, 2], blocks[row, 3] = doc, label, start, end
    sure[row] = score


@bare
def _middle(data: U8, start: int, end: int, most: int) -> tuple[int, int, int]:
    """Bytes of the middle `most` code points (0: all), and code points before them."""
    if most == 0 or end - start <= most:
        return start, end, 0
    total = 0
    for at in range(start, end):
        total += data[at] & 0xC0 != 0x80
    skipped = max(0, (total - most) // 2)
    at, passed = start, 0
    while at < end and passed < skipped:
        at += 1
        while at < end and data[at] & 0xC0 == 0x80:
            at += 1
        passed += 1
    stop, passed = at, 0
    while stop < end and passed < most:
        stop += 1
        while stop < end and data[stop] & 0xC0 == 0x80:
            stop += 1
        passed += 1
    return at, stop, skipped


@njit(inline="always")
def mean_of(total: F32, size: int, eos: F32, out: F32) -> None:
    """Put the mean of `size` rows, whose sum is `total`, and of the text's end into `out`."""
    width = out.size
    count = np.float32(size) + eos[width]
    share = np.float32(1.0) / max(count, np.float32(1.0))
    for i in range(width):
        out[i] = (total[i] + eos[i]) * share
