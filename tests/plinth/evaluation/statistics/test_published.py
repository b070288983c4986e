"""Published numbers, and a comparison with evalconfidence 0.1.1.

The scores are those of GPQA Diamond (198 items, 5 samples each) by two models that evalconfidence publishes with its
results: right answers of each item, items in the order of their names.
"""

from typing import Any

import numpy as np
import pytest

from plinth.evaluation import statistics
from tests.peers import Peer

evalconfidence = Peer("evalconfidence")

EPOCHS = 5
GPT_5_NANO = (
    "54555055542545555451350055314201055231055155503354555255251515555153405555514135555555031455540455315505555015"
    "5120220255050205250555055545354045354045435554103205155453503050503515055050555555323330"
)
GPT_5_4_MINI = (
    "51550055505535351255550055245400013015225202505545555055052405551105500254555514555505053055510151523505451000"
    "5101054135250445040554025532155045155355241155011105255455500350540505455155553515534050"
)


def scores(right: str) -> list[float]:
    return [float(sample < int(one)) for one in right for sample in range(EPOCHS)]


A, B = scores(GPT_5_NANO), scores(GPT_5_4_MINI)
ITEMS = [item for item in range(len(GPT_5_NANO)) for _ in range(EPOCHS)]


def results(rows: list[float], model: str) -> list[Any]:
    return [
        evalconfidence.ItemResult(item_id=str(item), model_id=model, score=score, epoch=i % EPOCHS)
        for i, (item, score) in enumerate(zip(ITEMS, rows, strict=True))
    ]


def test_paired_by_item() -> None:
    """README of evalconfidence: 5.9 points, [0.4, 11.3], p = 0.0363."""
    found = statistics.paired_difference(A, B, ITEMS)
    assert [round(100 * one, 1) for one in (found.value, found.low, found.high)] == [5.9, 0.4, 11.3]
    assert found.p == pytest.approx(0.0363, abs=5e-5)
    assert (found.n, found.clusters, found.flags) == (990, 198, ())
    peer = evalconfidence.compare(results(A, "a"), results(B, "b"))
    assert (found.low, found.high) == pytest.approx(peer.ci_diff, rel=1e-9)
    assert found.p == pytest.approx(peer.p_value, rel=1e-9)


def test_unpaired_a_real_difference_is_lost() -> None:
    """README of evalconfidence: [-2.1, 13.8], p = 0.149."""
    found = statistics.difference(A, B, ITEMS, ITEMS)
    assert [round(100 * one, 1) for one in (found.low, found.high)] == [-2.1, 13.8]
    peer = evalconfidence.compare(results(A, "a"), results(B, "b"), paired=False)
    assert (found.low, found.high, found.p) == pytest.approx((*peer.ci_diff, peer.p_value), rel=1e-9)
    assert peer.p_value == pytest.approx(0.149, abs=5e-4)


def test_clustered_standard_error() -> None:
    """README of evalconfidence: 0.0276 clustered by item, [0.6213, 0.7302]; 0.0149 as if samples were items."""
    found = statistics.mean(A, ITEMS)
    peer = evalconfidence.standard_error(results(A, "a"))
    assert (found.low, found.high) == pytest.approx(peer.ci_clustered, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((0.6213, 0.7302), abs=5e-5)
    assert (found.high - found.low) / 2 / 1.972079 == pytest.approx(0.0276, abs=5e-5)  # t of 197 degrees of freedom
    naive = statistics.mean(A)
    assert (naive.high - naive.low) / 2 / 1.962379 == pytest.approx(0.0149, abs=5e-5)


def test_items_needed() -> None:
    """README of evalconfidence: 6 points take about 334 paired items."""
    gaps = np.subtract(A, B).reshape(-1, EPOCHS).mean(axis=1)
    needed = statistics.sample_size(0.06, float(gaps.var(ddof=1)))
    assert needed == evalconfidence.power((results(A, "a"), results(B, "b")), mde=0.06).n_required == 334
    error = float(gaps.std(ddof=1)) / len(gaps) ** 0.5
    seen = evalconfidence.power((results(A, "a"), results(B, "b")), n=len(gaps)).mde_detectable
    assert statistics.smallest_effect(error) == pytest.approx(seen, rel=1e-9)


def test_single_samples_by_mcnemar() -> None:
    a, b = A[::EPOCHS][:60], B[::EPOCHS][:60]
    found = statistics.paired_difference(a, b)
    peer = evalconfidence.compare(
        [evalconfidence.ItemResult(item_id=str(i), model_id="a", score=score) for i, score in enumerate(a)],
        [evalconfidence.ItemResult(item_id=str(i), model_id="b", score=score) for i, score in enumerate(b)],
    )
    assert found.method == "exact McNemar"
    assert found.p == pytest.approx(peer.p_value)


def test_the_bootstrap_of_198_items_by_5_samples_agrees_with_student() -> None:
    found = statistics.ratio_difference(A, B, np.ones(len(A)), ITEMS)
    student = statistics.paired_difference(A, B, ITEMS)
    assert (found.value, found.low, found.high) == pytest.approx((student.value, student.low, student.high), abs=1e-3)
