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

from assets import experiment as wiring
from assets.framework.stage import Stage
from jobs import recipes
from plinth.errors import MissingError, PlinthError
from plinth.experiment import arms
from plinth.experiment.arms import Arm
from plinth.experiment.parameters import Experiment
from plinth.storage.atomic import write_bytes

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
    write_bytes(workspace / "experiments" / experiment.name / NOTE, json.dumps(note).encode())


def noted(workspace: Path, name: str) -> Path:
    """Where the file of an experiment lies that a workspace has run.

    Raises:
        MissingError: it has run none of that name.
    """
    note = workspace / "experiments" / name / NOTE
    if not note.is_file():
        raise MissingError(f"this workspace has run no experiment {name}", expected=f"a file {note}")
    return Path(json.loads(note.read_bytes())["path"])


def remembered(workspace: Path) -> Iterator[Stage]:
    """Stages of the experiments that a workspace has run; a file that is gone or wrong by now has none."""
    for note in sorted((workspace / "experiments").glob(f"*/{NOTE}")):
        try:
            experiment, runs = load(Path(json.loads(note.read_bytes())["path"]))
        except (PlinthError, ValueError, KeyError) as error:
            warnings.warn(f"experiment {note.parent.name} is not shown: {error}", stacklevel=2)
            continue
        if experiment.name == note.parent.name:  # else the file was given another name since
            yield from wiring.of(experiment, runs)
