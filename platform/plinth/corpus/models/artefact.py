"""Files of a trained classifier (`model.json`, `table.npy`; for the second stage `nodes.npy`, `starts.npy`), and the
code that evaluates the classifier: calibration of margins to probabilities, and trees over a few features.

Files are plain arrays and JSON. The same model always has the same bytes, and reading a model runs no code.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.errors import IntegrityError
from plinth.records import Frozen, Part
from plinth.storage.store import Store
from plinth_text import scoring
from plinth_text.arrays import F32, F64, I32, I64
from plinth_text.compiled import compiled
from plinth_text.libm import exp, log, log1p

# Probabilities from margins, and their quality.
#
# Calibration: Platt's logistic curve, or a monotone staircase (isotonic regression). Quality: ranking (AUC, average
# precision) and calibration (Brier score, calibration error).

# From margins to probabilities: Platt's logistic curve, or a monotone staircase (isotonic regression).
#
# Letters: N documents. Fitted on documents that the model was not trained on.

Method = Literal["platt", "isotonic"]

_STEPS, _ENOUGH = 100, 1e-10


class Curve(Frozen):
    """Calibration curve from margins to probabilities. The curve is either logistic, or linear between knots and
    constant outside them.

    Args:
        slope, intercept: parameters of Platt's curve, 1 / (1 + exp(-(slope x + intercept))).
        knots, values: knots of an isotonic curve and their probabilities; empty for Platt's curve.
    """

    slope: float = 1.0
    intercept: float = 0.0
    knots: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def __call__(self, margins: F64) -> F64:
        """Return the probability of each margin, [N]."""
        if self.knots:
            return np.asarray(np.interp(margins, self.knots, self.values))
        return sigmoid(self.slope * margins + self.intercept)


def sigmoid(x: F64) -> F64:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return exp(-np.logaddexp(0.0, -x))


def fit_curve(method: Method, margins: F64, truth: npt.NDArray[Any], weights: F64) -> Curve:
    """Fit a calibration curve with the method `platt` or `isotonic`."""
    return platt(margins, truth, weights) if method == "platt" else isotonic(margins, truth, weights)


def platt(margins: F64, truth: npt.NDArray[Any], weights: F64) -> Curve:
    """Fit Platt's sigmoid (1999), with targets inside (0, 1), by Newton's method with step halving (Lin, Lin and Weng
    2007). The slope is never negative, so the curve does not change the order of documents. If the margins do not
    predict the class, the curve is flat.

    BLAS is not used, because its order of summation depends on the processor and the curve is part of a data version.
    """
    high, low = weights[truth == 1].sum(), weights[truth == 0].sum()
    target = np.where(truth == 1, (high + 1) / (high + 2), 1 / (low + 2))
    scale = max(float(np.sqrt(np.average(margins**2, weights=weights))), 1e-12)
    x, beta = margins / scale, np.array([0.0, math.log((high + 1) / (low + 1))])
    loss = _loss(beta, x, target, weights)
    for _ in range(_STEPS):
        p = sigmoid(beta[0] * x + beta[1])
        slopes, curvatures = weights * (p - target), weights * p * (1 - p)
        gradient = (slopes * x).sum(), slopes.sum()
        a, b, d = (curvatures * x * x).sum() + 1e-9, (curvatures * x).sum(), curvatures.sum() + 1e-9
        step = np.array([d * gradient[0] - b * gradient[1], a * gradient[1] - b * gradient[0]]) / (a * d - b * b)
        size = 1.0
        while size > 1e-6 and (new := _loss(beta - size * step, x, target, weights)) > loss:
            size /= 2
        if size <= 1e-6 or loss - new < _ENOUGH * abs(loss):
            break
        beta, loss = beta - size * step, new
    return Curve(slope=max(float(beta[0]) / scale, 0.0), intercept=float(beta[1]))


def _loss(beta: F64, x: F64, target: F64, weights: F64) -> float:
    z = beta[0] * x + beta[1]
    return float((weights * (np.logaddexp(0.0, z) - target * z)).sum())


def isotonic(margins: F64, truth: npt.NDArray[Any], weights: F64) -> Curve:
    """Fit the nondecreasing curve with the least squared error, by pooling steps that would decrease (Ayer et al.
    1955). Each knot is at the mean margin of its pooled documents. Values between knots are interpolated, so that few
    documents have equal probabilities."""
    levels, place = np.unique(margins, return_inverse=True)
    pools: list[list[float]] = []  # sum of weights, of weighted truth, of weighted margins
    weight = np.bincount(place, weights)
    for x, w, y in zip(levels, weight, np.bincount(place, weights * truth), strict=True):
        pools.append([float(w), float(y), float(w * x)])
        while len(pools) > 1 and pools[-2][1] * pools[-1][0] >= pools[-1][1] * pools[-2][0]:
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    knots = tuple(x / w for w, _, x in pools)
    return Curve(knots=knots, values=tuple(y / w for w, y, _ in pools))


# Quality of probabilities: ranking (AUC, average precision) and calibration (Brier score, calibration error).
#
# Letters: N documents. Truth is 0 or 1; weights count a document more than once, or less.

#: Bins of the calibration error, as in Guo et al. 2017.
ECE_BINS = 15


def auc(truth: npt.NDArray[Any], scores: F64, weights: F64) -> float:
    """Return the probability that a positive document has a higher score than a negative document; equal scores count
    half (Mann and Whitney 1947).

    Raises:
        ValueError: one of the two classes has no documents.
    """
    _, place = np.unique(scores, return_inverse=True)
    good = np.bincount(place, weights * (truth == 1))
    bad = np.bincount(place, weights * (truth == 0))
    if not good.sum() or not bad.sum():
        raise ValueError("documents of both classes are needed")
    below = np.cumsum(bad) - bad
    return float((good * (below + bad / 2)).sum() / (good.sum() * bad.sum()))


def average_precision(truth: npt.NDArray[Any], scores: F64, weights: F64) -> float:
    """Return the area under the precision-recall curve as a sum of steps, without interpolation (see Davis and Goadrich
    2006).

    Raises:
        ValueError: there are no positive documents.
    """
    _, place = np.unique(-scores, return_inverse=True)
    hits = np.cumsum(np.bincount(place, weights * (truth == 1)))
    seen = np.cumsum(np.bincount(place, weights))
    if not hits[-1]:
        raise ValueError("positive documents are needed")
    return float((np.diff(hits, prepend=0.0) * hits / seen).sum() / hits[-1])


def brier(truth: npt.NDArray[Any], probabilities: F64, weights: F64) -> float:
    """Return the mean squared difference between predicted probability and true class (Brier 1950)."""
    return float(np.average((probabilities - truth) ** 2, weights=weights))


def calibration_error(truth: npt.NDArray[Any], probabilities: F64, weights: F64, bins: int = ECE_BINS) -> float:
    """Return the expected calibration error: the difference between the mean probability and the share of positive
    documents in each of several bins of equal width, averaged by the weight of the bins (Naeini et al. 2015; Guo et al.
    2017)."""
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    said = np.bincount(place, weights * probabilities, bins)
    true = np.bincount(place, weights * truth, bins)
    return float(np.abs(said - true).sum() / weights.sum())


def log_loss(truth: npt.NDArray[Any], probabilities: F64, weights: F64) -> float:
    """Return the mean negative log likelihood in nats. Probabilities are clipped to [1e-12, 1 - 1e-12]."""
    p = np.clip(probabilities, 1e-12, 1 - 1e-12)
    return float(-np.average(np.where(truth == 1, log(p), log1p(-p)), weights=weights))


def balanced(labels: npt.NDArray[Any], classes: int) -> F64:
    """Return one weight per document, such that every class has the same total weight and all weights add up to N."""
    found = np.bincount(labels, minlength=classes)
    share: F64 = np.divide(len(labels), found * np.count_nonzero(found), out=np.zeros(classes), where=found > 0)
    return np.asarray(share[labels])


def quality(truth: npt.NDArray[Any], probabilities: F64, weights: F64) -> dict[str, float]:
    """Return all quality measures of a classifier by their names in statistics. Values are rounded, so that they do not
    depend on the order of summation."""
    measured = {
        "auc": auc(truth, probabilities, weights),
        "average_precision": average_precision(truth, probabilities, weights),
        "brier": brier(truth, probabilities, weights),
        "ece": calibration_error(truth, probabilities, weights),
    }
    return {name: round(value, 6) for name, value in measured.items()}


# Gradient-boosted trees over a few numbers: fitted by scikit-learn, kept as arrays, evaluated by a kernel.
#
# scikit-learn's histogram boosting (after LightGBM: Ke et al. 2017) fits on one thread, since its sums depend on their
# number. Nothing of it is needed to read a model, and nothing is ever unpickled.
#
# Letters: D documents, N features, T trees, M nodes of all of them.

#: One node: go left where `feature <= threshold`; a leaf has no children and adds `value`.
NODE = np.dtype([("feature", "<i4"), ("left", "<i4"), ("right", "<i4"), ("threshold", "<f8"), ("value", "<f8")])
_FIELDS = ("feature", "left", "right", "threshold", "value")

ITERATIONS, LEAVES, RATE, L2, MIN_LEAF, SEED = 120, 12, 0.08, 1.0, 15, 0


@dataclass(frozen=True)
class Forest:
    """Boosted trees: their nodes [M], the first node of each tree [T + 1], and the base margin."""

    nodes: npt.NDArray[Any]
    starts: I64
    base: float

    def margins(self, features: F32) -> F64:
        """Return the margin of every document, [D]: the base margin plus the sum of all trees."""
        out = np.full(len(features), self.base)
        if len(features):
            feature, left, right, threshold, value = (np.ascontiguousarray(self.nodes[name]) for name in _FIELDS)
            add_margins(
                features.astype(np.float64, order="C"), feature, left, right, threshold, value, self.starts, out
            )
        return out


def fit_trees(features: F32, truth: I64, weights: F64) -> Forest:
    """Fit boosted trees that separate positive from negative documents by logistic loss. The margin is the log odds.

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
    """Return the trees of a fitted model as arrays. scikit-learn does not document the layout that is read here, so a
    test compares the arrays with `decision_function`."""
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
    """Return the first defect of a forest that was read from a file, or None if the forest is valid. In a valid forest,
    every walk from a root ends and stays inside the arrays."""
    nodes, starts = forest.nodes, forest.starts
    size = len(nodes)
    if starts.ndim != 1 or starts.size < 1 or starts[0] != 0 or starts[-1] != size or (np.diff(starts) <= 0).any():
        return "the trees do not fill the nodes"
    inner = (nodes["left"] >= 0) | (nodes["right"] >= 0)
    at = np.flatnonzero(inner)
    for side in ("left", "right"):
        if (nodes[side][at] <= at).any() or (nodes[side][at] >= size).any():
            return "a node's child does not come after the node"
    if (nodes["feature"] < 0).any() or (nodes["feature"] >= features).any():
        return f"a node reads a feature beyond {features}"
    if not (np.isfinite(nodes["value"]).all() and np.isfinite(forest.base) and not np.isnan(nodes["threshold"]).any()):
        return "a value is not finite"
    return None


