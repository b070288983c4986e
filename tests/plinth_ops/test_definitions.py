"""Definitions that plinth_ops adds to Dagster's view of a recipe."""

from pathlib import Path

import dagster as dg
import pytest

from plinth.recipe.load import load
from plinth_jobs import definitions
from plinth_jobs.instance import interruptible
from plinth_ops.checklists.review import CHECKLISTS
from plinth_ops.service_levels import asset

TINY = Path(definitions.__file__).parent / "recipes" / "tiny.yaml"


@pytest.fixture(scope="module")
def recipe():
    return load(TINY)


@pytest.fixture(scope="module")
def defs(recipe, tmp_path_factory):
    return definitions.build(recipe, tmp_path_factory.mktemp("workspace"))


def test_assets_and_schedules_are_there(defs):
    specs = {"/".join(spec.key.path) for spec in defs.resolve_all_asset_specs()}
    assert {asset.ASSET, *(f"checklists/{name}" for name in CHECKLISTS)} <= specs
    assert defs.resolve_schedule_def("service_levels").job_name == asset.JOB
    assert defs.resolve_schedule_def("review_week").job_name == "review_week"
    assert defs.resolve_schedule_def("review_month").cron_schedule == "0 6 1 * *"


def test_every_line_of_a_checklist_is_a_check_of_its_asset(defs, tmp_path, recipe):
    """Evaluate in a workspace without any assets: lines that cannot be checked do not pass."""
    from plinth_ops.checklists import dagster_assets as checklists
    from plinth_ops.checklists import review

    job = definitions.build(recipe, tmp_path).resolve_job_def(checklists.JOB)
    with interruptible():
        found = job.execute_in_process(asset_selection=[checklists.key_of("preproduction")], raise_on_error=True)
    evaluated = {one.check_name: one for one in found.get_asset_check_evaluations()}
    assert set(evaluated) == {check.name.replace("-", "_") for check in review.checks("preproduction")}
    assert not evaluated["lineage"].passed
    assert evaluated["lineage"].severity == dg.AssetCheckSeverity.WARN
    assert evaluated["held_out"].severity == dg.AssetCheckSeverity.ERROR
    assert evaluated["sources_owned"].passed
    assert defs.resolve_schedule_def("checklists").cron_schedule == checklists.CRON
