"""Tags by which Dagster's queue orders runs and bounds teams; freshness of what every night makes."""

from __future__ import annotations

import dagster as dg
import pytest
import yaml

from plinth.launch.parameters import Queueing
from plinth.operation import spending
from plinth.recipe.load import load
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace
from plinth_jobs import definitions, instance
from tests.jobs.conftest import RECIPE


def asking(**queueing_: str) -> Recipe:
    """The tiny recipe, queued so."""
    recipe = load(RECIPE)
    assert recipe.training is not None
    launch = recipe.training.launch.model_copy(update={"queueing": Queueing.model_validate(queueing_)})
    training = recipe.training.model_copy(update={"launch": launch})
    return recipe.model_copy(update={"training": training})


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    return Workspace(tmp_path).ensure()


def test_the_team_is_the_recipes_else_that_of_the_budget(workspace: Workspace) -> None:
    assert definitions.run_tags(asking(), workspace) == {}
    path = spending.settings_file(workspace)
    path.parent.mkdir()
    path.write_text("team: payers\n")
    assert definitions.run_tags(asking(), workspace) == {"plinth/team": "payers"}
    assert definitions.run_tags(asking(team="web"), workspace) == {"plinth/team": "web"}


def test_jobs_have_the_tags_and_nightly_assets_are_to_be_fresh(workspace: Workspace) -> None:
    defs = definitions.build(asking(team="web", priority="high"), workspace.root)
    for name in (definitions.CORPUS, definitions.CANDIDATE, definitions.RELEASE):
        tags = defs.resolve_job_def(name).tags
        assert (tags["plinth/team"], tags["dagster/priority"]) == ("web", "10")
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    policy = specs["web/documents"].freshness_policy
    assert isinstance(policy, dg.FreshnessPolicy)
    assert specs["run"].freshness_policy is None


@pytest.mark.parametrize("place", ["dagster.yaml", "infra/postgres/dagster.yaml"])
def test_dagster_bounds_each_team_and_watches_freshness(place: str, tmp_path, monkeypatch) -> None:
    settings = yaml.safe_load((instance.settings_file().parent / place).read_text())
    settings.pop("storage", None)
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as made:
        assert made.freshness_enabled
        limits = made.get_concurrency_config().run_queue_config.tag_concurrency_limits
        assert [one["key"] for one in limits] == [definitions.TEAM, definitions.JOB]
        assert limits[1]["limit"] == 1
        assert all(one["value"] == {"applyLimitPerUniqueValue": True} for one in limits)
