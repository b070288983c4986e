"""Dagster's view of a recipe."""

from collections import Counter
from pathlib import Path

import dagster as dg
import pytest

from plinth.errors import MissingError, RecipeError
from plinth.recipe.load import load
from plinth_assets.catalog import OURS, selected, stages
from plinth_jobs import definitions
from tests import wide_recipe

RECIPES = Path(__file__).parents[2] / "jobs" / "plinth_jobs" / "recipes"


@pytest.fixture(scope="module")
def recipe():
    return load(RECIPES / "tiny.yaml")


@pytest.fixture(scope="module")
def defs(recipe, tmp_path_factory):
    return definitions.build(recipe, tmp_path_factory.mktemp("workspace"))


def test_they_load_as_a_code_location_does(defs):
    dg.Definitions.validate_loadable(defs)


def test_the_demo_loads_too(tmp_path):
    dg.Definitions.validate_loadable(definitions.build(load(RECIPES / "demo.yaml"), tmp_path))


def test_every_asset_says_what_it_is(defs, recipe):
    specs = {"/".join(spec.key.path): spec for spec in defs.resolve_all_asset_specs()}
    made = {stage.asset for stage in stages(recipe)}
    assert set(specs) >= made | {"drift"}
    for name, spec in specs.items():
        assert spec.description, name
        assert spec.code_version, name
        assert spec.group_name != "default", name
        assert spec.owners, name
        assert spec.kinds, name


def test_every_asset_links_the_pages_that_are_served(recipe, tmp_path):
    linked = definitions.build(recipe, tmp_path, pages="http://127.0.0.1:1/").resolve_all_asset_specs()
    assert {spec.metadata["state_and_pages"].value for spec in linked} == {"http://127.0.0.1:1/"}


def test_the_graph_of_twenty_buckets_has_groups_that_can_be_read(tmp_path):
    """Some twenty boxes when folded; none of more assets than can be read; of three buckets nothing is divided."""
    wide = load(wide_recipe.write(tmp_path, 20), RECIPES)
    defs = definitions.build(wide, tmp_path)
    groups = Counter(spec.group_name for spec in defs.resolve_all_asset_specs())
    assert sum(groups.values()) > 360
    assert len(groups) <= 25
    assert max(groups.values()) <= 60
    assert {name for name in groups if name.startswith("annotations_")} == {
        f"annotations_{name}" for name in wide.corpus.annotate
    }
    corpus = {stage.asset for stage in stages(wide) if stage.group in definitions.CORPUS_GROUPS}
    keys = defs.resolve_job_def(definitions.CORPUS).asset_layer.executable_asset_keys
    assert {key.to_user_string() for key in keys} == corpus
    marks = [len(one.check_keys) for one in defs.asset_checks if {key.name for key in one.check_keys} == {"marks"}]
    assert max(marks) <= 60  # Dagster's time is the square of what one definition checks
    assert sum(marks) == len(stages(wide))
    few = definitions.group_names(stages(load(RECIPES / "demo.yaml")))
    assert not [name for name in few.values() if "_" in name]


def test_stages_come_after_what_they_read(recipe):
    seen = set()
    for stage in stages(recipe):
        assert set(stage.deps) <= seen, stage.asset
        seen.add(stage.asset)


def test_every_stage_of_every_bucket_is_an_asset(recipe):
    found = {stage.asset for stage in stages(recipe)}
    for bucket in recipe.corpus.buckets:
        kinds = ("sources", "documents", "policy", "minhash", "verdicts", "curated", "shards", *recipe.corpus.annotate)
        assert {f"{bucket}/{kind}" for kind in kinds} <= found
    assert len(OURS) == len(set(OURS))


def test_a_selection_brings_what_it_needs(recipe):
    names = {stage.asset for stage in selected(stages(recipe), ("web/policy",))}
    assert {"web/policy", "web/documents", "web/sources", "web/c4"} <= names
    assert not {name for name in names if name.startswith(("prose/", "code/", "dedup/"))}
    with pytest.raises(MissingError, match="no asset web/polcy") as refused:
        selected(stages(recipe), ("web/polcy",))
    assert "nearest: web/policy" in str(refused.value.expected)


