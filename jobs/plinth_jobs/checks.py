"""Lines of checklists about the orchestrator: telemetry, and whether schedules and sensors run. Imports no Dagster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from plinth.operation.checklists.check import Check, CheckAnswer, failed, passed, warned
from plinth.operation.checklists.scope import CheckScope
from plinth_jobs.instance import settings_file
from plinth_jobs.running import started


def telemetry_off(scope: CheckScope) -> CheckAnswer:
    """Dagster, Great Expectations and MLflow send nothing about what is done here."""
    workspace = scope.ctx.workspace
    files = [settings_file(), workspace.dagster / "dagster.yaml"]
    found = [f"{path}: telemetry.enabled" for path in files if path.exists() and _sends(path)]
    found += list(_environment())
    return failed("; ".join(found)) if found else passed("off in dagster.yaml, in the servers' and this environment")


def automation_runs(scope: CheckScope) -> CheckAnswer:
    """The Dagster daemon of this workspace runs: schedules and sensors are evaluated."""
    names = [each.name for each in started(scope.ctx.workspace)]
    if "Dagster" in names:
        return passed(", ".join(names))
    return warned("no `plinth up` runs here: no schedule and no sensor is evaluated")


def _sends(path: Path) -> bool:
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return bool((settings.get("telemetry") or {}).get("enabled", True))  # Dagster's own default is to send


def _environment() -> Iterator[str]:
    """Variables that turn on again what Plinth turns off by default."""
    for name, sending in (
        ("GX_ANALYTICS_ENABLED", ("true", "1", "yes", "on")),
        ("MLFLOW_DISABLE_TELEMETRY", ("false", "0", "no", "off")),
        ("DO_NOT_TRACK", ("false", "0", "no", "off")),
    ):
        if os.environ.get(name, "").lower() in sending:
            yield f"{name}={os.environ[name]}"


CHECKS = (
    Check(
        "telemetry", "Dagster, Great Expectations and MLflow send nothing", "security", ("preproduction", "security"),
        "telemetry.enabled: false in dagster.yaml; unset the variable", telemetry_off,
    ),
    Check(
        "automation", "schedules and sensors of this workspace are evaluated", "platform", ("readiness", "incident"),
        "`plinth up`, as a service", automation_runs,
    ),
)  # fmt: skip
