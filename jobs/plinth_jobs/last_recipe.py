"""The recipe that a workspace was last run with, so that later commands need not name it.

`recipe.json` holds its path, and a copy with `extends:` followed, which is used when the path no longer exists. It
counts only where this user wrote it (`own_notes`). The file at the path is its owner's, who may edit it. A recipe with
a file in the workspace may be edited by others: its private copy is used, and a change is confirmed with `-r`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plinth.errors import MissingError, RequestError
from plinth.storage.atomic import write_bytes
from plinth_jobs import own_notes

NOTE = "recipe.json"
COPY = "recipe.yaml"


def remember(workspace: Path, recipe: Path) -> Path:
    """Note the recipe and keep a copy; returns the file that later commands load.

    Raises:
        RecipeError: the recipe is wrong; nothing is noted.
        WorkspaceError: the private folder cannot be used.
    """
    from plinth.recipe.load import fingerprint, written
    from plinth_jobs.recipes import load

    copy = own_notes.folder(workspace) / COPY
    if recipe.absolute() == copy:
        return copy
    loaded = load(recipe)
    note = {
        "path": str(recipe.absolute()),
        "name": loaded.name,
        "fingerprint": fingerprint(loaded),
        "recipe": written(loaded, defaults=False),
    }
    own_notes.write(workspace, NOTE, json.dumps(note, indent=1).encode())
    return recall(workspace)


def recall(workspace: Path) -> Path:
    """The path of the recipe last run here, or of its copy when that path no longer exists or is in the workspace.

    Raises:
        MissingError: nothing was run in this workspace.
        RequestError: this user did not run the recipe that the workspace names, or it has changed in the workspace.
    """
    note = _note(workspace)
    path = Path(note["path"])
    if path.is_file():
        if not _editable(workspace, path):
            return path
        _require_unchanged(path, note["fingerprint"])
    from plinth.recipe.recipe import Recipe
    from plinth.recipe.retired import without_defaults

    copy = own_notes.folder(workspace) / COPY
    write_bytes(copy, json.dumps(without_defaults(Recipe, note["recipe"]), indent=1).encode())  # JSON is YAML
    return copy


def checked(workspace: Path) -> str:
    """The fingerprint of the recipe last run here, which passed all checks then.

    Raises:
        MissingError, RequestError: as `recall`.
    """
    return str(_note(workspace)["fingerprint"])


def _note(workspace: Path) -> dict[str, Any]:
    data = own_notes.read(workspace, NOTE, "name the recipe once: -r FILE")
    if data is None:
        raise MissingError(
            f"the workspace {workspace} has no recipe of an earlier run",
            expected="a recipe, by -r or from an earlier `plinth run`",
            remedy="name one: -r demo",
        )
    return dict(json.loads(data))


def _editable(workspace: Path, recipe: Path) -> bool:
    """True if the recipe, or one that it extends, is a file that who writes the workspace can edit."""
    from plinth.recipe.yaml_lines import files
    from plinth_jobs.recipes import FOLDER

    return own_notes.passes(workspace, files(recipe, FOLDER))


def _require_unchanged(path: Path, known: str) -> None:
    from plinth.recipe.load import fingerprint
    from plinth_jobs.recipes import check

    recipe, problems = check(path)
    found = f"{len(problems)} problems" if recipe is None else fingerprint(recipe)
    if found != known:
        raise RequestError(
            f"the recipe {path} is in the workspace and has changed since it was last run",
            found=found,
            expected=known,
            remedy=f"read it, then name it once: -r {path}",
        )
