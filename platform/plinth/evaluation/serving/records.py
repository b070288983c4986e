"""Serving as measured on this machine: the newest record of each checkpoint."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.compute.threads import cores
from plinth.evaluation.engine.client import ModelEngine
from plinth.records import Manifest
from plinth.storage.atomic import write_bytes


def path(ctx: Context, checkpoint: str) -> Path:
    """The record of a checkpoint, by its digest."""
    return ctx.workspace.costs / "serving" / f"{checkpoint[:12]}.json"


def measure(ctx: Context, checkpoint: Manifest) -> dict[str, Any]:
    """Measure a checkpoint and keep the record.

    Raises:
        TrainingError, CheckpointError: the model cannot be loaded.
    """
    with ModelEngine.of(ctx, checkpoint, label="serving") as engine:
        found = engine.serving() | {"machine": platform.machine(), "cores": cores()}
    place = path(ctx, checkpoint.digest)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(place, (json.dumps(found, indent=2) + "\n").encode())
    return found


def read(ctx: Context, checkpoint: str) -> dict[str, Any] | None:
    """The record of a checkpoint, if it was measured in this workspace."""
    try:
        found: dict[str, Any] = json.loads(path(ctx, checkpoint).read_bytes())
    except (OSError, ValueError):
        return None
    return found
