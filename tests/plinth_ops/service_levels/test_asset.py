"""`service_levels`: in Dagster what `plinth ops sli` shows; assets log their checks and publications."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from plinth.compute.select_engine import Compute
from plinth.operation import workspace_files
from plinth.recipe.load import load
from plinth.storage.workspace import Workspace
from plinth_assets.framework.build import resources_of
from plinth_jobs.instance import interruptible
from plinth_ops.service_levels import asset as service_levels
from plinth_ops.service_levels import objectives
from plinth_ops.service_levels.indicators import INDICATORS
from plinth_ops.service_levels.tallies import Objectives
from tests.assets.test_build import _run, _stage
from tests.jobs.conftest import RECIPE
from tests.plinth_ops.service_levels.test_command import trained


def test_the_asset_shows_budgets_and_warns_of_those_that_are_spent(tmp_path: Path) -> None:
    trained(tmp_path)
    (tmp_path / "objectives.yaml").write_text("window_days: 36500\ngoodput_after_s: 10\n")
    resources = resources_of(str(tmp_path), Compute("local", 1))
    with interruptible():
        made = dg.materialize([service_levels.asset(load(RECIPE))], resources=resources)
    (shown,) = made.asset_materializations_for_node(service_levels.ASSET)
    assert str(shown.metadata["budgets"].value).startswith("![plot](data:image/png")
    assert all(name in str(shown.metadata["levels"].value) for name in INDICATORS)
    checks = {one.check_name: one for one in made.get_asset_check_evaluations()}
    assert not checks[service_levels.BUDGETS].passed
    assert "goodput" in str(checks[service_levels.BUDGETS].metadata["indicators"].value)
    assert "ingestion lag" in str(checks[service_levels.MEASURED].metadata["indicators"].value)


def test_checks_and_publications_are_logged_passed_or_blocked(tmp_path: Path) -> None:
    space = Workspace(tmp_path).ensure()
    _run([_stage("one"), _stage("two", least=5)], tmp_path)
    logged = [(line["event"], line["asset"], line.get("passed")) for line in workspace_files.read(space, float("inf"))]
    assert sorted(logged, key=str) == [
        ("checked", "one", True),
        ("checked", "two", False),
        ("published", "one", None),
    ]


def test_a_run_of_data_that_is_not_here_has_no_complete_lineage(tmp_path: Path) -> None:
    trained(tmp_path)
    from plinth.compute.context import Context

    ctx = Context(Workspace(tmp_path))
    measured = objectives.measure(ctx, Objectives(), 86400.0, objectives.completeness(ctx))
    found = {one.indicator: one for one in measured}
    assert found["lineage completeness"].value == 0
