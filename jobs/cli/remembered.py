"""The recipe that a workspace was last run with, so that later commands need not name it.

`recipe.json` holds its path; `recipe.yaml` is a copy with `extends:` followed, for when the path has gone.
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
    import yaml

    from plinth.recipe.load import fingerprint, load

    loaded = load(recipe)
    text = yaml.safe_dump(loaded.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    write_bytes(workspace / "recipe.yaml", text.encode())
    note = {"path": str(recipe.resolve()), "name": loaded.name, "fingerprint": fingerprint(loaded)}
    write_bytes(workspace / "recipe.json", json.dumps(note, indent=2).encode())


def recall(workspace: Path) -> Path:
    """The path of the recipe last run here, or of its copy.

    Raises:
        MissingError: when nothing was run in this workspace.
    """
    try:
        path = Path(json.loads((workspace / "recipe.json").read_bytes())["path"])
    except (FileNotFoundError, NotADirectoryError, KeyError, ValueError) as error:
        raise MissingError(
            f"the workspace {workspace} remembers no recipe",
            expected="a recipe, by -r or from an earlier `plinth run`",
            remedy="name one: -r jobs/recipes/demo.yaml",
        ) from error
    return path if path.is_file() else workspace / "recipe.yaml"
