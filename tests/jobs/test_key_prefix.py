"""Several recipes in one Dagster code location: key prefixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.dataset as ds
import pytest
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing import create_defs_folder_sandbox

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.storage.workspace import Workspace
from plinth_assets.framework.placement import DagsterPlacement
from plinth_jobs import definitions, recipes, sensors
from plinth_jobs.dg import RecipeComponent
from plinth_jobs.instance import ALARMS, interruptible
from tests import tiny_corpus
from tests.jobs.conftest import RECIPE, digests, variant

TYPE = "plinth_jobs.dg.RecipeComponent"


def project(*components: dict[str, Any]) -> dg.Definitions:
    """Return the definitions of a Dagster project with these components."""
    with create_defs_folder_sandbox() as sandbox:
        for index, attributes in enumerate(components):
            contents = {"type": TYPE, "attributes": {"recipe": str(RECIPE), "workers": 1, **attributes}}
            sandbox.scaffold_component(
                component_cls=RecipeComponent, defs_path=f"recipe_{index}", defs_yaml_contents=contents
            )
        with sandbox.build_all_defs() as defs:
            return defs


def refusal(*components: dict[str, Any]) -> str:
    """Return the error of a Dagster project with these components."""
    with pytest.raises(ComponentTreeException) as refused:
        project(*components)
    assert isinstance(refused.value.__cause__, RecipeError)
    return str(refused.value.__cause__)


def two_recipes(root: Path, counts: list[tuple[int, int]]) -> tuple[dg.Definitions, dg.AssetKey]:
    """Return a code location with two recipes, and the key of an asset that counts the documents of both."""
    defs = project(
        {"workspace": str(root / "a"), "key_prefix": "team_a", "upstream": {"prose": ["crawl"]}},
        {"workspace": str(root / "b"), "key_prefix": ["team_b", "x"]},
    )

    @dg.asset
    def crawl() -> None: ...

    @dg.asset(
        ins={
            "ours": dg.AssetIn(["team_a", "prose", "documents"]),
            "theirs": dg.AssetIn(["team_b", "x", "prose", "documents"]),
        }
    )
    def rows(ours: ds.Dataset, theirs: ds.Dataset) -> None:
        counts.append((ours.count_rows(), theirs.count_rows()))

    return dg.Definitions.merge(defs, dg.Definitions([crawl, rows], executor=dg.in_process_executor)), rows.key


def test_two_recipes_are_in_one_code_location(tmp_path: Path) -> None:
    merged, _ = two_recipes(tmp_path, [])
    dg.Definitions.validate_loadable(merged)
    repository = merged.get_repository_def()
    names = [one.name for one in (*repository.get_all_jobs(), *repository.sensor_defs, *repository.schedule_defs)]
    own = [
        name for name in (*names, *repository.get_top_level_resources()) if name not in ("__ASSET_JOB", "io_manager")
    ]
    assert {name.rpartition("__")[0] for name in own} == {"team_a", "team_b__x"}
    graph = merged.resolve_asset_graph()
    assert {key.path[0] for key in graph.get_all_asset_keys()} == {"team_a", "team_b", "crawl", "rows"}
    assert {graph.get(key).group_name.rpartition("__")[0] for key in graph.get_all_asset_keys()} == {
        "team_a",
        "team_b__x",
        "",
    }
    assert graph.get(dg.AssetKey(["team_a", "prose", "sources"])).parent_keys == {dg.AssetKey("crawl")}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_recipes_are_materialized_in_one_code_location(tmp_path: Path, corpus: Path) -> None:
    spaces, counts = [tmp_path / name for name in ("a", "b")], list[tuple[int, int]]()
    for space in spaces:
        tiny_corpus.write(space / "input")
    merged, rows = two_recipes(tmp_path, counts)
    selection = [dg.AssetKey([*prefix, "prose", stage]) for prefix in (["team_a"], ["team_b", "x"])
                 for stage in ("sources", "documents")]  # fmt: skip
    with dg.DagsterInstance.ephemeral() as instance, interruptible():
        job = merged.resolve_implicit_global_asset_job_def()
        made = job.execute_in_process(instance=instance, asset_selection=[*selection, rows, dg.AssetKey("crawl")])
        versions = {
            key.to_user_string(): instance.get_latest_materialization_event(key).asset_materialization.tags[
                "dagster/data_version"
            ]
            for key in selection
        }
    assert made.success
    expected = digests(corpus)
    assert versions == {
        f"{prefix}/{asset}": expected[asset]
        for prefix in ("team_a", "team_b/x")
        for asset in ("prose/sources", "prose/documents")
    }
    assert all(digests(space) == {one: expected[one] for one in digests(space)} for space in spaces)
    (count,) = counts
    documents = Context(Workspace(corpus)).refs.current("prose/documents").named("part-")
    assert count == (sum(part.rows for part in documents),) * 2
    checked = {(one.asset_key.to_user_string(), one.passed) for one in made.get_asset_check_evaluations()}
    assert checked == {(key.to_user_string(), True) for key in selection}


def test_recipes_with_the_same_prefix_are_refused(tmp_path: Path) -> None:
    said = refusal({"workspace": str(tmp_path / "a")}, {"workspace": str(tmp_path / "b")})
    assert "recipes tiny and tiny of this Dagster project have the same asset keys and names" in said
    assert "set `key_prefix` in the defs.yaml of one of them" in said


@pytest.mark.parametrize("nested", ["team/a", "team/a/b"])
def test_recipes_with_nested_prefixes_are_refused(tmp_path: Path, nested: str) -> None:
    """The failure sensor of `team` would record failures of `team/a` in its own workspace."""
    said = refusal(
        {"workspace": str(tmp_path / "a"), "key_prefix": "team"},
        {"workspace": str(tmp_path / "b"), "key_prefix": nested},
    )
    assert "nested key prefixes" in said
    project(
        {"workspace": str(tmp_path / "a"), "key_prefix": "team/c"},
        {"workspace": str(tmp_path / "b"), "key_prefix": nested},
    )


def test_recipes_in_one_workspace_must_have_equal_assets(tmp_path: Path) -> None:
    space = str(tmp_path / "workspace")
    other = variant(tmp_path, "name: other\nmixture: {seed: 7}\n")
    said = refusal(
        {"workspace": space, "key_prefix": "a"}, {"workspace": space, "key_prefix": "b", "recipe": str(other)}
    )
    assert "write different versions of" in said
    assert "set another `workspace`" in said
    project({"workspace": space, "key_prefix": "a"}, {"workspace": space, "key_prefix": "b"})


@pytest.mark.parametrize("prefix", ["a b", "a//b", "a__b", "a-b", "/a"])
def test_an_invalid_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(RecipeError, match="cannot be a key prefix"):
        DagsterPlacement.of(prefix)


def test_different_prefixes_never_give_the_same_name() -> None:
    places = [DagsterPlacement.of(prefix) for prefix in ("", "a", "a/b", "a_b", "a/b_c", "a_b/c", ["a", "b", "c"])]
    assert len({place.name("arrival") for place in places}) == len(places)
    for place in places:
        assert place.asset(place.key("web/documents")) == "web/documents"


def test_failures_of_another_recipe_raise_no_alert(tmp_path: Path) -> None:
    @dg.asset(key=["a", "broken"])
    def ours() -> None:
        raise ValueError("planted")

    @dg.asset(key=["b", "broken"])
    def theirs() -> None:
        raise ValueError("planted")

    jobs = [dg.define_asset_job(f"{name}__all", f"key:{name}/broken") for name in ("a", "b")]
    defs = dg.Definitions([ours, theirs], jobs=jobs, executor=dg.in_process_executor)
    sensor, runs = sensors.failure(tmp_path, DagsterPlacement.of("a")), []
    with dg.DagsterInstance.ephemeral() as instance, interruptible():
        for job, selection in (("a__all", None), ("b__all", None), ("b__all", [theirs.key]), ("a__all", [ours.key])):
            failed = defs.resolve_job_def(job).execute_in_process(
                instance=instance, asset_selection=selection, raise_on_error=False
            )
            runs.append(failed.run_id)
            event = failed.get_run_failure_event()
            sensor(
                dg.build_run_status_sensor_context("failed_runs", event, instance, failed.dagster_run).for_run_failure()
            )
    alerts = [json.loads(line) for line in (tmp_path / ALARMS).read_text().splitlines()]
    assert [alert["run"] for alert in alerts] == [runs[0], runs[3]]


def test_without_a_prefix_nothing_is_renamed(tmp_path: Path) -> None:
    repository = definitions.build(recipes.load(RECIPE), tmp_path, served=True).get_repository_def()
    assert "make_corpus" in {job.name for job in repository.get_all_jobs()}
    assert {"plinth", "plinth_session", "plinth_reader"} <= set(repository.get_top_level_resources())
    assert dg.AssetKey(["web", "documents"]) in repository.asset_graph.get_all_asset_keys()
