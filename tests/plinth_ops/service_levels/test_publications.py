"""Indicators of assets: exact seconds of a log written by hand, and of one that the framework wrote."""

from __future__ import annotations

from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.operation import workspace_files
from plinth.storage.workspace import Workspace
from plinth_ops.service_levels.indicators import budgets, of_assets
from plinth_ops.service_levels.tallies import AssetFacts, ErrorBudget, Objectives

SOON = Objectives(ingestion_lag_s=10)


def event(time: float, kind: str, asset: str, **fields: Any) -> dict[str, Any]:
    return {"time": time, "event": kind, "asset": asset, **fields}


def found(events: list[dict[str, Any]], until: float) -> dict[str, ErrorBudget]:
    made = of_assets(AssetFacts([one for one in events if one["time"] <= until], until), SOON)
    return {one.indicator: one for one in budgets(made, SOON, until)}


def test_a_suite_is_as_good_as_its_last_check_until_the_next() -> None:
    log = [event(100, "checked", "web/documents", passed=True), event(150, "checked", "mixture", passed=True)]
    log += [event(160, "checked", "web/documents", passed=False), event(190, "checked", "web/documents", passed=True)]
    made = found(log, 200)["suite pass rate"]
    assert (made.good_s, made.total_s) == (60 + 10 + 50, 100 + 50)
    assert found(log, 170)["suite pass rate"].good_s == 60 + 20
    assert found([], 200)["suite pass rate"].value is None


def test_documents_wait_from_the_arrival_of_their_files() -> None:
    log = [event(100, "arrived", "web", at=50), event(104, "published", "web/documents", digest="a")]
    made = found(log, 200)["ingestion lag"]
    assert (made.good_s, made.total_s) == (4, 4)  # the files were there before the pipeline was
    log += [event(320, "arrived", "web", at=300), event(322, "arrived", "web", at=300)]
    log += [event(321, "published", "code/documents", digest="b"), event(330, "published", "web/documents", digest="c")]
    made = found(log, 400)["ingestion lag"]
    assert (made.good_s, made.total_s, made.measure) == (4 + 10, 4 + 30, 30)
    assert found(log, 325)["ingestion lag"].total_s == 4 + 25  # they still wait
    log.append(event(410, "arrived", "web", at=200))  # a file with an old time came after the last publication
    assert found(log, 412)["ingestion lag"].total_s == 4 + 30 + 82


def test_the_log_is_of_the_workspace_and_of_no_experiment(tmp_path: Any) -> None:
    space = Workspace(tmp_path).ensure()
    workspace_files.append(Context(space), "published", "web/documents", digest="a")
    workspace_files.append(Context(space.branch("one/arm")), "published", "web/documents", digest="b")
    (line,) = workspace_files.read(space, float("inf"))
    assert (line["event"], line["asset"], line["digest"]) == ("published", "web/documents", "a")
    assert list(workspace_files.read(space, line["time"] - 1)) == []


@pytest.mark.parametrize("name", ["job success", "time to fine-tune"])
def test_every_indicator_has_an_objective(name: str) -> None:
    assert Objectives().target(name) == 0.95
