"""Proxies as an asset of a checkpoint: stage, items compared between two models, scores in MLflow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.evaluation.comparison import pairs
from plinth.evaluation.comparison.differences import corrected, of_measure
from plinth.records import Manifest
from plinth.storage.parts import read_table, write_table
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import stages
from plinth_extras.proxies import Proxies, job
from plinth_registry.run_metrics import scores_of
from tests.assets.test_tasks import recipe
from tests.plinth.evaluation.tasks.conftest import model_folder
from tests.plinth.evaluation.tasks.measure import put

__all__ = ["model_folder"]

ESTIMATE = {"value": 0.25, "low": 0.2, "high": 0.3, "n": 40, "flags": []}


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def test_a_stage_that_the_candidate_waits_for(tmp_path: Path) -> None:
    found = stages(recipe(tmp_path, "evaluation: {proxies: {items: 4}}\nrelease: {name: small}"))
    made = {stage.asset: stage for stage in found}
    assert made["proxies"].deps == ("checkpoint",)
    assert {"proxies", "serving"} <= set(made["candidate"].deps)
    assert "proxies" not in {stage.asset for stage in stages(recipe(tmp_path, "name: other"))}


def test_items_of_two_models(ctx: Context) -> None:
    def made(passed: int) -> Manifest:
        rows = [{"family": "json", "number": i, "prompt": f"give {i}", "passed": i < passed, "bytes": 2, "bits": 1.0}
                for i in range(40)]  # fmt: skip
        part = write_table(ctx.store, "items.parquet", pa.Table.from_pylist(rows))
        return Manifest(asset="proxies", step="proxies", version="1", params={}, inputs={}, parts=(part,))

    found = pairs.read(ctx.store, {"proxies": made(4)}, {"proxies": made(30)})
    lines = {line.measure: line for line in corrected([line for one in found for line in of_measure(one, seed=0)])}
    assert {name: line.better for name, line in lines.items()} == {"json: passed": "b", "json: bits per byte": ""}


def test_scores_have_a_key_and_their_data() -> None:
    families = {"json": {"passed": ESTIMATE}}
    made = Manifest(
        asset="proxies", step="proxies", version="1", params={"items": 40}, inputs={"checkpoint": "c"},
        parts=(), stats={"families": families, "overall": families["json"]},
    )  # fmt: skip
    found = list(scores_of(made))
    assert {one.key: one.value for one in found} == {
        "proxies/json/passed": 0.25,
        "proxies/json/passed/low": 0.2,
        "proxies/json/passed/high": 0.3,
    }
    assert {(one.dataset, one.digest) for one in found} == {("proxies", fingerprint.digest({"items": 40})[:32])}


@pytest.mark.slow
def test_a_row_per_item(ctx: Context, model_folder: Path) -> None:
    made = job.run(ctx, Proxies(items=4), put(ctx, model_folder))
    rows = read_table(ctx.store, made.parts[0]).to_pylist()
    assert len(rows) == made.stats["overall"]["passed"]["n"] == 20
    assert all(row["bits"] > 0 and row["broken_bits"] > 0 for row in rows)
