"""Gradient-boosted trees over a few numbers: fitted by scikit-learn, kept as arrays, evaluated by a kernel.

scikit-learn's histogram boosting (after LightGBM: Ke et al. 2017) fits on one thread, since its sums depend on their
number. Nothing of it is needed to read a model, and nothing is ever unpickled.

Letters: D documents, N features, T trees, M nodes of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth_text.arrays import F32, F64, I32, I64
from plinth_text.compiled import compiled

#: One node: go left where `feature <= threshold`; a leaf has no children and adds `value`.
NODE = np.dtype([("feature", "<i4"), ("left", "<i4"), ("right", "<i4"), ("threshold", "<f8"), ("value", "<f8")])
_FIELDS = ("feature", "left", "right", "threshold", "value")

ITERATIONS, LEAVES, RATE, L2, MIN_LEAF, SEED = 120, 12, 0.08, 1.0, 15, 0


@dataclass(frozen=True)
class Forest:
    """Nodes [M] of all trees, where each begins, [T + 1], and the margin they add to."""

    nodes: npt.NDArray[Any]
    starts: I64
    base: float

    def margins(self, features: F32) -> F64:
        """The sum of all trees for every document, [D]."""
        out = np.full(len(features), self.base)
        if len(features):
            feature, left, right, threshold, value = (np.ascontiguousarray(self.nodes[name]) for name in _FIELDS)
            add_margins(
                features.astype(np.float64, order="C"), feature, left, right, threshold, value, self.starts, out
            )
        return out


def fit(features: F32, truth: I64, weights: F64) -> Forest:
    """Trees that separate true documents from false ones by logistic loss; the margin is log odds.

    Args:
        features: [D, N], finite.
        truth: [D], zeros and ones, both present.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    model = HistGradientBoostingClassifier(
        max_iter=ITERATIONS, max_leaf_nodes=LEAVES, learning_rate=RATE, l2_regularization=L2,
        min_samples_leaf=MIN_LEAF, early_stopping=False, random_state=SEED,
    )  # fmt: skip
    with threadpool_limits(limits=1):
        model.fit(features.astype(np.float64), truth, sample_weight=weights)
    return _exported(model)


def _exported(model: Any) -> Forest:
    """A fitted model as arrays; its layout is scikit-learn's own, which a test compares with `decision_function`."""
    trees = [stage[0].nodes for stage in model._predictors]
    starts = np.concatenate([[0], np.cumsum([len(tree) for tree in trees])]).astype(np.int64)
    nodes = np.zeros(int(starts[-1]), dtype=NODE)
    for tree, start in zip(trees, starts[:-1], strict=True):
        own, leaf = nodes[start : start + len(tree)], tree["is_leaf"].astype(bool)
        own["feature"] = np.where(leaf, 0, tree["feature_idx"])
        own["threshold"] = np.where(leaf, 0.0, tree["num_threshold"])
        own["value"] = np.where(leaf, tree["value"], 0.0)
        for side in ("left", "right"):
            own[side] = np.where(leaf, -1, tree[side].astype(np.int64) + start)
    return Forest(nodes, starts, float(np.ravel(model._baseline_prediction)[0]))


def problem(forest: Forest, features: int) -> str | None:
    """The fault of a forest read from a file, or None: no walk through it may leave the arrays or never end."""
    nodes, starts = forest.nodes, forest.starts
    size = len(nodes)
    if starts.ndim != 1 or starts.size < 1 or starts[0] != 0 or starts[-1] != size or (np.diff(starts) <= 0).any():
        return "the trees do not fill the nodes"
    inner = (nodes["left"] >= 0) | (nodes["right"] >= 0)
    at = np.flatnonzero(inner)
    for side in ("left", "right"):
        if (nodes[side][at] <= at).any() or (nodes[side][at] >= size).any():
            return "a node's child does not come after it"
    if (nodes["feature"] < 0).any() or (nodes["feature"] >= features).any():
        return f"a node looks at a feature beyond {features}"
    if not (np.isfinite(nodes["value"]).all() and np.isfinite(forest.base) and not np.isnan(nodes["threshold"]).any()):
        return "a value is not finite"
    return None


@compiled
def add_margins(
    features: F64, feature: I32, left: I32, right: I32, threshold: F64, value: F64, starts: I64,
    out: F64,
) -> None:  # fmt: skip
    """Add the sum of all trees for every document to `out`."""
