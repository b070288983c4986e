"""The recipe that a workspace was last run with, so that later commands need not name it.

`recipe.json` holds its path, and a copy with `extends:` followed, which is used when the path no longer exists.
"""

from __future__ import annotations

import json
from pathlib import Path

from plinth.errors import MissingError
from plinth.storage.atomic import write_bytes


def remember(workspace: Path, recipe: Path) -> None:
    """Note the recipe and keep a copy.

    Raises:
        RecipeError: the recipe is wrong; nothing is noted.
    """
    from jobs.recipes import load
    from plinth.recipe.load import fingerprint, written

    loaded = load(recipe)
    note = {
        "path": str(recipe.absolute()),
        "name": loaded.name,
        "fingerprint": fingerprint(loaded),
        "recipe": written(loaded, defaults=False),
    }
    write_bytes(workspace / "recipe.json", json.dumps(note, indent=1).encode())


def recall(workspace: Path) -> Path:
    """The path of the recipe last run here, or of its copy when that path no longer exists.

    Raises:
        MissingError: when nothing was run in this workspace.
    """
    from plinth.recipe.recipe import Recipe
    from plinth.recipe.retired import without_defaults

    try:
        note = json.loads((workspace / "recipe.json").read_bytes())
        path = Path(note["path"])
        if path.is_file():
            return path
        copy = workspace / "tmp" / "recipe.yaml"
        write_bytes(copy, json.dumps(without_defaults(Recipe, note["recipe"]), indent=1).encode())  # JSON is YAML
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError) as error:
        raise MissingError(
            f"the workspace {workspace} has no recipe of an earlier run",
            expected="a recipe, by -r or from an earlier `plinth run`",
            remedy="name one: -r demo",
        ) from error
    return copy
