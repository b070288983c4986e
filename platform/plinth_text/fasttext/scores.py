"""The output side of a model as arrays for the kernels of `predict` and `documents`: label tree or rows of labels.

Letters: G groups of `LANES` nodes (inner nodes of the tree from the root on, or labels), P padded dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plinth_text.arrays import F32, I32, I64
from plinth_text.compiled import compiled
from plinth_text.fasttext.model_file import HIERARCHICAL, LANES, FastTextModel


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
    """The output side of a model.

    Args:
        target: the label whose probability is asked for; -1: none.
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
    """1 / (1 + e^-x) of groups of `LANES` numbers, in place, as the tree's nodes have it."""