def test_a_changed_parameter_changes_the_code_version_of_that_stage_alone(recipe):
    holdout = recipe.corpus.holdout.model_copy(update={"seed": 99})
    other = recipe.model_copy(update={"corpus": recipe.corpus.model_copy(update={"holdout": holdout})})
    before = {stage.asset: stage.code_version for stage in stages(recipe)}
    after = {stage.asset: stage.code_version for stage in stages(other)}
    assert {asset for asset in before if before[asset] != after[asset]} == {"holdout"}


def test_placement_is_no_part_of_a_run(recipe):
    launch = recipe.training.launch.model_copy(update={"ranks": 1})
    other = recipe.model_copy(update={"training": recipe.training.model_copy(update={"launch": launch})})
    before = {stage.asset: stage.code_version for stage in stages(recipe)}
    assert before == {stage.asset: stage.code_version for stage in stages(other)}


def test_jobs_sensors_and_schedules_are_there(defs):
    names = {sensor.name for sensor in defs.sensors}
    assert names == {"arrival", "approval", "canary", "mirror", "feed", "pages", "failed_runs", "automation", "drift"}
    for job in (definitions.CORPUS, definitions.CANDIDATE, definitions.RELEASE):
        assert defs.resolve_job_def(job).name == job
    assert defs.resolve_schedule_def("nightly").cron_schedule == "0 2 * * *"
    assert defs.resolve_schedule_def("drift_daily").job_name == "score_drift"


def test_the_line_job_stops_before_the_release(defs):
    keys = {"/".join(key.path) for key in defs.resolve_job_def(definitions.CANDIDATE).asset_layer.executable_asset_keys}
    assert "candidate" in keys
    assert "release" not in keys


def test_a_code_location_without_a_recipe_names_both_variables(monkeypatch):
    monkeypatch.delenv("PLINTH_RECIPE", raising=False)
    with pytest.raises(RecipeError, match="a recipe file in PLINTH_RECIPE"):
        definitions._recipe_named()


@pytest.fixture(scope="module")
def corpus_alone(tmp_path_factory):
    """The tiny recipe without what follows curated text."""
    import yaml

    data = yaml.safe_load((RECIPES / "tiny.yaml").read_text())
    kept = {key: data[key] for key in ("name", "description", "corpus")}
    path = tmp_path_factory.mktemp("recipe") / "own.yaml"
    path.write_text(yaml.safe_dump({"extends": "base.yaml", **kept}))
    return load(path, RECIPES)


def test_a_corpus_alone_ends_at_curated_text_funnel_and_ledger(corpus_alone, recipe):
    own, full = ({stage.asset: stage for stage in stages(one)} for one in (corpus_alone, recipe))
    after = {"tokenizer", "tokenizer/audit", "mixture", "run", "checkpoint", "candidate", "release"}
    after |= {"evaluation", "probe_sets", "probes", "protected", "serving", "evaluation_page", "pii/data"}
    tokens = {f"{bucket}/{kind}" for bucket in recipe.corpus.buckets for kind in ("shards", "trace_index")}
    assert set(full) - set(own) == after | tokens | {"comparison", "probe_sets", "probes", "protected"}
    assert {"funnel", "ledger"} <= set(own)
    for asset in ("funnel", "ledger"):
        dropped = set(full[asset].deps) - set(own[asset].deps)
        assert dropped - {"protected"} == {"mixture", *(f"{bucket}/shards" for bucket in recipe.corpus.buckets)}
    assert {asset: one.code_version for asset, one in own.items()} == {asset: full[asset].code_version for asset in own}


def test_definitions_of_a_corpus_alone_have_no_release(corpus_alone, tmp_path):
    defs = definitions.build(corpus_alone, tmp_path)
    dg.Definitions.validate_loadable(defs)
    names = {job.name for job in defs.get_repository_def().get_all_jobs()}
    assert {definitions.CORPUS, definitions.CANDIDATE} <= names
    assert definitions.RELEASE not in names
    assert "approval" not in {sensor.name for sensor in defs.get_repository_def().sensor_defs}


def test_a_mixture_without_release_ends_at_the_evaluation(recipe):
    found = {stage.asset for stage in stages(recipe.model_copy(update={"release": None}))}
    assert "evaluation" in found
    assert not {"candidate", "release"} & found
