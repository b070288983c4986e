"""Repair of MLflow aliases: a sensor by itself, and a person with a command for an expired history."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from plinth.compute.context import Context
from plinth.errors import RegistryError
from plinth.recipe.load import written
from plinth.records import Manifest
from plinth_assets.framework.placement import DagsterPlacement
from plinth_jobs.cli import call
from plinth_jobs.sensors import approval, mirror
from plinth_registry import releases
from plinth_registry.mlflow import connection
from tests.registry.conftest import ctx, make_recipe
from tests.registry.test_releases import write

__all__ = ["ctx"]

Tick = Callable[[], str]


@pytest.fixture
def tick(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tick]:
    """Yield one evaluation of the sensor, which keeps its cursor as Dagster would and returns its message. MLflow does
    not run."""

    def absent(workspace: object) -> None:
        raise RegistryError("MLflow does not run")

    monkeypatch.setattr(connection, "connect", absent)
    sensor = mirror(make_recipe("demo"), ctx.workspace.root, DagsterPlacement())
    cursors: list[str | None] = [None]

    def look() -> str:
        data = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursors[-1]))
        cursors.append(data.cursor)
        return str(data.skip_message)

    with dg.instance_for_test() as instance:
        yield look


def mlflow_agrees(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connection, "connect", lambda workspace: None)
    patch.setattr("plinth_registry.promotion.repair", lambda *_: ())
    patch.setattr("plinth_registry.promotion.missing_in_mlflow", lambda *_: ())


def alerts(ctx: Context) -> list[Any]:
    path = ctx.workspace.root / "alerts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_broken_history_is_one_alert_until_it_changes(
    ctx: Context, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in "12":
        write(ctx, version)
    newest = ctx.workspace.releases / "00002.json"
    kept = newest.read_bytes()
    newest.unlink()
    assert "newest release records are missing" in [tick() for _ in range(3)][-1]
    assert [alert["job"] for alert in alerts(ctx)] == ["mirror"]
    newest.write_bytes(b"{}")
    assert "00002.json is no" in [tick() for _ in range(2)][-1]
    assert len(alerts(ctx)) == 2
    newest.write_bytes(kept)
    assert "MLflow does not run" in tick()  # which is not an attack
    assert len(alerts(ctx)) == 2
    mlflow_agrees(monkeypatch)
    assert tick() == "MLflow matches the signed release history"
    newest.write_bytes(b"{}")
    assert "00002.json is no" in [tick() for _ in range(2)][-1]
    assert len(alerts(ctx)) == 3  # the same again, after it was fixed


def test_the_asset_of_the_release_follows_what_commands_signed(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A promotion and a rollback by a command are each one run of the release job, and none where Dagster made it."""
    recipe = make_recipe("demo")
    monkeypatch.setattr("plinth_registry.decisions.ready", lambda *_: ())
    facts: dict[str, Any] = {"step": "s", "version": "1", "params": {}, "inputs": {}, "parts": ()}
    ctx.refs.publish(Manifest(asset="candidate", **facts), "key")
    sensor = approval(recipe, ctx.workspace.root, dg.GraphDefinition(name="make_release").to_job(), DagsterPlacement())

    def requests() -> list[str | None]:
        with dg.instance_for_test() as instance:
            data = sensor.evaluate_tick(dg.build_sensor_context(instance=instance))
        return [request.run_key for request in data.run_requests or ()]

    assert requests() == []
    write(ctx, "1")
    first = requests()
    assert len(first) == 1
    ctx.refs.publish(Manifest(asset="release", stats=releases.history(ctx)[-1].model_dump(mode="json"), **facts), "key")
    assert requests() == []
    write(ctx, "2")
    assert len(requests()) == 1
    assert requests() != first


def test_an_expired_head_is_signed_by_a_person_only(
    ctx: Context, tick: Tick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sensor must not sign an old history that was restored."""
    write(ctx, "1")
    head = ctx.workspace.releases / releases.HEAD
    signed = head.read_bytes()
    later = datetime.now(UTC) + timedelta(days=releases.HEAD_DAYS + 1)
    monkeypatch.setattr("plinth.trust.signed_log.now", lambda: later.isoformat(timespec="seconds"))
    for _ in range(2):
        assert "has expired" in tick()
    assert head.read_bytes() == signed
    assert len(alerts(ctx)) == 1
    recipe = tmp_path / "recipe.json"  # JSON is YAML
    content = written(make_recipe("demo"))
    content["corpus"]["annotate"] = {"language": {}, "licence": {}}
    recipe.write_text(json.dumps(content))
    mlflow_agrees(monkeypatch)
    command = ["release", "mirror", "-w", str(ctx.workspace.root), "--recipe", str(recipe)]
    assert call(command) == 0
    with pytest.MonkeyPatch.context() as patch:  # a version of the history was deleted in MLflow: nothing repairs that
        patch.setattr("plinth_registry.promotion.missing_in_mlflow", lambda *_: ("demo version 1 (champion)",))
        assert call(command) == 9
    assert head.read_bytes() != signed
    assert len(releases.history(ctx)) == 1
    assert "MLflow matches" in tick()
