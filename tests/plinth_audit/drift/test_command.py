"""`plinth model drift`: the last evaluation, in words and JSON, and a recipe that continues from the champion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.recipe.load import load
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from tests.jobs.conftest import RECIPE
from tests.plinth_audit.drift.test_proposal import drifting


def looked(root: Path, *slices: Any) -> None:
    stats = {"champion": "c" * 64, "looks": [], "slices": [one.model_dump(mode="json") for one in slices]}
    made = Manifest(asset="drift", step="drift", version="1", params={}, inputs={}, parts=(), stats=stats)
    Context(Workspace(root).ensure()).refs.publish(made, "key")


def test_what_drifts_is_shown_and_a_recipe_proposed(plinth: Any, tmp_path: Path) -> None:
    looked(tmp_path, drifting("web"), drifting("prose").model_copy(update={"drifts": False}))
    target = tmp_path / "continued.yaml"
    done = plinth("-w", tmp_path, "model", "drift", "-r", RECIPE, "--propose", target)
    assert done.code == 0, done.err
    assert "drifts since analysis 2" in done.out
    assert "documents: https://a.example/1" in done.out
    made = load(target, RECIPE.parent)
    assert made.training.initial is not None
    assert made.training.initial.release == "tiny@champion"
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())  # nothing has started
    shown = json.loads(plinth("-w", tmp_path, "model", "drift", "-r", RECIPE, "--json").out)
    assert [one["drifts"] for one in shown["slices"]] == [True, False]


def test_without_drift_or_a_look_nothing_is_proposed(plinth: Any, tmp_path: Path) -> None:
    Workspace(tmp_path).ensure()
    unseen = plinth("-w", tmp_path, "model", "drift", "-r", RECIPE)
    assert (unseen.code, "plinth model drift --score" in unseen.err) == (3, True)
    looked(tmp_path, drifting("web").model_copy(update={"drifts": False}))
    refused = plinth("-w", tmp_path, "model", "drift", "-r", RECIPE, "--propose", tmp_path / "x.yaml")
    assert (refused.code, "No slice drifts." in refused.out) == (3, True)
    assert not (tmp_path / "x.yaml").exists()
