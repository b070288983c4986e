"""Quality of probabilities: ranking (AUC, average precision) and calibration (Brier score, calibration error).

Letters: N documents. Truth is 0 or 1; weights count a document more than once, or less.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

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
