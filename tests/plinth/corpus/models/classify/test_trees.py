"""Trees as arrays predict like scikit-learn's, and damaged ones are detected before they are walked."""

from dataclasses import replace

import numpy as np
import pytest

from plinth.corpus.models import artefact
from plinth.corpus.models.artefact import Forest
from tests.peers import Peer

ensemble = Peer("sklearn.ensemble")


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(600, 5)).astype(np.float32)
    return features, ((features[:, 0] * features[:, 1] > 0) ^ (rng.random(600) < 0.1)).astype(np.int64)


@pytest.fixture(scope="module")
def forest(data) -> Forest:
    return artefact.fit_trees(*data, np.ones(600))


def test_margins_are_scikit_learns(data, forest: Forest) -> None:
    features, truth = data
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=artefact.ITERATIONS, max_leaf_nodes=artefact.LEAVES, learning_rate=artefact.RATE,
        l2_regularization=artefact.L2, min_samples_leaf=artefact.MIN_LEAF,
        early_stopping=False, random_state=artefact.SEED,
    ).fit(features.astype(np.float64), truth)  # fmt: skip
    theirs = model.decision_function(features.astype(np.float64))
    np.testing.assert_allclose(forest.margins(features), theirs, rtol=1e-9)
    assert ((forest.margins(features) > 0) == truth).mean() > 0.85


def test_margins_do_not_depend_on_the_memory_layout(data, forest: Forest) -> None:
    features = data[0]
    assert forest.margins(np.asfortranarray(features)).tobytes() == forest.margins(features).tobytes()


def test_the_same_trees_every_time(data, forest: Forest) -> None:
    again = artefact.fit_trees(*data, np.ones(600))
    assert again.nodes.tobytes() == forest.nodes.tobytes()
    assert again.base == forest.base


def test_whole_and_no_rows(forest: Forest) -> None:
    assert artefact.problem(forest, 5) is None
    assert forest.margins(np.zeros((0, 5), np.float32)).shape == (0,)


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [("left", 0, "child"), ("right", 10**6, "child"), ("feature", 9, "feature"), ("value", np.inf, "finite")],
)
def test_damage_is_named(forest: Forest, field: str, value: float, what: str) -> None:
    nodes = forest.nodes.copy()
    nodes[field][np.flatnonzero(nodes["left"] >= 0)[1]] = value
    assert what in str(artefact.problem(replace(forest, nodes=nodes), 5))
    assert "fill" in str(artefact.problem(replace(forest, nodes=nodes[:-1]), 5))
