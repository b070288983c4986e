"""`plinth run --dry-run`: what a run would materialize, why, and its expected cost; nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plinth.compute.context import load, manifest
from plinth.operation import admission, spending
from plinth.records import Step
from plinth.storage.workspace import Workspace
from plinth_jobs import definitions, pipeline, recipes
from tests import tiny_corpus
from tests.jobs.conftest import RECIPE, copied, variant

SELECT = ("funnel",)


def tree(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture
def workspace(pending: Path, tmp_path: Path) -> Path:
    return copied(pending, tmp_path / "workspace")


@pytest.fixture
def untrained(corpus: Path, tmp_path: Path) -> Path:
    return copied(corpus, tmp_path / "workspace")


def test_an_empty_workspace_needs_everything_and_stays_empty(tmp_path: Path) -> None:
    tiny_corpus.write(tmp_path / "input")
    before = tree(tmp_path)
    work, fresh = pipeline.dry_run(tmp_path, RECIPE)
    assert fresh == 0
    assert {one.reason for one in work} == {"never materialized"}
    assert {one.cost_usd for one in work} == {None}
    assert tree(tmp_path) == before


def test_the_demo_can_be_previewed_before_its_text_is_collected(tmp_path: Path) -> None:
    work, fresh = pipeline.dry_run(tmp_path / "none", recipes.find("demo"))
    assert (fresh, {one.reason for one in work}) == (0, {"never materialized"})
    assert not (tmp_path / "none").exists()


@pytest.mark.exhaustive
def test_a_run_that_is_up_to_date_has_no_work(untrained: Path) -> None:
    before = tree(untrained)
    work, fresh = pipeline.dry_run(untrained, RECIPE, SELECT)
    assert (work, fresh > 50) == ([], True)
    assert tree(untrained) == before


def test_a_changed_parameter_is_the_reason_and_what_follows_has_its_cost(workspace: Path) -> None:
    changed = variant(workspace, "corpus: {holdout: {fraction: 0.1}}\n")
    work = {one.asset: one for one in pipeline.dry_run(workspace, changed, SELECT)[0]}
    assert work["holdout"].reason == "recipe or code changed"
    assert work["contamination"].reason == "upstream: holdout"
    assert "web/documents" not in work
    space = Workspace(workspace)
    last = load(space, "holdout")
    assert last is not None
    assert last.input_bytes > 0
    cost = admission.expected_cost(last, last.input_bytes, spending.load(space).prices)
    assert (work["holdout"].cpu_hours, work["holdout"].cost_usd) == pytest.approx(cost)


def test_only_recorded_inputs_can_have_new_data() -> None:
    """A run records the mixture, but not the shards behind it."""
    stage = next(one for one in pipeline.stages(recipes.load(recipes.find("demo"))) if one.asset == "run")
    step = Step(name="x", version="1")
    old, new = (manifest("mixture", step, {}, [], {"n": n}) for n in (1, 2))
    shards = {dep: manifest(dep, step, {}, []) for dep in stage.deps}
    last = manifest("run", step, {"mixture": old}, [])
    assert pipeline._reason(stage, last, {**shards, "mixture": old}, set()) == "recipe or code changed"
    assert pipeline._reason(stage, last, {**shards, "mixture": new}, set()) == "new data in mixture"


def test_twice_the_input_costs_twice(workspace: Path) -> None:
    last, prices = load(Workspace(workspace), "tokenizer"), spending.load(Workspace(workspace)).prices
    assert last is not None
    once, twice = (admission.expected_cost(last, n * last.input_bytes, prices) for n in (1, 2))
    assert once
    assert twice
    assert twice == pytest.approx([2 * once[0], 2 * once[1]])
    assert admission.expected_cost(None, 1, prices) is None


def test_new_source_files_are_the_reason(workspace: Path) -> None:
    with (workspace / "input" / "tiny" / "prose.jsonl").open("a") as out:
        out.write(json.dumps({"text": "one more"}) + "\n")
    work = {one.asset: one for one in pipeline.dry_run(workspace, RECIPE, SELECT)[0]}
    assert work["prose/sources"].reason == "source files, recipe or code changed"
    assert "web/sources" not in work


@pytest.mark.exhaustive
def test_dagster_shows_the_cost_before_a_click(untrained: Path) -> None:
    defs = definitions.build(recipes.load(RECIPE), untrained, served=True)
    specs = {spec.key.to_user_string(): spec.metadata for spec in defs.resolve_all_asset_specs()}
    assert specs["dedup/minhash"]["expected_cost_usd"] == "< 0.01"
    assert "expected_cost_usd" not in specs["run"]
