"""What a checklist is evaluated over: a workspace with its recipe, each part read once for all lines."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from plinth.compute.context import Context
from plinth.operation.checklists.settings import ChecklistSettings

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe
    from plinth.training.config import RunConfig


@dataclass(frozen=True)
class CheckScope:
    """A workspace with its recipe.

    Args:
        recipe: None where the workspace has none yet.
        recipe_path: its file.
        now: Unix seconds.
    """

    ctx: Context
    recipe: Recipe | None = None
    recipe_path: Path | None = None
    settings: ChecklistSettings = field(default_factory=ChecklistSettings)
    now: float = field(default_factory=time.time)

    @cached_property
    def runs(self) -> tuple[RunConfig, ...]:
        """The runs of the workspace, the newest timeline last.

        Raises:
            TrainingError: a configuration is broken.
        """
        from plinth.training import config as configuration

        found = [configuration.load(path) for path in sorted(self.ctx.workspace.runs.glob("*/config.json"))]
        begun = [config for config in found if config.directory.events.exists()]
        return tuple(sorted(begun, key=lambda config: config.directory.events.stat().st_mtime))

    @property
    def newest_run(self) -> RunConfig | None:
        """The run that was trained last."""
        return self.runs[-1] if self.runs else None
