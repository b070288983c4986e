"""The sensor rolls back a worse canary and promotes a good one, as the signed policy requires."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from plinth.compute.context import Context
from plinth.errors import GateError, MissingError
from plinth_assets.framework.placement import DagsterPlacement
from plinth_jobs.sensors import canary, feed
from plinth_registry import api, decisions, policy, promotion
from plinth_registry.mlflow import connection
from tests.registry.canary.conftest import measured
from tests.registry.conftest import small_policy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("mlflow_uri")]

ADA = "ada@example.org"
GOOD, WORSE, BETTER = ({"web": 1.0, "code": code} for code in (0.8, 0.8 * 1.02, 0.75))
Tick = Callable[[], tuple[Any, str | None]]


@pytest.fixture
def mlflow(ctx: Context, mlflow_uri: str) -> Any:
    return connection.connect(ctx.workspace)


@pytest.fixture
def lines(make_line: Any) -> list[Any]:
    """Three candidates of one release."""
    return [make_line(seed) for seed in (1, 2, 3)]


@dg.job
def job() -> None:
    """Job that the sensor requests."""


@pytest.fixture
def tick(ctx: Context, lines: list[Any]) -> Tick:
    """Return a function that evaluates the sensor again, with its cursor."""
    recipe, held = lines[0].recipe, [""]

    def look() -> tuple[Any, str | None]:
        context = dg.build_sensor_context(cursor=held[0])
        result = canary(recipe, ctx.workspace.root, job, DagsterPlacement())(context)
        held[0] = str(context.cursor or held[0])
        return result, str(result) if isinstance(result, dg.SkipReason) else None

    return look


def candidate(ctx: Context, line: Any, bits: dict[str, float]) -> None:
    """Register and approve a candidate whose held-out documents have these bits per byte."""
    line.evaluation = measured(line, bits)
    given = line.recipe, line.checkpoint, line.evaluation, line.run, line.facts()
    registered, _ = api.register_candidate(ctx, *given, materials=line.materials)
    decisions.approve(ctx, line.recipe, registered.version, ADA, "good")


@pytest.fixture
def champion(ctx: Context, lines: list[Any], mlflow: Any) -> Callable[..., Any]:
    """A champion, released under a policy with a trial: the first needs none."""

    def make(**trial: Any) -> Any:
        line = lines[0]
        given = small_policy(line.recipe.release.name, version=2).model_dump() | {"trial": trial}
        policy.sign(ctx, policy.gate_policy(given))
        candidate(ctx, line, GOOD)
        assert [one.action for one in api.promote_if_approved(ctx, line.recipe)] == ["champion"]
        return line

    return make


def aliases(mlflow: Any, line: Any) -> dict[str, str]:
    return {name: str(held) for name, held in mlflow.get_registered_model(line.recipe.release.name).aliases.items()}


def alerts(ctx: Context) -> list[str]:
    path = ctx.workspace.root / "alerts.jsonl"
    return [json.loads(line)["message"] for line in path.read_text().splitlines()] if path.exists() else []


def test_2_percent_worse_on_one_slice_is_given_back_at_the_first_look(
    ctx: Context, champion: Any, lines: Any, mlflow: Any, tick: Tick, tmp_path: Path
) -> None:
    first, second = champion(promote="automatic"), lines[1]
    assert "no canary" in str(tick()[1])
    candidate(ctx, second, WORSE)
    assert [one.action for one in api.promote_if_approved(ctx, second.recipe)] == ["canary"]
    assert aliases(mlflow, first) == {"champion": "1", "canary": "2"}
    result, _ = tick()
    assert aliases(mlflow, first) == {"champion": "1"}
    last = decisions.history(ctx, first.recipe)[-1]
    assert (last.action, last.version, last.previous, last.by) == ("returned", "1", "2", api.CANARY_SENSOR)
    assert "held-out text: bucket code: worse than the margin after 400; beyond the margin +" in last.reason
    (event,) = result.asset_events
    assert event.metadata["evidence"].value.startswith("![plot](data:image/png")
    name = f"{first.recipe.release.name}-canary-2-champion-1.html"
    page = (ctx.workspace.reports / name).read_text()
    assert "will be withdrawn" in page
    held = mlflow.get_model_version(first.recipe.release.name, "2")
    assert held.tags["trial"].startswith("will be withdrawn. held-out text: ")
    assert "> **Canary, last check:** will be withdrawn. held-out text: " in held.description
    (run,) = mlflow.search_runs([mlflow.get_experiment_by_name(first.recipe.name).experiment_id],
                                filter_string=f"tags.mlflow.runName = '{second.run.id}'")  # fmt: skip
    kept = mlflow.download_artifacts(run.info.run_id, name, str(tmp_path))
    assert Path(kept).read_text() == page
    feed(first.recipe, ctx.workspace.root, DagsterPlacement())(dg.build_sensor_context())
    assert [one for one in alerts(ctx) if "returned" in one and "bucket code: worse than the margin" in one]
    assert "no canary" in str(tick()[1])
    assert api.promote_if_approved(ctx, first.recipe) == ()  # it does not come again


@pytest.mark.exhaustive
def test_a_kill_between_record_and_alias_is_mended(
    ctx: Context, champion: Any, lines: Any, mlflow: Any, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = champion(promote="by hand"), lines[1]
    candidate(ctx, second, WORSE)
    api.promote_if_approved(ctx, second.recipe)
    for broken, alias in ((promotion.releases, "2"), (promotion, "2")):
        with monkeypatch.context() as patched:
            patched.setattr(broken, "append" if broken is promotion.releases else "repair", _killed)
            with pytest.raises(KeyboardInterrupt):
                tick()
        assert aliases(mlflow, first)["canary"] == alias
    assert "no canary" in str(tick()[1])  # by the signed history, whatever MLflow shows
    assert decisions.repair(ctx, first.recipe) != ()
    assert aliases(mlflow, first) == {"champion": "1"}
    assert [one.action for one in decisions.history(ctx, first.recipe)].count("returned") == 1


@pytest.mark.exhaustive
def test_a_canary_that_is_proved_to_be_good_becomes_champion_through_the_gates(
    ctx: Context, champion: Any, lines: Any, mlflow: Any, tick: Tick
) -> None:
    first, second, third = champion(promote="automatic"), *lines[1:]
    candidate(ctx, second, BETTER)
    assert [one.action for one in api.promote_if_approved(ctx, second.recipe)] == ["canary"]
    candidate(ctx, third, BETTER)
    assert decisions.ready(ctx, first.recipe) == ()  # one trial after the other
    result, _ = tick()
    (request,) = result.run_requests
    assert request.run_key.startswith("canary/3/")
    (record,) = api.promote_if_approved(ctx, first.recipe)[:1]
    assert (record.action, record.version, record.by) == ("champion", "2", api.CANARY_SENSOR)
    assert record.reason.startswith("within the margin of the champion 1: held-out text: within the margin after 800")
    assert "approvals" in record.gates
    assert aliases(mlflow, first) == {"champion": "2", "previous": "1", "canary": "3"}


@pytest.mark.exhaustive
def test_by_hand_it_waits_and_an_automatic_one_needs_every_gate(
    ctx: Context, champion: Any, lines: Any, tick: Tick
) -> None:
    first, second = champion(promote="by hand"), lines[1]
    candidate(ctx, second, BETTER)
    api.promote_if_approved(ctx, second.recipe)
    result, _ = tick()
    assert result.run_requests in (None, [])
    assert "may become champion" in str(tick()[1])
    assert api.promote_if_approved(ctx, first.recipe) == ()
    given = small_policy(first.recipe.release.name, version=3).model_dump() | {"trial": {"promote": "automatic"}}
    policy.sign(ctx, policy.gate_policy(given))
    with pytest.raises(GateError, match="approvals"):  # of the policy before
        api.promote_if_approved(ctx, first.recipe)
    with pytest.raises(MissingError, match="not the canary"):
        promotion.return_canary(ctx, None, first.recipe, by=ADA, reason="late", version="7")


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
