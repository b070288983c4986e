"""Definitions that packages add to those of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from plinth.extensions import Catalogue
from plinth.recipe.recipe import Recipe


@dataclass(frozen=True)
class AddedDefinitions:
    """Assets, jobs, schedules and sensors of a package of the ring or of a user: a member of `plinth.definitions`.

    Args:
        name: of the entry point.
        build: `(recipe, workspace, address of the pages)` -> definitions, without resources or an executor.
        in_runs: False where only Dagster's code location has them, not a run in this process (`plinth run`).
    """

    name: str
    build: Callable[[Recipe, Path, str], dg.Definitions]
    in_runs: bool = True


#: Imported when the code location is built.
ADDED = Catalogue("plinth.definitions", "definitions", AddedDefinitions, {})
