"""Packaged experiments, how one is found by name, and those that a workspace has run.

filters   what FineWeb's rules and Plinth's policy bring over raw text, on the demo's text
pages     what it brings beside C4's, Gopher's and FineWeb's rules, on pages of Debian's documentation packages
ladder    what four sizes foretell of a fifth, on the same text
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

from plinth.errors import MissingError, PlinthError, RequestError
from plinth.experiment import arms
from plinth.experiment.arms import Arm, Experiment
from plinth.recipe.extends import files, named
from plinth.recipe.yaml_lines import read
from plinth_assets import experiment as wiring
from plinth_assets.framework.stage import Stage
from plinth_jobs import own_notes, recipes

FOLDER = Path(__file__).parent
#: In the folder of an experiment: where its file lies.
NOTE = "experiment.json"


def load(path: Path) -> tuple[Experiment, tuple[Arm, ...]]:
    """An experiment's file, or a packaged one by its name, with its runs.

    Raises:
        MissingError: no such file.
        RecipeError, BudgetError: as `plinth.experiment.arms.load`.
    """
    return arms.load(find(path), recipes.FOLDER)


def find(path: Path) -> Path:
    """The file that a path or the name of a packaged experiment means.

    Raises:
        MissingError: there is none.
    """
    packaged = FOLDER / f"{path.name.removesuffix('.yaml')}.yaml"
    target = path if path.is_file() else packaged
    if not target.is_file():
        known = ", ".join(sorted(one.stem for one in FOLDER.glob("*.yaml")))
        raise MissingError(f"no experiment {path}", expected=f"a file, or one of the packaged ones: {known}")
    return target


def remember(workspace: Path, experiment: Experiment, path: Path) -> None:
    """Note where the file of an experiment lies, so that `plinth up` shows its assets."""
    note = {"path": str(find(path).absolute())}
    own_notes.write(workspace, _note(experiment.name), json.dumps(note).encode())


def noted(workspace: Path, name: str) -> Path:
    """Where the file of an experiment lies that this user has run in a workspace.

    Raises:
        MissingError: none of that name has run.
        RequestError: another user ran it, or its file or recipe is in the workspace, where others may have edited it.
    """
    again = "run it once more by its file: `plinth experiment run FILE`"
    data = own_notes.read(workspace, _note(name), again)
    if data is None:
        raise MissingError(
            f"this workspace has run no experiment {name}", expected=f"a file {workspace / _note(name)}"
        )
    path = Path(json.loads(data)["path"])
    if path.is_file() and own_notes.passes(workspace, _files(path)):
        raise RequestError(
            f"experiment {name} is not loaded by its name",
            found=f"a file in the workspace, which others may have edited: {path}, or its recipe",
            remedy="keep the file and its recipe outside the workspace",
        )
    return path


def remembered(workspace: Path) -> Iterator[Stage]:
    """Stages of the experiments that this user has run in a workspace; a file that is gone or wrong by now has none."""
    for name in sorted(note.parent.name for note in (workspace / "experiments").glob(f"*/{NOTE}")):
        try:
            experiment, runs = load(noted(workspace, name))
        except (PlinthError, ValueError, KeyError) as error:
            warnings.warn(f"experiment {name} is not shown: {error}", stacklevel=2)
            continue
        if experiment.name == name:  # else the file was given another name since
            yield from wiring.of(experiment, runs)


def _note(name: str) -> str:
    return f"experiments/{name}/{NOTE}"


def _files(path: Path) -> tuple[Path, ...]:
    """The file of an experiment, its recipe, and the recipes that this one extends."""
    recipe = read(path, path.name).data.get("recipe")
    found = named(recipe, path.parent, recipes.FOLDER) if isinstance(recipe, str) else None
    return (path, *(files(found, recipes.FOLDER) if found else ()))
