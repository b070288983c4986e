"""Labels from a mean row: down fastText's Huffman tree, or by softmax over all labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from plinth.text.fasttext_file import F32, I32
from plinth.text.ngrams import I64

#: What fastText adds to a probability before it takes the logarithm, and so its least probability.
FLOOR = 1e-5


@njit(inline="always")
def _dot(one: Any, other: Any) -> Any:
    total = np.float32(0.0)
    for i in range(one.size):
        total += one[i] * other[i]
    return total


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def likeliest(
    mean: F32, output: F32, left: I32, right: I32, most: int, stack: I64, heights: F32, best: I32, top: F32
) -> None:
    """The `most` (1 or 2) likeliest labels into `best`, their probabilities into `top`; -1 and 0 where none is.

    In a tree, branches below the last place, or below fastText's own floor of 1e-5, are not entered.
    """
    best[:], top[:] = -1, 0.0
    if left.size == 0:
        _softmax(mean, output, most, best, top)
        return
    leaves = (left.size + 1) // 2
    stack[0], heights[0] = left.size - 1, 1.0
    depth = 1
    while depth:
        depth -= 1
        node, score = stack[depth], heights[depth]
        while score >= FLOOR and score >= top[most - 1]:
            if left[node] < 0:
                _rank(node, score, most, best, top)
                break
            chance = 1.0 / (1.0 + np.exp(-np.float64(_dot(mean, output[node - leaves]))))
            # fastText adds log(x + 1e-5): the product of the same numbers
            no, yes = np.float32(score * (1.0 - chance + FLOOR)), np.float32(score * (chance + FLOOR))
            # the likelier side first: it raises the bar for the other
            stack[depth], heights[depth] = (left[node], no) if yes >= no else (right[node], yes)
            depth += 1
            node, score = (right[node], yes) if yes >= no else (left[node], no)
    for place in range(2):
        top[place] = min(np.float32(1.0), top[place])


@njit(inline="always")
def _rank(label: int, score: float, most: int, best: I32, top: F32) -> None:
    if score > top[0]:
        if most > 1:
            best[1], top[1] = best[0], top[0]
        best[0], top[0] = label, score
    elif most > 1 and score > top[1]:
        best[1], top[1] = label, score


@njit(nogil=True, cache=True)
def _softmax(mean: F32, output: F32, most: int, best: I32, top: F32) -> None:
    highest = np.float32(-np.inf)
    top[:] = -np.inf
    for label in range(output.shape[0]):
        score = _dot(mean, output[label])
        highest = max(highest, score)
        _rank(label, score, most, best, top)
    total = 0.0
    for label in range(output.shape[0]):
        total += np.exp(np.float64(_dot(mean, output[label]) - highest))
    for place in range(2):
        share = np.exp(np.float64(top[place] - highest)) / total + FLOOR
        top[place] = min(1.0, share) if best[place] >= 0 else 0.0
