"""Other effects of a source: pairs of every seed, summed by cluster, corrected for all comparisons."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from plinth.evaluation import statistics
from plinth.evaluation.comparison.pairs import Pairs, align, reader
from plinth_lab.source_value.verdict import MEASURED, SourceChange, corrected, table


def side(values: dict[str, float], weight: float = 1.0, cluster: str | None = None) -> pa.Table:
    names = list(values)
    columns = {"item": names, "value": list(values.values()), "weight": [weight] * len(names)}
    return pa.table(columns | {"cluster": [cluster or name for name in names]})


def pairs(a: dict[str, float], b: dict[str, float], **given: object) -> Pairs:
    return align("k", "m", side(a, **given), side(b, **given), fewer_is_better=True, ratio=True)  # type: ignore[arg-type]


def test_every_measure_of_a_checkpoint_has_a_reader() -> None:
    assert all(reader(asset) for asset in MEASURED)


def test_items_that_every_seed_has() -> None:
    first = pairs({"x": 1, "y": 2, "z": 3}, {"x": 0, "y": 0, "z": 1}, weight=2.0)
    second = pairs({"x": 5, "z": 7}, {"x": 4, "z": 6}, weight=2.0)
    a, b, weights = table([first, second])
    assert (a.tolist(), b.tolist(), weights.tolist()) == ([[1, 3], [5, 7]], [[0, 1], [4, 6]], [2, 2])


def test_items_of_a_cluster_are_summed_and_names_that_occur_again_are_others() -> None:
    rows = [("x", 1.0), ("x", 4.0), ("y", 2.0)]
    one = pa.table({"item": [name for name, _ in rows], "value": [value for _, value in rows], "cluster": ["t"] * 3})
    a, b, weights = table([align("k", "m", one, one, fewer_is_better=True, ratio=False)])
    assert (a.tolist(), b.tolist(), weights.tolist()) == ([[7.0]], [[7.0]], [3.0])


def line(change: float, spread: float, fewer: bool = True) -> SourceChange:
    picks = np.random.default_rng(round(1000 * abs(change)))
    b = picks.normal(0, 1, (3, 30))
    gap = statistics.crossed_difference(b + change + picks.normal(0, spread, (3, 30)), b, np.ones(30))
    facts = {"use": "proxy", "kind": "k", "measure": f"{change}", "seeds": 3, "items": 30}
    return SourceChange.model_validate(facts | {"fewer_is_better": fewer, "change": gap})


def test_worse_by_the_side_of_the_measure_and_corrected() -> None:
    found = corrected([line(1.0, 0.1), line(-2.0, 0.1), line(3.0, 0.1, fewer=False), line(0.0, 0.1)])
    assert [(one.worse, one.better) for one in found] == [(True, False), (False, True), (False, True), (False, False)]
    raw = [one.change.p or 0.0 for one in found]
    assert [one.adjusted for one in found] == pytest.approx(statistics.holm(raw).tolist())
    assert found[3].smallest is not None


def test_one_seed_or_no_spread_claims_nothing() -> None:
    b = np.random.default_rng(1).normal(0, 1, (1, 30))
    alone = statistics.crossed_difference(b + 5 + 0.1 * b, b, np.ones(30))
    flat = statistics.crossed_difference(np.zeros((3, 30)), np.zeros((3, 30)), np.ones(30))
    base = line(1.0, 0.1)
    found = corrected([base.model_copy(update={"change": one}) for one in (alone, flat)])
    assert [(one.worse, one.better, one.adjusted) for one in found] == [(False, False, 1.0)] * 2
