"""Packaged recipes, recipe lookup by name, and the recipe last run in a workspace.

    base    the common part of most recipes: annotators, policies, permitted licenses
    web     a crawl with every filter on
    demo    the whole pipeline on text of this machine
    tiny    the whole pipeline in under a minute, for tests

`extends: base.yaml` and `-r demo` find these from any folder; a file of that name next to the recipe, or in
the working directory, takes precedence, and `./base.yaml` is always a file.
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


def find(given: str, folder: Path = Path()) -> Path:
    """Return the file of a recipe, which is given by its path or packaged name, with or without `.yaml`. Relative paths
    are relative to `folder`."""
    from plinth.recipe.yaml_lines import named

    return named(given, folder, FOLDER) or folder / given


def load(path: Path, checked: str = "") -> Recipe:
    """Load a recipe file with the recipes that it extends.

    Args:
        checked: fingerprint of a recipe that passed all checks; see `plinth.recipe.load`.

    Raises:
        RecipeError: the file cannot be read or the recipe is invalid. The error lists every problem.
    """
    from plinth.recipe import load as loading

    return loading.load(path, FOLDER, checked)


def check(path: Path) -> tuple[Recipe | None, list[Problem]]:
    """Return the recipe with no problems, or None with the recipe's problems in order of files and lines."""
    from plinth.recipe import load as loading

    return loading.check(path, FOLDER)


def resolved(path: Path) -> dict[str, Any]:
    """Return the recipe as plain data, with `extends:` resolved and defaults filled in.

    Raises:
        RecipeError: the file cannot be read or the recipe is invalid.
    """
    from plinth.recipe import load as loading

    return loading.resolved(path, FOLDER)


def overridden(recipe: Path, overrides: Iterable[str], workspace: Path) -> Path:
    """Write a recipe that extends another recipe and sets keys, and return its path. Overrides are `KEY=VALUE` with a
    dotted key and a value in YAML flow style.

    The recipe is written to this user's private folder for the workspace. The file's name depends on the file's
    content, so that later commands find the file.

    Raises:
        RequestError: an override is not KEY=VALUE, or a key is set twice or below another key.
        WorkspaceError: the file cannot be written.
    """
    keys: dict[str, Any] = {}
    for given in overrides:
        key, separator, value = given.partition("=")
        *parents, last = key.split(".")
        section = keys
        for step in parents:
            section = section.setdefault(step, {}) if isinstance(section, dict) else {last: None}
        if not (separator and all((*parents, last)) and isinstance(section, dict)) or last in section or "\n" in value:
            raise RequestError(
                f"cannot set {given!r}",
                expected="KEY=VALUE with a dotted key and a value in one line; each key once",
                remedy="for example --set training.seed=2",
            )
        section[last] = value
    text = f"extends: {json.dumps(str(recipe.absolute()))}\n" + _yaml(keys, "")
    path = notes_folder(workspace) / f"set-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    write_bytes(path, text.encode())
    return path


def _yaml(keys: dict[str, Any], indent: str) -> str:
    lines = (
        f"{indent}{key}:\n{_yaml(value, indent + '  ')}" if isinstance(value, dict) else f"{indent}{key}: {value}\n"
        for key, value in keys.items()
    )
    return "".join(lines)


# The recipe last run in a workspace, which is the default of later commands, and notes in a workspace, which are
# trusted only if this user wrote them.

# Notes in a workspace that point to a file to load. They are trusted only if this user wrote them.
#
# Other users may write the workspace, and a recipe reads files and starts jobs as its user. So each note has a
# copy in this user's private folder; a note that differs is refused, and the user must name the file again.
#
#     write    a note and its copy
#     read     a note with a matching copy
#     folder   the private folder of a workspace
#     passes   True if one of some files is in the workspace, where others may have edited it

NOTES = "notes"


def notes_folder(workspace: Path) -> Path:
    """Return this user's private folder for a workspace."""
    return private.folder(NOTES) / hashlib.sha256(os.fsencode(workspace.resolve())).hexdigest()[:32]


def write_note(workspace: Path, name: str, data: bytes) -> None:
    """Write a note into the workspace, and a copy into this user's private folder.

    Raises:
        WorkspaceError: a folder cannot be written.
    """
    write_bytes(notes_folder(workspace) / name, data)
    write_bytes(workspace / name, data)


def read_note(workspace: Path, name: str, remedy: str) -> bytes | None:
    """Return a note of the workspace, or None if the workspace has no note of this name.

    Raises:
        RequestError: this user did not write the note.
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
            found="a change since this user's last run" if own else "no run by this user",
            expected=f"the content recorded in {notes_folder(workspace)}",
            remedy=remedy,
        )
    return data


def passes(workspace: Path, files: Iterable[Path]) -> bool:
    """Return True if one of the files is in the workspace, or its path leads through the workspace."""
    root = workspace.resolve()
    steps = {step for path in files for step in (path.absolute(), *path.absolute().parents)}
    places = {place for step in steps for place in (step.parent.resolve() / step.name, step.resolve())}
    return any(place.is_relative_to(root) for place in places)


# The recipe last run in a workspace, which is the default of later commands.
#
# `recipe.json` has its path, and a resolved copy that is used when the path no longer exists. It is trusted only if
# this user wrote it (see notes above). The owner may edit the file at the path. A recipe file in the workspace may be
# edited by others, so its private copy is used, and a change must be confirmed with `-r`.

NOTE = "recipe.json"
COPY = "recipe.yaml"


def remember(workspace: Path, recipe: Path) -> Path:
    """Record the recipe and a copy of it in the workspace, and return the file that later commands load.

    Raises:
        RecipeError: the recipe is invalid; nothing is recorded.
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
    """Return the path of the recipe last run in the workspace. If this path does not exist or is in the workspace,
    return the path of the recipe's private copy.

    Raises:
        MissingError: no recipe was run in this workspace.
        RequestError: this user did not run the recorded recipe, or it has changed in the workspace.
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
    """Return the fingerprint of the recipe last run in the workspace, which passed all checks.

    Raises:
        MissingError: no recipe was run in this workspace.
        RequestError: this user did not run the recorded recipe.
    """
    return str(_note(workspace)["fingerprint"])


def _note(workspace: Path) -> dict[str, Any]:
    data = read_note(workspace, NOTE, "name the recipe again with -r FILE")
    if data is None:
        raise MissingError(
            f"no recipe was run in the workspace {workspace}",
            expected="a recipe given by -r or recorded by an earlier `plinth run`",
            remedy="name a recipe, such as -r demo",
        )
    return dict(json.loads(data))


def _editable(workspace: Path, recipe: Path) -> bool:
    """Return True if users with write access to the workspace can edit the recipe, or a recipe that it extends."""
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
            remedy=f"review it, then confirm with -r {path}",
        )