@compiled
def add_margins(
    features: F64, feature: I32, left: I32, right: I32, threshold: F64, value: F64, starts: I64,
    out: F64,
) -> None:  # fmt: skip
    """Add the sum of all trees to `out`, for every document."""

#: Raised when files of an older version would be read wrongly, or features mean something else.
FORMAT = "plinth-linear/1"
HEAD, TABLE, NODES, STARTS = "model.json", "table.npy", "nodes.npy", "starts.npy"


class Second(Frozen):
    """Second stage of a classifier: the names of its features, and the calibration of its margins."""

    features: tuple[str, ...]
    base: float
    curve: Curve


class Head(Frozen):
    """All data of a classifier except its arrays."""

    format: str
    kind: str
    labels: tuple[str, ...] = Field(min_length=1)
    bits: int = Field(ge=8, le=26)
    window: int = Field(ge=0)
    bias: tuple[float, ...]
    curves: tuple[Curve, ...]
    band: tuple[float, float]
    second: Second | None = None
    lexicon: str | None = None


@dataclass(frozen=True)
class ClassifierModel:
    """Loaded classifier."""

    head: Head
    table: F32
    forest: Forest | None = None

    def probabilities(self, texts: pa.Array) -> tuple[F64, F64]:
        """Return the calibrated probabilities and raw margins of the first stage, [documents, labels] each."""
        margins = scoring.margins(texts, self.table, np.array(self.head.bias, np.float32), self.head.window)
        columns = [curve(margins[:, k]) for k, curve in enumerate(self.head.curves)]
        return np.stack(columns, axis=1), margins

    def second(self, margins: F64, look: F32) -> F64:
        """Return the probability of each document according to the second stage.

        Args:
            margins: margins of the first stage, [documents].
            look: features of the texts from `examples.second_look`.

        Raises:
            ValueError: the model has no second stage, or its second stage has a different number of features.
        """
        if self.forest is None or self.head.second is None:
            raise ValueError("the model has no second stage")
        given = second_features(margins, look)
        if given.shape[1] != len(self.head.second.features):
            raise ValueError(f"{given.shape[1]} features, expected {len(self.head.second.features)}")
        return self.head.second.curve(self.forest.margins(given))


