"""Measures by hand, and compared with scikit-learn's on the same numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.models import artefact
from tests.peers import Peer

metrics = Peer("sklearn.metrics")

EVEN = np.ones(4)


def test_auc_counts_ties_half() -> None:
    truth = np.array([0, 0, 1, 1])
    assert artefact.auc(truth, np.array([0.1, 0.4, 0.35, 0.8]), EVEN) == 0.75
    assert artefact.auc(truth, np.array([0.5, 0.5, 0.5, 0.5]), EVEN) == 0.5
    assert artefact.auc(truth, np.array([0.1, 0.2, 0.3, 0.4]), EVEN) == 1.0
    with pytest.raises(ValueError, match="both"):
        artefact.auc(np.zeros(4, int), np.arange(4.0), EVEN)


def test_calibration_error_of_bins() -> None:
    truth = np.array([0, 1, 1, 1])
    p = np.array([0.05, 0.05, 0.95, 0.95])  # half of the low ones are true: 0.45 off; the high ones 0.05
    assert artefact.calibration_error(truth, p, EVEN) == pytest.approx((0.45 + 0.05) / 2)
    assert artefact.brier(truth, p, EVEN) == pytest.approx((0.05**2 * 3 + 0.95**2) / 4)


def test_balanced_weights_give_classes_the_same_total() -> None:
    labels = np.array([0, 0, 0, 2])
    weights = artefact.balanced(labels, 3)
    assert weights.sum() == pytest.approx(4)
    assert weights[:3].sum() == pytest.approx(weights[3])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(1, 3)), min_size=2, max_size=60))
def test_beside_scikit_learn(rows: list[tuple[bool, int, int]]) -> None:
    truth = np.array([int(true) for true, _, _ in rows])
    scores = np.array([score / 8 for _, score, _ in rows])
    weights = np.array([float(weight) for _, _, weight in rows])
    if 0 < truth.sum() < truth.size:
        ours = artefact.quality(truth, scores, weights)
        assert ours["auc"] == pytest.approx(metrics.roc_auc_score(truth, scores, sample_weight=weights), abs=1e-6)
        theirs = metrics.average_precision_score(truth, scores, sample_weight=weights)
        assert ours["average_precision"] == pytest.approx(theirs, abs=1e-6)
        assert ours["brier"] == pytest.approx(metrics.brier_score_loss(truth, scores, sample_weight=weights), abs=1e-6)
