"""Scores of tasks and proxies, on MLflow's record of the model, each once and with its data."""

from __future__ import annotations

from typing import Any

import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import LineageError
from plinth.records import Manifest
from registry import api, mlflow_client, registration
from registry.scores import scores_of

ESTIMATE = {"value": 0.25, "low": 0.2, "high": 0.3, "n": 40, "flags": []}
FILES = fingerprint.digest("task files")


def tasks(checkpoint: str) -> Manifest:
    metrics = {"acc": ESTIMATE, "exact_match,digits": ESTIMATE | {"value": 0.0}, "f1": {"value": 0.5, "flags": []}}
    facts = {"metrics": metrics, "documents": 40, "damaged": 0}
    return Manifest(
        asset="tasks/small", step="tasks", version="1", params={},
        inputs={"checkpoint": checkpoint, "task_files/small": FILES}, parts=(), stats={"tasks": {"sums": facts}},
    )  # fmt: skip


def proxies(checkpoint: str) -> Manifest:
    families = {"json": {"passed": ESTIMATE}}
    return Manifest(
        asset="proxies", step="proxies", version="1", params={"items": 40}, inputs={"checkpoint": checkpoint},
        parts=(), stats={"families": families, "overall": families["json"]},
    )  # fmt: skip


def test_keys_values_and_data() -> None:
    found = {one.key: one for one in scores_of(tasks("c"))}
    assert {key: one.value for key, one in found.items()} == {
        "tasks/small/sums/acc": 0.25,
        "tasks/small/sums/acc/low": 0.2,
        "tasks/small/sums/acc/high": 0.3,
        "tasks/small/sums/exact_match.digits": 0.0,
        "tasks/small/sums/exact_match.digits/low": 0.2,
        "tasks/small/sums/exact_match.digits/high": 0.3,
        "tasks/small/sums/f1": 0.5,
    }
    assert {(one.dataset, one.digest) for one in found.values()} == {("task_files/small", FILES[:32])}
    assert next(scores_of(proxies("c"))).key == "proxies/json/passed"


@pytest.mark.slow
@pytest.mark.usefixtures("mlflow_uri")
def test_mlflow_has_each_number_once_with_model_and_data(ctx: Context, line: Any) -> None:
    made = {one.asset: one for one in (tasks(line.checkpoint.digest), proxies(line.checkpoint.digest))}
    given = (ctx, line.recipe, line.checkpoint, line.evaluation, line.run, line.facts())
    api.register_candidate(*given)
    for _ in range(2):  # a candidate that was registered without them gets them too
        found, _ = api.register_candidate(*given, made)
    mlflow = mlflow_client.connect(ctx.workspace)
    version = mlflow.get_model_version(found.model, found.version)
    run = mlflow.get_run(version.run_id)
    model = registration.logged_model(mlflow, run.info.experiment_id, version.tags["candidate"])
    metrics = mlflow.get_logged_model(model.model_id).metrics
    logged = [one for one in metrics if one.key.startswith(("tasks", "proxies"))]
    assert len(logged) == 10
    assert {(one.dataset_name, one.dataset_digest) for one in logged} == {
        ("task_files/small", FILES[:32]),
        ("proxies", fingerprint.digest({"items": 40})[:32]),
    }
    assert {one.model_id for one in logged} == {model.model_id}
    shown = run.inputs.dataset_inputs
    assert {one.dataset.name for one in shown} == {"task_files/small", "proxies"}
    with pytest.raises(LineageError, match="another checkpoint"):
        api.register_candidate(*given, {"proxies": proxies("0" * 64)})