def second_features(margins: F64, look: F32) -> F32:
    """Return the features of the second stage, [documents, 1 + N]: the margin of the first stage, and the features of
    the text."""
    return np.concatenate([margins.astype(np.float32)[:, None], look], axis=1)


def second_names(more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the second stage's features. `more` contains the names of a lexicon's features."""
    return ("margin", *scoring.NAMES, *more)


def write(store: Store, model: ClassifierModel) -> tuple[Part, ...]:
    """Write the files of a classifier as parts."""
    arrays: dict[str, npt.NDArray[Any]] = {TABLE: model.table}
    if model.forest is not None:
        arrays |= {NODES: model.forest.nodes, STARTS: model.forest.starts}
    head = Part(name=HEAD, blob=store.put_bytes(fingerprint.canonical(model.head)))
    return (head, *(Part(name=name, blob=store.put_bytes(_npy(array))) for name, array in arrays.items()))


def read(files: Mapping[str, Path], key: str, kind: str) -> ClassifierModel:
    """Read a classifier from its files.

    Args:
        key: name of the asset (`models/NAME`), for error messages.
        kind: required kind of model.

    Raises:
        IntegrityError: the model has a different version or kind, a file is missing, or the files do not match.
    """
    try:
        raw = json.loads(files[HEAD].read_bytes())
        if not isinstance(raw, dict) or raw.get("format") != FORMAT or raw.get("kind") != kind:
            found = f"{raw.get('kind')}, {raw.get('format')}" if isinstance(raw, dict) else type(raw).__name__
            raise _refused(key, found, f"{kind}, {FORMAT}")
        head = Head.model_validate_json(files[HEAD].read_bytes())
        table = np.load(files[TABLE], allow_pickle=False)
        forest = _forest(files, head)
    except KeyError as error:
        raise _refused(key, f"no file {error.args[0]}", f"{HEAD}, {TABLE} and the files that they name") from error
    except (ValueError, OSError, EOFError, ValidationError) as error:
        raise _refused(key, error, f"a model of kind {kind}, {FORMAT}") from error
    _require(key, head, table, forest)
    return ClassifierModel(head, table, forest)


def _forest(files: Mapping[str, Path], head: Head) -> Forest | None:
    if head.second is None:
        return None
    nodes, starts = (np.load(files[name], allow_pickle=False) for name in (NODES, STARTS))
    return Forest(nodes, starts, head.second.base)


def _require(key: str, head: Head, table: npt.NDArray[Any], forest: Forest | None) -> None:
    outputs = len(head.labels)
    shape = (1 << head.bits, outputs)
    if table.dtype != np.float32 or table.shape != shape or not np.isfinite(table).all():
        raise _refused(key, f"a table {table.shape} of {table.dtype}", f"finite float32 {shape}")
    if len(head.bias) != outputs or len(head.curves) != outputs:
        raise _refused(key, f"{len(head.bias)} biases, {len(head.curves)} curves", f"{outputs} of each")
    if forest is not None and head.second is not None:
        fault = "nodes of another type" if forest.nodes.dtype != NODE else problem(forest, len(head.second.features))
        if fault:
            raise _refused(key, fault, "valid trees")


def _refused(key: str, found: object, expected: object) -> IntegrityError:
    return IntegrityError(
        f"{key} cannot be used",
        found=found,
        expected=expected,
        remedy=f"train the model again: `plinth run --select {key}`",
    )


def _npy(array: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
