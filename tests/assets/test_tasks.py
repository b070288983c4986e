"""Tasks as Dagster assets of a checkpoint, with one damaged line; a recipe without the extra is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import dagster as dg
import pytest

from plinth.compute.context import Context
from plinth.compute.select_engine import Compute
from plinth.errors import MissingError
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import stages
from plinth_assets.framework import Stage
from plinth_assets.framework.build import Session, asset, resources_of
from plinth_assets.measurements import tasks_stage
from plinth_jobs import pipeline
from plinth_jobs.instance import interruptible
from plinth_jobs.recipes import load
from tests.plinth.evaluation.tasks.conftest import FILES, trained_folder
from tests.plinth.evaluation.tasks.measure import put

TINY = Path(__file__).parents[2] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"
KEYS = """
evaluation:
  tasks:
    small: {include: task_files, tasks: [sums, last_word, copies], limit: 12}
"""

__all__ = ["trained_folder"]


def recipe(folder: Path, keys: str = KEYS) -> Recipe:
    path = folder / "tasks.yaml"
    path.write_text(f"extends: {TINY}\n{keys}")
    return load(path)


def test_a_set_is_two_assets_and_the_candidate_waits_for_it(tmp_path: Path) -> None:
    made = {stage.asset: stage for stage in stages(recipe(tmp_path))}
    assert made["tasks/small"].deps == ("checkpoint", "task_files/small")
    without = {stage.asset: stage for stage in stages(recipe(tmp_path, "name: other"))}
    assert set(made) - set(without) == {"task_files/small", "tasks/small"}
    assert made["evaluation"].code_version == without["evaluation"].code_version
    if "candidate" in made:
        assert "tasks/small" in made["candidate"].deps


@pytest.mark.parametrize("change", ["limit: 13", "seed: 5", "fewshot: 1", "tasks: [sums]"])
def test_what_decides_a_score_is_in_the_code_version(tmp_path: Path, change: str) -> None:
    def version(keys: str) -> str:
        return next(
            one for one in tasks_stage.stages(recipe(tmp_path, keys)) if one.asset == "tasks/small"
        ).code_version

    def keys(more: str, folder: str = "a") -> str:
        return f"evaluation: {{tasks: {{small: {{include: {folder}, {more}}}}}}}"

    assert version(keys(change)) != version(keys("limit: 12"))
    assert version(keys("limit: 12", "b")) == version(keys("limit: 12"))  # the path is not part of the identity


def test_without_the_extra_a_run_is_refused_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None if name == "lm_eval" else name)
    with pytest.raises(MissingError, match=r"lm_eval is not installed[\s\S]*pip install 'plinth\[tasks\]'"):
        pipeline.check_installed(recipe(tmp_path), ["tasks/small"], {"evaluation"})
    pipeline.check_installed(recipe(tmp_path), ["serving"], {"evaluation"})


@pytest.mark.exhaustive
@pytest.mark.slow
def test_through_dagster(tmp_path: Path, trained_folder: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").ensure()
    ctx, folder = Context(workspace), workspace.input / "task_files"
    shutil.copytree(FILES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    lines = (folder / "data" / "sums.jsonl").read_text().splitlines()
    (folder / "data" / "sums.jsonl").write_text("\n".join([*lines[:3], lines[3][:25], *lines[4:]]))
    given = recipe(tmp_path)
    session = Session()
    found = [_checkpoint(put(ctx, trained_folder)), *tasks_stage.stages(given)]
    defs = dg.Definitions(
        assets=[asset(stage) for stage in found],
        resources=resources_of(str(workspace.root), Compute("local", 1), session),
        jobs=[dg.define_asset_job("all_assets", dg.AssetSelection.all(), executor_def=dg.in_process_executor)],
    )
    instance = dg.DagsterInstance.ephemeral()
    with interruptible():
        result = defs.resolve_job_def("all_assets").execute_in_process(instance=instance, raise_on_error=False)
    assert result.success, session.failures
    scored = ctx.refs.current("tasks/small")
    assert {name: facts["documents"] for name, facts in scored.stats["tasks"].items()} == {
        "copies": 10,
        "last_word": 12,
        "sums": 12,
    }
    assert scored.stats["damaged"] == scored.stats["tasks"]["sums"]["damaged"] == 1
    accuracy = scored.stats["tasks"]["sums"]["metrics"]["acc"]
    assert (accuracy["n"], accuracy["flags"]) == (13, ["missing"])
    (part,) = [part for part in scored.parts if part.name == "sums.parquet"]
    (lost,) = [row for row in read_table(ctx.store, part).to_pylist() if row["reason"]]
    assert "data/sums.jsonl, line 4: JSONDecodeError" in lost["reason"]
    event = instance.get_latest_materialization_event(dg.AssetKey(["tasks", "small"]))
    assert event is not None
    shown = event.dagster_event.step_materialization_data.materialization.metadata  # type: ignore[union-attr]
    assert "| last_word | perplexity |" in str(shown["scores"].value)


def _checkpoint(made: Manifest) -> Stage:
    return Stage(
        asset="checkpoint", deps=(), make=lambda ctx, inputs, say: made, version="1", params={}, group="training",
        description="A model.", owner="someone@example.org",
    )  # fmt: skip
