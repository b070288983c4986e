"""The check of an evaluation: slices that do not add up to the whole are not published."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from plinth.errors import RecipeError
from plinth.records import Manifest
from plinth_assets.catalog import stages
from plinth_assets.framework import evaluate
from plinth_jobs.recipes import find, load

ROW = {"bits": 2.5, "bytes": 10, "documents": 2, "tokens": 4}
STATS = {"overall": {name: 3 * value for name, value in ROW.items()}, "slices": {"a": ROW, "b": ROW, "c": ROW},
         "axes": {"language": {"en": {name: 3 * value for name, value in ROW.items()}}}}  # fmt: skip


def blocked(stats: dict[str, Any]) -> tuple[bool, tuple[str, ...]]:
    (stage,) = (one for one in stages(load(find("tiny.yaml"))) if one.asset == "evaluation")
    made = Manifest(asset="evaluation", step="s", version="2", params={}, inputs={}, parts=(), stats=stats)
    assert stage.suite is not None
    outcome = evaluate(stage.suite(made, {}))
    return outcome.blocked, outcome.failures


@pytest.mark.parametrize("name", ROW)
def test_a_sum_that_is_off_by_the_least_blocks(name: str) -> None:
    wrong = copy.deepcopy(STATS)
    wrong["slices"]["b"][name] += 2.0**-20 if name == "bits" else 1
    found, failures = blocked(wrong)
    assert found
    assert any(name in line for line in failures)


def test_slices_that_add_up_pass() -> None:
    assert blocked(STATS) == (False, ())


@pytest.mark.parametrize("wrong", ["documents.licenze", "documents.cluster_size > 'x'", "gopher_quality.words > 5"])
def test_a_slice_that_the_ledger_will_not_have_is_found_before_anything_runs(wrong: str) -> None:
    recipe = load(find("tiny.yaml"))
    sliced = recipe.evaluation.model_copy(update={"slices": {"own": wrong, "copied": "near.size > 1"}})
    with pytest.raises(RecipeError, match=r"evaluation\.slices\.own"):
        stages(recipe.model_copy(update={"evaluation": sliced}))
