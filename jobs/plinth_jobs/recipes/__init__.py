"""Packaged recipes, how a recipe is found by name, and the recipe that a workspace ran last.

base    the common part of most recipes: annotators, policies, permitted licences
web     a crawl with every filter on
demo    the whole pipeline on text that this machine has
tiny    the whole pipeline in under a minute, for tests

`extends: base.yaml` and `-r demo` find these from any folder; a file of that name beside the recipe, or in the
working directory, comes first, and `./base.yaml` is always the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plinth import private
from plinth.errors import MissingError, RequestError
from plinth.storage.atomic import write_bytes

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


# The recipe that a workspace was last run with, so that later commands need not name it; notes in a workspace that
# count only where this user wrote them.

# Notes in a workspace that name a file to load: they count only where this user wrote them.
#
# Other users may write the workspace, and a recipe reads files and starts jobs as its user. So each note has a twin in
# this user's private folder; a note that differs from it is refused, and named again by the user once.
#
#     write    a note and its twin
#     read     a note that has such a twin
#     folder   the private folder of a workspace
#     passes   True if one of some files is in the workspace, where others may have edited it

NOTES = "notes"


def notes_folder(workspace: Path) -> Path:
    """The private folder of this user for a workspace, by its resolved path."""
    return private.folder(NOTES) / hashlib.sha256(os.fsencode(workspace.resolve())).hexdigest()[:32]


def write_note(workspace: Path, name: str, data: bytes) -> None:
    """Write a note and its twin.

    Raises:
        WorkspaceError: a folder cannot be written.
    """
    write_bytes(notes_folder(workspace) / name, data)
    write_bytes(workspace / name, data)


def read_note(workspace: Path, name: str, remedy: str) -> bytes | None:
    """A note, or None where the workspace has none.

    Raises:
        RequestError: this user did not write it.
    """
    try:
        data = (workspace / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        own = (notes_folder(workspace) / name).read_bytes()
    except FileNotFoundError:
        own = b""
    if data != own:
        raise RequestError(
            f"{workspace / name} was not written by this user on this machine",
            found="a change since this user's last run" if own else "no run of this user",
            expected=f"the note in {notes_folder(workspace)}",
            remedy=remedy,
        )
    return data


def passes(workspace: Path, files: Iterable[Path]) -> bool:
    """True if one of the files is in the workspace, or is reached through it."""
    root = workspace.resolve()
    steps = {step for path in files for step in (path.absolute(), *path.absolute().parents)}
    places = {place for step in steps for place in (step.parent.resolve() / step.name, step.resolve())}
    return any(place.is_relative_to(root) for place in places)


# The recipe that a workspace was last run with, so that later commands need not name it.
#
# `recipe.json` holds its path, and a copy with `extends:` followed, which is used when the path no longer exists. It
# counts only where this user wrote it (as notes above). The file at the path is its owner's, who may edit it. A recipe
# with a file in the workspace may be edited by others: its private copy is used, and a change is confirmed with `-r`.

NOTE = "recipe.json"
COPY = "recipe.yaml"


def remember(workspace: Path, recipe: Path) -> Path:
    """Note the recipe and keep a copy; returns the file that later commands load.

    Raises:
        RecipeError: the recipe is wrong; nothing is noted.
        WorkspaceError: the private folder cannot be used.
    """
    from plinth.recipe.load import fingerprint, written

    copy = notes_folder(workspace) / COPY
    if recipe.absolute() == copy:
        return copy
    loaded = load(recipe)
    note = {
        "path": str(recipe.absolute()),
        "name": loaded.name,
        "fingerprint": fingerprint(loaded),
        "recipe": written(loaded, defaults=False),
    }
    write_note(workspace, NOTE, json.dumps(note, indent=1).encode())
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
    from plinth.recipe.extension_checks import without_defaults
    from plinth.recipe.recipe import Recipe

    copy = notes_folder(workspace) / COPY
    write_bytes(copy, json.dumps(without_defaults(Recipe, note["recipe"]), indent=1).encode())  # JSON is YAML
    return copy


def checked(workspace: Path) -> str:
    """The fingerprint of the recipe last run here, which passed all checks then.

    Raises:
        MissingError, RequestError: as `recall`.
    """
    return str(_note(workspace)["fingerprint"])


def _note(workspace: Path) -> dict[str, Any]:
    data = read_note(workspace, NOTE, "name the recipe once: -r FILE")
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

    return passes(workspace, files(recipe, FOLDER))


def _require_unchanged(path: Path, known: str) -> None:
    from plinth.recipe.load import fingerprint

    recipe, problems = check(path)
    found = f"{len(problems)} problems" if recipe is None else fingerprint(recipe)
    if found != known:
        raise RequestError(
            f"the recipe {path} is in the workspace and has changed since it was last run",
            found=found,
            expected=known,
            remedy=f"read it, then name it once: -r {path}",
        )
