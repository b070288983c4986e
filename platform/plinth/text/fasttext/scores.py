"""Labels from a mean row: down fastText's Huffman tree, by softmax over all labels, or by a logistic function for each.

The products of a mean with the rows of `LANES` nodes are taken at once, so that the processor's vectors are full.
Sums run in one fixed order and the exponential is written out here: the same bits on every machine.

Letters: G groups of `LANES` nodes (inner nodes of the tree from the root on, or labels), P padded dimensions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from plinth.compiled import njit
from plinth.text.fasttext.model_file import F32, HIERARCHICAL, I32, LANES, SOFTMAX, FastTextModel
from plinth.text.fasttext.tokens import bare
from plinth.text.words.ngrams import I64

#: fastText adds this to a probability before the logarithm, so it is the least probability.
FLOOR = 1e-5

_LOG2_E, _LN_2 = np.float32(np.log2(np.e)), np.float32(np.log(2.0))
#: 1/7, 1/6, … 1/2: the Taylor series of e^x, which is cut off below 1e-8 for |x| <= ln(2) / 2.
_S7, _S6, _S5, _S4, _S3, _S2 = (np.float32(1 / n) for n in (7, 6, 5, 4, 3, 2))
_ONE, _HALF = np.float32(1.0), np.float32(0.5)
#: Beyond it a probability is 0 or 1 within far less than `FLOOR`.
_FAR = np.float32(40.0)
#: Fields of `OutputLayer` that are written to.
_BUFFERS = ("dots", "ready", "stack", "heights", "best", "top", "share")
#: fastText reads the logistic function of its binary losses from a table, at the place below: to 0.008 of it.
_STEPS, _LIMIT = 512, 8
_TABLE = (1 / (1 + np.exp(-(np.arange(_STEPS + 1) * 2.0 * _LIMIT / _STEPS - _LIMIT)))).astype(np.float32)


class OutputLayer(NamedTuple):
    """Output rows in the form in which they are multiplied, the tree, and buffers to work in.

    Args:
        nodes: [G, P, LANES].
        left, right: as those of `FastTextModel`.
        size: number of labels, and the loss, [2].
        path: from the root of the tree to one label: places of the nodes, and 1 where it goes to the right, [n, 2].
        dots: products of all nodes with the mean, or their probabilities, [G * LANES].
        ready: number of this prediction, and for each group the last one that computed it, [1 + G].
        stack, heights: nodes still to visit, with their probabilities.
        best, top: the two likeliest labels (-1: none) and their probabilities.
        share: of a softmax, the highest product and the sum of the exponentials beside it, [2].
    """

    nodes: F32
    left: I32
    right: I32
    size: I64
    path: I64
    dots: F32
    ready: I64
    stack: I64
    heights: F32
    best: I32
    top: F32
    share: npt.NDArray[np.float64]


def output_layer(model: FastTextModel, target: int = -1) -> OutputLayer:
    """The output side of a model, with buffers for one caller at a time.

    Args:
        target: the label that `chance` is asked for; -1: none.
    """
    labels = len(model.labels)
    rows = model.output[: labels - 1][::-1] if model.loss == HIERARCHICAL else model.output[:labels]
    groups = -(-rows.shape[0] // LANES)
    nodes = np.zeros((groups * LANES, rows.shape[1]), np.float32)
    nodes[: rows.shape[0]] = rows
    nodes = np.ascontiguousarray(nodes.reshape(groups, LANES, -1).transpose(0, 2, 1))
    return OutputLayer(
        nodes, model.left, model.right, np.array([labels, model.loss]), _path(model, target),
        np.zeros(groups * LANES, np.float32), np.zeros(1 + groups, np.int64), np.zeros(4 * labels + 8, np.int64),
        np.zeros(4 * labels + 8, np.float32), np.zeros(2, np.int32), np.zeros(2, np.float32), np.zeros(2),
    )  # fmt: skip


def _path(model: FastTextModel, target: int) -> I64:
    if target < 0 or model.loss != HIERARCHICAL:
        return np.zeros((0, 2), np.int64)
    above = {int(child): node for node, pair in enumerate(zip(model.left, model.right, strict=True)) for child in pair}
    root, node, steps = model.left.size - 1, target, list[tuple[int, int]]()
    while node != root:
        steps.append((root - above[node], int(model.right[above[node]] == node)))
        node = above[node]
    return np.array(steps[::-1], np.int64).reshape(-1, 2)


def with_own_buffers(made: OutputLayer) -> OutputLayer:
    """The same model, with buffers for another caller."""
    return made._replace(**{name: getattr(made, name).copy() for name in _BUFFERS})


# Slices, and numpy's division: without checks these loops vectorise.
@bare
def _products(nodes: F32, mean: F32, dots: F32) -> None:
    """Products of the mean [P] with the rows of one group [P, LANES], into [LANES]."""
    for lane in range(LANES):
        dots[lane] = 0.0
    for tile in range(0, mean.size, LANES):
        part, rows = mean[tile : tile + LANES], nodes[tile : tile + LANES]
        for lane in range(LANES):
            total = dots[lane]
            for i in range(0, LANES, 4):  # not one by one: an addition waits for the one before it
                total += (part[i] * rows[i, lane] + part[i + 1] * rows[i + 1, lane]) + (
                    part[i + 2] * rows[i + 2, lane] + part[i + 3] * rows[i + 3, lane]
                )
            dots[lane] = total


@bare
def _sigmoids(dots: F32) -> None:
    """1 / (1 + e^-x) of one group, in place: e^x is 2^k e^r with |r| <= ln(2) / 2."""
    for lane in range(LANES):
        value = -dots[lane]
        value = value if value < _FAR else _FAR
        value = value if value > -_FAR else -_FAR
        power = np.floor(value * _LOG2_E + _HALF)
        r = value - power * _LN_2
        series = _ONE + r * (_ONE + r * _S2 * (_ONE + r * _S3 * (_ONE + r * _S4 * (_ONE + r * _S5 * (
            _ONE + r * _S6 * (_ONE + r * _S7))))))  # fmt: skip
        scale = np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)
        dots[lane] = _ONE / (_ONE + series * scale)


@bare
def likeliest(mean: F32, most: int, layer: OutputLayer) -> None:
    """The `most` (1 or 2) likeliest labels into `layer.best`, their probabilities into `layer.top`.

    In a tree, branches below the last place, or below fastText's own floor of 1e-5, are not entered.
    """
    best, top, dots, ready = layer.best, layer.top, layer.dots, layer.ready
    best[0], best[1], top[0], top[1] = -1, -1, 0.0, 0.0
    if layer.size[1] == SOFTMAX:
        _softmax(mean, most, layer)
        return
    if layer.size[1] != HIERARCHICAL:
        _binary(mean, most, layer)
        return
    left, right, stack, heights = layer.left, layer.right, layer.stack, layer.heights
    ready[0] += 1
    root = left.size - 1
    stack[0], heights[0] = root, 1.0
    depth = 1
    while depth:
        depth -= 1
        node, score = stack[depth], heights[depth]
        while score >= FLOOR and score >= top[most - 1]:
            if left[node] < 0:
                _rank(node, score, most, best, top)
                break
            place = root - node
            _at_node(mean, place, layer)
            chosen = np.float64(dots[place])
            # fastText adds log(x + 1e-5): the product of the same numbers
            no, yes = np.float32(score * (1.0 - chosen + FLOOR)), np.float32(score * (chosen + FLOOR))
            # the likelier side is visited first: it raises the bound for the other
            stack[depth], heights[depth] = (left[node], no) if yes >= no else (right[node], yes)
            depth += 1
            node, score = (right[node], yes) if yes >= no else (left[node], no)
    for place in range(2):
        top[place] = min(np.float32(1.0), top[place])


@njit(inline="always")
def _at_node(mean: F32, place: Any, layer: OutputLayer) -> None:
    """Have the probability of a node of the tree in `layer.dots`."""
    group = place // LANES
    if layer.ready[1 + group] != layer.ready[0]:
        part = layer.dots[group * LANES : (group + 1) * LANES]
        _products(layer.nodes[group], mean, part)
        _sigmoids(part)
        layer.ready[1 + group] = layer.ready[0]


@njit(inline="always")
def _rank(label: int, score: Any, most: int, best: I32, top: F32) -> None:
    if score > top[0]:
        if most > 1:
            best[1], top[1] = best[0], top[0]
        best[0], top[0] = label, score
    elif most > 1 and score > top[1]:
        best[1], top[1] = label, score


@bare
def _softmax(mean: F32, most: int, layer: OutputLayer) -> None:
    best, top, dots = layer.best, layer.top, layer.dots
    highest = np.float32(-np.inf)
    top[0], top[1] = -np.inf, -np.inf
    _all_products(mean, layer)
    for label in range(layer.size[0]):
        highest = max(highest, dots[label])
        _rank(label, dots[label], most, best, top)
    total = 0.0
    for label in range(layer.size[0]):
        total += np.exp(np.float64(dots[label] - highest))
    layer.share[0], layer.share[1] = highest, total
    for place in range(2):
        share = np.exp(np.float64(top[place] - highest)) / total + FLOOR
        top[place] = min(1.0, share) if best[place] >= 0 else 0.0


@njit(inline="always")
def _all_products(mean: F32, layer: OutputLayer) -> None:
    for group in range(layer.nodes.shape[0]):
        _products(layer.nodes[group], mean, layer.dots[group * LANES : (group + 1) * LANES])


@bare
def _binary(mean: F32, most: int, layer: OutputLayer) -> None:
    """One logistic function for each label. Of equal ones fastText keeps the last; its table makes many equal."""
    best, top, dots = layer.best, layer.top, layer.dots
    top[0], top[1] = -1.0, -1.0
    _all_products(mean, layer)
    for label in range(layer.size[0] - 1, -1, -1):
        dots[label] = _logistic(dots[label])
        _rank(label, dots[label], most, best, top)
    for place in range(2):
        top[place] = min(1.0, top[place] + FLOOR) if best[place] >= 0 else 0.0


@njit(inline="always")
def _logistic(x: Any) -> Any:
    if not x >= -_LIMIT:  # also for what is no number
        return np.float32(0.0)
    if x > _LIMIT:
        return np.float32(1.0)
    return _TABLE[np.int64((x + np.float32(_LIMIT)) * np.float32(_STEPS) / np.float32(_LIMIT) / np.float32(2.0))]


@bare
def chance(mean: F32, target: int, layer: OutputLayer) -> float:
    """Probability of the layer's target, after `likeliest` of the same mean; 0 below fastText's floor of 1e-5."""
    if layer.size[1] == SOFTMAX:
        share = np.exp(np.float64(layer.dots[target]) - layer.share[0]) / layer.share[1]
        return float(min(1.0, share + FLOOR))
    if layer.size[1] != HIERARCHICAL:
        return float(min(1.0, np.float64(layer.dots[target]) + FLOOR))
    score = np.float32(1.0)
    for step in range(layer.path.shape[0]):
        place = layer.path[step, 0]
        _at_node(mean, place, layer)
        chosen = np.float64(layer.dots[place])
        score = np.float32(score * ((chosen if layer.path[step, 1] else 1.0 - chosen) + FLOOR))
    return float(min(1.0, np.float64(score))) if score >= FLOOR else 0.0
