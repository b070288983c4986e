"""Packaged recipes, and how a recipe is found by name.

base    the common part of most recipes: annotators, policies, permitted licences
web     a crawl with every filter on
demo    the whole pipeline on text that this machine has
tiny    the whole pipeline in under a minute, for tests

`extends: base.yaml` and `-r demo` find these from any folder; a file of that name beside the recipe, or in the
working directory, comes first, and `./base.yaml` is always the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe
    from plinth.recipe.yaml_lines import Problem

FOLDER = Path(__file__).parent


def find(given: str) -> Path:
    """The file that `-r` means: a path, or the name of a packaged recipe with or without `.yaml`."""
    from plinth.recipe.yaml_lines import named

    return named(given, Path(), FOLDER) or Path(given)


def load(path: Path, checked: str = "") -> Recipe:
    """The recipe in a file, over the packaged recipes that it extends.

    Args:
        checked: fingerprint of a recipe that passed all checks; see `plinth.recipe.load`.

    Raises:
        RecipeError: the file cannot be read or the recipe is wrong; lists every problem.
    """
    from plinth.recipe import load as loading

    return loading.load(path, FOLDER, checked)


def check(path: Path) -> tuple[Recipe | None, list[Problem]]:
    """The recipe, or None and its problems in the order of files and lines."""
    from plinth.recipe import load as loading

    return loading.check(path, FOLDER)


def resolved(path: Path) -> dict[str, Any]:
    """The recipe as plain data, with `extends:` followed and defaults filled in.

    Raises:
        RecipeError: as `load`.
    """
    from plinth.recipe import load as loading

    return loading.resolved(path, FOLDER)
