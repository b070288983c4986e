"""Scores, and what serving takes, on MLflow's record of the model, each once and with its data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import LineageError
from plinth.evaluation.serving import bounds, path
from plinth.launch.devices import DEVICES
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth_registry import api, registration
from plinth_registry.mlflow import connection
from plinth_registry.run_metrics import scores_of, speeds_of

ESTIMATE = {"value": 0.25, "low": 0.2, "high": 0.3, "n": 40, "flags": []}
FILES = fingerprint.digest("task files")


def tasks(checkpoint: str) -> Manifest:
    metrics = {"acc": ESTIMATE, "exact_match,digits": ESTIMATE | {"value": 0.0}, "f1": {"value": 0.5, "flags": []}}
    facts = {"metrics": metrics, "documents": 40, "damaged": 0}
    return Manifest(
        asset="tasks/small", step="tasks", version="1", params={},
        inputs={"checkpoint": checkpoint, "task_files/small": FILES}, parts=(), stats={"tasks": {"sums": facts}},
    )  # fmt: skip


SPEEDS = {
    "device": "cpu", "dtype": "float32", "torch": "2", "machine": "x86_64", "cores": 2, "prompt_tokens": 32,
    "first_token_s": 0.25, "tokens_per_s": {"1": 100.0, "8": 400.0}, "kv_bytes_per_token": 512, "peak_memory_bytes": 9,
}  # fmt: skip


def serving(checkpoint: str) -> Manifest:
    model = Model(layers=80, dim=8192, heads=64, kv_heads=8, ffn_dim=28672)
    return Manifest(
        asset="serving", step="serving", version="1", params={}, inputs={"checkpoint": checkpoint}, parts=(),
        stats=bounds(model, 128256, 8192),
    )  # fmt: skip


def test_what_serving_takes() -> None:
    made = serving("c")
    found = {one.key: one.value for one in scores_of(made)}
    assert found["serving/kv_bytes_per_token"] == 2 * 80 * 8 * 128 * 2
    b200 = made.stats["devices"]["b200"]
    assert found["serving/b200/tokens_per_s"] == b200["tokens_per_s"] > 0
    assert found["serving/b200/first_token_s"] == b200["first_token_s"] > 0
    assert {key for key in found if key.startswith("serving/l4/")} == {"serving/l4/sequences"}  # it does not fit
    assert len([key for key in found if key.endswith("/sequences")]) == len(DEVICES)


def test_speeds_of_this_machine_stand_apart_from_those_of_others() -> None:
    found = {one.key.removeprefix("serving/measured/"): one for one in speeds_of(SPEEDS)}
    assert {name: one.value for name, one in found.items()} == {
        "first_token_s": 0.25, "kv_bytes_per_token": 512, "peak_memory_bytes": 9,
        "tokens_per_s/1": 100, "tokens_per_s/8": 400,
    }  # fmt: skip
    assert {one.dataset for one in found.values()} == {"serving/measured"}
    data = [{one.digest for one in speeds_of(SPEEDS | change)} for change in ({}, {"first_token_s": 1}, {"cores": 4})]
    assert data[0] == data[1] != data[2]


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


@pytest.mark.slow
@pytest.mark.usefixtures("mlflow_uri")
def test_mlflow_has_each_number_once_with_model_and_data(ctx: Context, line: Any) -> None:
    made = {one.asset: one for one in (make(line.checkpoint.digest) for make in (tasks, serving))}
    record = path(ctx, line.checkpoint.digest)
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(SPEEDS))
    given = (ctx, line.recipe, line.checkpoint, line.evaluation, line.run, line.facts())
    api.register_candidate(*given)
    for _ in range(2):  # a candidate that was registered without them gets them too
        found, _ = api.register_candidate(*given, made)
    mlflow = connection.connect(ctx.workspace)
    version = mlflow.get_model_version(found.model, found.version)
    run = mlflow.get_run(version.run_id)
    model = registration.logged_model(mlflow, run.info.experiment_id, version.tags["candidate"])
    metrics = mlflow.get_logged_model(model.model_id).metrics
    logged = [one for one in metrics if one.key.startswith("tasks")]
    assert len(logged) == 7
    assert {(one.dataset_name, one.dataset_digest) for one in logged} == {("task_files/small", FILES[:32])}
    assert {one.model_id for one in logged} == {model.model_id}
    shown = run.inputs.dataset_inputs
    evaluated = {"task_files/small", "serving", "serving/measured"}
    assert {one.dataset.name for one in shown} == {"web/shards", "web/curated", *evaluated}
    speeds = {one.key: (one.value, one.model_id) for one in metrics if one.key.startswith("serving/measured/tokens")}
    assert speeds == {f"serving/measured/tokens_per_s/{n}": (v, model.model_id) for n, v in ((1, 100), (8, 400))}
    with pytest.raises(LineageError, match="another checkpoint"):
        api.register_candidate(*given, {"tasks/small": tasks("0" * 64)})
