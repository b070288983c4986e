"""Measurements kept of a run, and the documents on which runs are compared."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.records import Manifest
from plinth.storage.parts import write_table
from plinth.storage.workspace import Workspace
from plinth_lab.experiments import measure
from plinth_lab.experiments.arms import Arm
from tests.plinth_lab.experiments.test_arms import load


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def run(ctx: Context, arm: Arm, bits: list[float], unsure: list[str]) -> Manifest:
    ids = [f"{at:032x}" for at in range(len(bits))]
    columns = {"document": ids, "slice": ["a"] * len(ids), "item": ids, "bytes": [10] * len(ids), "bits": bits}
    part = write_table(ctx.store, measure.SCORES, pa.table(columns, schema=measure.COLUMNS))
    return measure.kept(arm, "finished", "", {}, [part], tokens=arm.tokens // 2, curve=[(5, 9, 1.5)], unsure=unsure)


def test_a_document_that_one_run_may_have_trained_on_counts_for_none(ctx: Context, tmp_path: Path) -> None:
    _, arms = load(tmp_path)
    made = [run(ctx, arms[0], [1.0, 2.0, 3.0], []), run(ctx, arms[1], [4.0, 5.0, 6.0], [f"{1:032x}"])]
    ours, theirs = measure.common_scores(ctx, made)
    assert ours.documents.tolist() == theirs.documents.tolist() == [f"{0:032x}", f"{2:032x}"]
    assert (ours.bits.tolist(), theirs.bits.tolist()) == ([1.0, 3.0], [4.0, 6.0])
    assert ours.flops == arms[0].flops / 2
    assert ours.curve == ((5, 9, 1.5),)


def test_a_run_that_failed_has_a_reason_and_no_scores(ctx: Context, tmp_path: Path) -> None:
    _, arms = load(tmp_path)
    scores = measure.scores_of(ctx, measure.kept(arms[0], "failed", "no text", {}, []))
    assert (scores.status, scores.reason, len(scores.bits), scores.flops) == ("failed", "no text", 0, 0.0)
    assert isinstance(scores.documents, np.ndarray)


@pytest.mark.parametrize(
    ("count", "chosen"), [(0, []), (1, [10]), (2, [10, 50]), (3, [10, 30, 50]), (9, [10, 20, 30, 40, 50])]
)
def test_points_of_a_curve_are_spread_evenly(count: int, chosen: list[int]) -> None:
    assert measure._spread([10, 20, 30, 40, 50], count) == chosen
    assert measure._spread([], count) == []


def test_a_set_of_the_recipe_is_not_taken_for_the_test_text(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("extends: tiny\ncorpus: {protected: {sets: {prose: {path: other.jsonl, fields: [a, b]}}}}\n")
    with pytest.raises(RecipeError, match="already has a protected set prose"):
        load(tmp_path, "recipe: tiny", "recipe: own.yaml")
