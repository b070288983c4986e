"""Probabilities from margins, and their quality.

Calibration: Platt's logistic curve, or a monotone staircase (isotonic regression). Quality: ranking (AUC, average
precision) and calibration (Brier score, calibration error).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from plinth.records import Frozen
from plinth_text.arrays import F64

# From margins to probabilities: Platt's logistic curve, or a monotone staircase (isotonic regression).
#
# Letters: N documents. Fitted on documents that the model was not trained on.

Method = Literal["platt", "isotonic"]

_STEPS, _ENOUGH = 100, 1e-10


class Curve(Frozen):
    """Probabilities at margins, straight lines between them, constant outside; or the logistic curve.

    Args:
        slope, intercept: of Platt's curve, 1 / (1 + exp(-(slope x + intercept))).
        knots, values: of the staircase; Platt's curve has none.
    """

    slope: float = 1.0
    intercept: float = 0.0
    knots: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def __call__(self, margins: F64) -> F64:
        """Probabilities, [N]."""
        if self.knots:
            return np.asarray(np.interp(margins, self.knots, self.values))
        return sigmoid(self.slope * margins + self.intercept)


def sigmoid(x: F64) -> F64:
    """1 / (1 + exp(-x)) without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


def fit(method: Method, margins: F64, truth: npt.NDArray[Any], weights: F64) -> Curve:
    """The curve of a method."""
    return platt(margins, truth, weights) if method == "platt" else isotonic(margins, truth, weights)


def platt(margins: F64, truth: npt.NDArray[Any], weights: F64) -> Curve:
    """Platt 1999, with his targets that are never quite 0 or 1, by Newton's method with halved steps (Lin, Lin and
    Weng 2007). The slope never turns the order of documents around: a model without any skill gets a flat curve."""
    high, low = weights[truth == 1].sum(), weights[truth == 0].sum()
    target = np.where(truth == 1, (high + 1) / (high + 2), 1 / (low + 2))
    scale = max(float(np.sqrt(np.average(margins**2, weights=weights))), 1e-12)
    x = np.stack([margins / scale, np.ones_like(margins)])
    beta = np.array([0.0, float(np.log((high + 1) / (low + 1)))])
    loss = _loss(beta, x, target, weights)
    for _ in range(_STEPS):
        p = sigmoid(beta @ x)
        gradient = x @ (weights * (p - target))
        hessian = (x * (weights * p * (1 - p))) @ x.T + 1e-9 * np.eye(2)
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while size > 1e-6 and (new := _loss(beta - size * step, x, target, weights)) > loss:
            size /= 2
        if size <= 1e-6 or loss - new < _ENOUGH * abs(loss):
            break
        beta, loss = beta - size * step, new
    return Curve(slope=max(float(beta[0]) / scale, 0.0), intercept=float(beta[1]))


def _loss(beta: F64, x: F64, target: F64, weights: F64) -> float:
    z = beta @ x
    return float((weights * (np.logaddexp(0.0, z) - target * z)).sum())


def isotonic(margins: F64, truth: npt.NDArray[Any], weights: F64) -> Curve:
    """Least squares among curves that never fall: neighbours that would are pooled (Ayer et al. 1955). Every step
    stands at the mean margin of its documents, with lines between, so that few documents tie."""
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
    """Chance that a true document scores above a false one, ties counted half (Mann and Whitney 1947).

    Raises:
        ValueError: there are no documents of one truth.
    """
    _, place = np.unique(scores, return_inverse=True)
    good = np.bincount(place, weights * (truth == 1))
    bad = np.bincount(place, weights * (truth == 0))
    if not good.sum() or not bad.sum():
        raise ValueError("both truths are needed")
    below = np.cumsum(bad) - bad
    return float((good * (below + bad / 2)).sum() / (good.sum() * bad.sum()))


def average_precision(truth: npt.NDArray[Any], scores: F64, weights: F64) -> float:
    """Area under the curve of precision over recall as a sum of steps, no line drawn between them (Davis and
    Goadrich 2006 show why).

    Raises:
        ValueError: there are no true documents.
    """
    _, place = np.unique(-scores, return_inverse=True)
    hits = np.cumsum(np.bincount(place, weights * (truth == 1)))
    seen = np.cumsum(np.bincount(place, weights))
    if not hits[-1]:
        raise ValueError("true documents are needed")
    return float((np.diff(hits, prepend=0.0) * hits / seen).sum() / hits[-1])


def brier(truth: npt.NDArray[Any], probabilities: F64, weights: F64) -> float:
    """Mean squared distance of probability and truth (Brier 1950)."""
    return float(np.average((probabilities - truth) ** 2, weights=weights))


def calibration_error(truth: npt.NDArray[Any], probabilities: F64, weights: F64, bins: int = ECE_BINS) -> float:
    """Expected calibration error: distance of mean probability and share of true documents in bins of equal width,
    averaged by their weight (Naeini et al. 2015; Guo et al. 2017)."""
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    said = np.bincount(place, weights * probabilities, bins)
    true = np.bincount(place, weights * truth, bins)
    return float(np.abs(said - true).sum() / weights.sum())


def log_loss(truth: npt.NDArray[Any], probabilities: F64, weights: F64) -> float:
    """Mean negative log likelihood, in nats; certainty is cut at 1e-12."""
    p = np.clip(probabilities, 1e-12, 1 - 1e-12)
    return float(-np.average(np.where(truth == 1, np.log(p), np.log1p(-p)), weights=weights))


def balanced(labels: npt.NDArray[Any], classes: int) -> F64:
    """Weights that give every class the same total; they add up to N."""
    found = np.bincount(labels, minlength=classes)
    share: F64 = np.divide(len(labels), found * np.count_nonzero(found), out=np.zeros(classes), where=found > 0)
    return np.asarray(share[labels])


def quality(truth: npt.NDArray[Any], probabilities: F64, weights: F64) -> dict[str, float]:
    """All measures under their names in statistics, rounded so that they are the same wherever they are summed."""
    measured = {
        "auc": auc(truth, probabilities, weights),
        "average_precision": average_precision(truth, probabilities, weights),
        "brier": brier(truth, probabilities, weights),
        "ece": calibration_error(truth, probabilities, weights),
    }
    return {name: round(value, 6) for name, value in measured.items()}
