"""A pipeline whose error budget is spent promotes nothing until an override is signed, and the record shows it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.errors import GateError
from plinth.training import config as configuration
from plinth_ops.service_levels.objectives import ErrorBudgetPolicy, error_budget
from plinth_ops.service_levels.tallies import ErrorBudget
from plinth_registry import decisions, judgement, policy
from plinth_registry.gates.facts import Evidence
from plinth_registry.gates.settings import GatePolicy, gate_policy
from tests.plinth.training.conftest import tiny
from tests.plinth_ops.service_levels.test_indicators import event, healthy
from tests.registry.conftest import NOT_MEASURED, small_policy
from tests.registry.test_api import ADA, register

GATE = "error_budget"
WHY = "the disk that failed was replaced yesterday"


def asking(release: str, **error_budget: Any) -> GatePolicy:
    """The policy of the tests with this gate."""
    given = small_policy(release, version=2).model_dump(mode="json")
    left_out = {name: reason for name, reason in given["without"].items() if name != GATE}
    return gate_policy(given | {"without": left_out, "error_budget": error_budget})


def ran(ctx: Context, run: str, events: list[dict[str, Any]]) -> Path:
    """A run with this timeline."""
    config = tiny(ctx.workspace.root, run_id=run)
    configuration.write(config)
    numbered = ({"seq": seq, **line} for seq, line in enumerate(events, 1))
    config.directory.events.write_text("".join(json.dumps(line) + "\n" for line in numbered))
    return config.directory.events


def failed(begin: float) -> list[dict[str, Any]]:
    return [*healthy(begin)[:-1], event(begin + 8, "failed", reason="the disk is broken")]


@pytest.mark.slow
@pytest.mark.usefixtures("mlflow_uri")
def test_a_spent_budget_stops_promotion_until_somebody_signs(ctx: Context, line: Any) -> None:
    name, began = line.recipe.release.name, time.time() - 7000
    governing = policy.sign(ctx, asking(name, indicators=["job success"]))
    found, _ = register(ctx, line)
    decisions.approve(ctx, line.recipe, None, ADA, "good")

    def refused() -> str:
        with pytest.raises(GateError, match="is blocked by gates") as caught:
            decisions.promote(ctx, line.recipe, None, "ben", "now")
        assert caught.value.exit_code == 8
        assert GATE in str(caught.value)
        return str(caught.value)

    assert "no evidence: no data in the last 28 days for job success" in refused()
    ran(ctx, "good-000000000000", healthy(began))
    bad = ran(ctx, "bad-000000000000", failed(began))
    spent = "job success 50.00% of 32 rank-seconds, target 95.00% (1000% of the error budget spent)"
    assert f"error budget exhausted: {spent}" in refused()
    (ctx.workspace.root / "objectives.yaml").write_text("job_success: 0.01\n")
    refused()  # the policy's objectives hold, whatever the workspace's say

    soon = datetime.now(UTC) + timedelta(seconds=3)
    judgement.sign_waiver(ctx, governing, GATE, found.key, WHY, soon.isoformat())
    time.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds()) + 0.1)
    assert "error budget exhausted" in refused()  # it has expired

    made = judgement.sign_waiver(ctx, governing, GATE, found.key, WHY, "2999-01-01T00:00:00+00:00")
    record = decisions.promote(ctx, line.recipe, None, "ben", "the disk is new")
    assert record.action == "champion"
    assert record.gates[GATE].startswith("waived: error budget exhausted: job success 50.00%")
    assert f"waived by {made.by} until 2999" in record.gates[GATE]
    bad.write_text("not an event\n")
    (status,) = [decisions.status(ctx, line.recipe, None)]
    assert [one.reason for one in status.gates if one.name == GATE] == [
        "no evidence: no data in the last 28 days for job success"
    ]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("mlflow_uri")
def test_with_some_of_every_budget_left_it_passes(ctx: Context, line: Any) -> None:
    policy.sign(ctx, asking(line.recipe.release.name, indicators=["job success", "restore time"]))
    register(ctx, line)
    decisions.approve(ctx, line.recipe, None, ADA, "good")
    ran(ctx, "good-000000000000", healthy(time.time() - 7000))
    record = decisions.promote(ctx, line.recipe, None, "ben", "now")
    assert record.gates[GATE].startswith("passed: no required error budget is exhausted: job success 100.00%")


def test_the_gate_names_its_objectives_and_what_it_does_not_require() -> None:
    """The same words as the checklist: goodput is spent there, and not required here."""

    def budget(indicator: str, good_s: float) -> ErrorBudget:
        return ErrorBudget(indicator=indicator, unit="rank-s", target=0.9, good_s=good_s, total_s=100.0)

    policy, well = asking("demo", indicators=["job success"]), budget("job success", 99)
    found = error_budget(policy.error_budget, Evidence(own={GATE: (well, budget("goodput", 63))}))
    assert (found.passed, found.reason) == (
        True,
        "no required error budget is exhausted: job success 99.00% of 100 rank-seconds, target 90.00% (10% of the "
        "error budget spent); measured over the last 28 days against the targets of the gate policy; error budget "
        "exhausted, but not required by the policy: goodput 63.00% of 100 rank-seconds, target 90.00% (370% of "
        "the error budget spent)",
    )
    found = error_budget(policy.error_budget, Evidence(own={GATE: (budget("job success", 10),)}))
    assert (found.passed, found.reason) == (
        False,
        "error budget exhausted: job success 10.00% of 100 rank-seconds, target 90.00% (900% of the error budget "
        "spent); measured over the last 28 days against the targets of the gate policy",
    )
    short = budget("goodput", 10).model_copy(update={"minimum_s": 3600.0})
    named = asking("demo", indicators=["goodput"], required=["goodput"])
    assert not error_budget(named.error_budget, Evidence(own={GATE: (short,)})).passed
    optional = asking("demo", indicators=["goodput"], required=[])
    assert error_budget(optional.error_budget, Evidence(own={GATE: (short,)})).state == "skipped"


def test_a_policy_names_indicators_that_there_are() -> None:
    assert GATE in NOT_MEASURED
    with pytest.raises(ValidationError, match="there is no indicator 'godput'"):
        ErrorBudgetPolicy(indicators=("godput",))
    with pytest.raises(ValidationError, match="is required but not listed"):
        ErrorBudgetPolicy(indicators=("restore time",))
