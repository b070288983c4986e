"""fastText scores of whole documents by any supervised model: the likeliest label, and a chosen one's probability.

As `predict`, and word n-grams too (`Dictionary::addWordNgrams`): from each word on, the hashes of the words that
follow, line ends passed over, up to the end of the text, which counts as a word. A text without a letter is scored as
any other. Does not belong here: labels of blocks of lines (`predict`).

Letters: D documents, P padded dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import uint32, uint64

from plinth.compiled import njit
from plinth.errors import RecipeError, SourceError
from plinth.text.fasttext.model_file import EOS, F32, I32, U32, FastTextModel
from plinth.text.fasttext.predict import mean_of
from plinth.text.fasttext.rows import (
    LABEL,
    InputLayer,
    add,
    add_row,
    clear,
    end_row,
    features,
    input_layer,
    kept,
    row_of_ngram,
    with_buffers,
    word_hash,
    word_row,
)
from plinth.text.fasttext.scores import OutputLayer, chance, likeliest, output_layer, with_own_buffers
from plinth.text.fasttext.tokens import SEPARATOR, bare, point_flags, token
from plinth.text.unicode.codepoints import utf8
from plinth.text.words.ngrams import I64, U8, U64

#: Words whose sums are kept, a power of two.
CACHE = 1 << 12
#: Rows that are noted before they are added, so that their reads overlap.
NOTED = 64
_FACTOR = np.uint64(116049371)
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


class _Buffers(NamedTuple):
    """Of recent words, by key (0: free): how many rows they have, the sum of these, the hash; without n-grams of
    characters the word's row instead. Open word n-grams, the newest first; rows noted; sums of some words and all."""

    keys: U64
    found: I64
    hashes: U32
    sums: F32
    open: U64
    noted: I64
    some: F32
    whole: F32
    mean: F32


class DocumentScorer:
    """A model, ready to score documents.

    Args:
        target: the label whose probability is asked for; None: none.

    Raises:
        RecipeError: the model has no such label.
    """

    def __init__(self, model: FastTextModel, target: str | None = None) -> None:
        if target is not None and target not in model.labels:
            raise RecipeError(
                f"the fastText model has no label {target!r}", expected=", ".join(sorted(model.labels)[:20])
            )
        self.model, self.target = model, target
        self._number = -1 if target is None else model.labels.index(target)
        self._input, self._output = input_layer(model), output_layer(model, self._number)
        self._end = end_row(model, self._input)

    def score(self, texts: pa.Array) -> DocumentScores:
        """Labels of texts.

        Raises:
            SourceError: the model gives no numbers.
        """
        data, offsets = utf8(texts)
        docs = offsets.size - 1
        found = DocumentScores(np.full(docs, -1, np.int32), np.zeros(docs, np.float32), np.zeros(docs, np.float32))
        longest = int(np.diff(offsets).max(initial=0))
        fault = _score(
            data, offsets, self.model.word_ngrams, self._number, with_buffers(self._input, longest),
            with_own_buffers(self._output), _buffers(self.model), self._end, point_flags(), found.labels, found.scores,
            found.targets,
        )  # fmt: skip
        if fault >= 0:
            raise SourceError("the fastText model gives no numbers: it is damaged", found=f"NaN for text {fault}")
        return found


def _buffers(model: FastTextModel) -> _Buffers:
    sums = np.zeros((CACHE + 3, model.output.shape[1]), np.float32)
    return _Buffers(
        np.zeros(CACHE, np.uint64), np.zeros(CACHE, np.int64), np.zeros(CACHE, np.uint32), sums[:CACHE],
        np.zeros(max(1, model.word_ngrams), np.uint64), np.zeros(NOTED, np.int64), *sums[CACHE:],
    )  # fmt: skip


@bare
def _score(
    data: U8, offsets: I64, ngram: int, target: int, given: InputLayer, layer: OutputLayer, cache: _Buffers, end: F32,
    points: U8, labels: I32, scores: F32, targets: F32,
) -> int:  # fmt: skip
    """Score all documents; returns the first for which there are no numbers, or -1. Arrays as in `DocumentScores`."""
    last, subwords = word_hash(_EOS, 0, _EOS.size), given.numbers[2] > 0
    for doc in range(offsets.size - 1):
        at, stop = offsets[doc], offsets[doc + 1]
        clear(cache.whole)
        clear(cache.some)
        total, words, noted, depth = 0, 0, 0, 0
        while at < stop:
            if SEPARATOR[data[at]]:
                at += 1
                continue
            start = at
            at, key, _, characters, _ = token(data, at, stop, points)
            slot = np.int64(key >> uint64(40)) & (CACHE - 1)
            if cache.keys[slot] != key:
                if subwords:
                    found = features(data, start, at, key, characters == at - start, given, cache.sums[slot])
                else:
                    found = word_row(data, start, at, key, given)
                cache.found[slot] = found
                cache.hashes[slot] = word_hash(data, start, at)
                cache.keys[slot] = key
            found = cache.found[slot]
            if found == LABEL:
                continue
            if subwords:
                add(cache.some, cache.sums[slot])
                total += found
            elif found >= 0:
                noted = _note(found, noted, given, cache)
                total += 1
            if ngram > 1:
                more, noted = _word_ngrams(cache.hashes[slot], depth, noted, ngram, given, cache)
                total += more
                depth = min(depth + 1, ngram - 1)
            words += 1
            if words & 255 == 0:  # sums of sums: long sums of floats lose digits
                add(cache.whole, cache.some)
                clear(cache.some)
        if ngram > 1:
            more, noted = _word_ngrams(last, depth, noted, ngram, given, cache)
            total += more
        _add_noted(noted, given, cache)
        add(cache.whole, cache.some)
        if total == 0 and end[end.size - 1] == 0:
            continue
        mean_of(cache.whole, total, end, cache.mean)
        likeliest(cache.mean, 1, layer)
        if layer.best[0] < 0 or not np.isfinite(layer.top[0]):
            return doc
        labels[doc], scores[doc] = layer.best[0], layer.top[0]
        if target >= 0:
            targets[doc] = chance(cache.mean, target, layer)
    return -1


@njit(inline="always")
def _word_ngrams(hashed: Any, depth: int, noted: int, ngram: int, given: InputLayer, cache: _Buffers) -> Any:
    """Note the word n-grams that end with a word; returns how many there are, and how many rows are noted."""
    signed = uint64(np.int64(np.int32(hashed)))
    count = 0
    for i in range(depth):
        cache.open[i] = cache.open[i] * _FACTOR + signed
        place = uint32(cache.open[i] % given.numbers[3])
        if kept(place, given.bits):
            noted = _note(row_of_ngram(given, np.int64(place)), noted, given, cache)
            count += 1
    for i in range(min(depth, ngram - 2), 0, -1):
        cache.open[i] = cache.open[i - 1]
    cache.open[0] = signed
    return count, noted


@njit(inline="always")
def _note(row: Any, noted: int, given: InputLayer, cache: _Buffers) -> Any:
    """Note a row; returns how many are noted."""
    if noted == NOTED:
        _add_noted(noted, given, cache)
        noted = 0
    cache.noted[noted] = row
    return noted + 1


@njit(inline="always")
def _add_noted(noted: int, given: InputLayer, cache: _Buffers) -> None:
    for i in range(noted):
        add_row(given, cache.noted[i], cache.some)
