"""The parts of an exporter that a process of its own collects: those that read signatures, lineage, whole timelines.

They load some 80 MiB that the exporter itself needs no second time: see `plinth.operation.metrics.part_process`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plinth.compute.context import Context
from plinth.compute.worker_process import Handler, ItemWatch
from plinth.errors import MissingError
from plinth.operation.metrics.part_process import handler
from plinth.storage.workspace import Workspace
from plinth_jobs.last_recipe import recall
from plinth_registry.metrics import canary_samples, level_samples, release_samples

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe


def serve(watch: ItemWatch, workspace: str, recipe: str = "") -> Handler:
    """What the process runs.

    Args:
        workspace: its folder.
        recipe: whose release's canary is watched; by default that of the last run, without which none is.
    """
    ctx = Context(Workspace(workspace))

    def loaded() -> Recipe | None:
        from plinth_jobs.recipes import load

        try:
            return load(Path(recipe) if recipe else recall(ctx.workspace.root))
        except MissingError:
            return None

    return handler(
        watch,
        {
            "registry": lambda: release_samples(ctx),
            "canary": lambda: canary_samples(ctx, loaded),
            "service levels": lambda: level_samples(ctx),
        },
    )
