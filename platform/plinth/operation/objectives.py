"""`objectives.yaml` of a workspace, and the indicators of all of its runs.

    load(workspace)      its objectives
    measure(ctx, ...)    error budgets over the timelines of its runs
"""

from __future__ import annotations

import yaml
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.errors import RequestError
from plinth.operation.indicators import ErrorBudget, Objectives, budgets, of_run
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.telemetry.timeline import read_events


def load(workspace: Workspace) -> Objectives:
    """The objectives of a workspace; without the file, those by default.

    Raises:
        RequestError: the file has no such objectives.
    """
    path = workspace.root / "objectives.yaml"
    try:
        return Objectives.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except FileNotFoundError:
        return Objectives()
    except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as cause:
        raise RequestError(
            f"{path} has no objectives that can be used",
            found=str(cause),
            expected=", ".join(Objectives.model_fields),
            remedy="see docs/slis.md",
        ) from cause


def measure(ctx: Context, objectives: Objectives, until: float) -> list[ErrorBudget]:
    """Error budgets of all runs whose folders are in this workspace, at a time (Unix seconds).

    Raises:
        IntegrityError: a timeline is broken.
        TrainingError: a configuration is.
    """
    found = []
    for path in sorted(ctx.workspace.runs.glob("*/config.json")):
        config = configuration.load(path)
        found += of_run(read_events(config.directory.events), config.ranks, objectives, until)
    return budgets(found, objectives, until)
