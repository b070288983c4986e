"""Attack: write access to the workspace, including the note of the recipe and experiment that commands use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.errors import RequestError
from plinth.recipe.load import fingerprint
from plinth_jobs import recipes
from plinth_jobs.cli import call
from plinth_jobs.recipes import load, recall, remember
from plinth_lab.experiments import run as experiments

RECIPE = """\
name: small
corpus:
  annotate: {{language: {{}}, licence: {{}}}}
  buckets:
    web:
      description: Pages.
      owner: corpus@example.org
      sources:
        - kind: text
          path: {path}
          licence: MIT
          terms: {{train: true, redistribute: true, commercial: true}}
          domain: example.org
          snapshot: 2026-46
  policies: {{default: {{rules: [{{reason: licence, drop: not licence.permitted}}]}}}}
  permitted_licences: [MIT]
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace/input/pages").mkdir(parents=True)
    (tmp_path / "workspace/input/pages/a.txt").write_text("A page of text.\n")
    return tmp_path / "workspace"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine/recipe.yaml"
    path.parent.mkdir()
    path.write_text(RECIPE.format(path="pages"))
    return path


def evil(folder: Path) -> Path:
    """A recipe whose source is somewhere else."""
    path = folder / "evil.yaml"
    path.write_text(RECIPE.format(path="/etc/hostname"))
    return path


def other_path(workspace: Path) -> None:
    note = json.loads((workspace / "recipe.json").read_bytes())
    note["path"] = str(evil(workspace / "tmp"))
    (workspace / "recipe.json").write_text(json.dumps(note))


def other_copy(workspace: Path) -> None:
    note = json.loads((workspace / "recipe.json").read_bytes())
    note["recipe"]["corpus"]["buckets"]["web"]["sources"][0]["path"] = "/etc/hostname"
    note["path"] = "/nowhere.yaml"
    (workspace / "recipe.json").write_text(json.dumps(note))


def note_of_another_workspace(workspace: Path) -> None:
    """A genuine note that this user has elsewhere."""
    other = workspace.parent / "other"
    remember(other, evil(workspace.parent))
    shutil.copy(other / "recipe.json", workspace / "recipe.json")


@pytest.mark.parametrize("attack", [other_path, other_copy, note_of_another_workspace])
def test_another_recipe_in_the_workspaces_note(
    workspace: Path, recipe: Path, attack: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    (workspace / "tmp").mkdir()
    remember(workspace, recipe)
    assert recall(workspace) == recipe
    attack(workspace)
    with pytest.raises(RequestError, match=r"recipe\.json was not written by this user"):
        recall(workspace)
    assert call(["-w", str(workspace), "run", "--select", "web/documents"]) == 2
    assert "-r FILE" in capfd.readouterr().err
    assert not (workspace / "refs").exists()  # nothing was read
    remember(workspace, recipe)  # the user names it once
    assert recall(workspace) == recipe


def test_a_note_that_no_run_of_this_user_wrote(workspace: Path, recipe: Path, tmp_path: Path) -> None:
    """As in a workspace of another machine, or one that was made up."""
    remember(workspace, recipe)
    elsewhere = shutil.copytree(workspace, tmp_path / "restored")
    with pytest.raises(RequestError, match="was not written by this user"):
        recall(elsewhere)
    remember(elsewhere, recipe)
    assert recall(elsewhere) == recall(workspace) == recipe
    (tmp_path / "link").symlink_to(workspace)
    assert recall(tmp_path / "link") == recipe  # one workspace, wherever a link leads to it


def test_the_owners_edit_outside_the_workspace_needs_no_word(workspace: Path, recipe: Path) -> None:
    remember(workspace, recipe)
    recipe.write_text(RECIPE.format(path="other-pages"))
    assert recall(workspace) == recipe


def test_a_copy_in_the_workspace_is_not_read(workspace: Path, recipe: Path) -> None:
    """The recipe is deleted, and an attacker with write access to the workspace edits its copies there too."""
    known = fingerprint(load(recipe))
    remember(workspace, recipe)
    recipe.unlink()
    copy = recall(workspace)
    assert not recipes.passes(workspace, [copy])
    assert fingerprint(load(copy)) == known


def place_inside(workspace: Path, recipe: Path) -> Path:
    return recipe.rename(workspace / "recipe.yaml")


def extends_inside(workspace: Path, recipe: Path) -> Path:
    base = recipe.rename(workspace / "base.yaml")
    recipe.write_text(f"extends: {base}\n")
    return recipe


def link_inside(workspace: Path, recipe: Path) -> Path:
    (workspace / "link.yaml").symlink_to(recipe)
    return workspace / "link.yaml"


def folder_inside(workspace: Path, recipe: Path) -> Path:
    (workspace / "recipes").symlink_to(recipe.parent)
    return workspace / "recipes" / recipe.name


@pytest.mark.parametrize("placed", [place_inside, extends_inside, link_inside, folder_inside])
def test_a_recipe_that_is_in_the_workspace_and_changes(
    workspace: Path, recipe: Path, placed: Callable[[Path, Path], Path]
) -> None:
    known, path = fingerprint(load(recipe)), placed(workspace, recipe)
    copy = remember(workspace, path)  # what the servers of `plinth up` are given as well
    assert copy == recall(workspace)
    assert not recipes.passes(workspace, [copy])
    assert fingerprint(load(copy)) == known
    for name in ("recipe.yaml", "base.yaml", "link.yaml", "recipes"):
        if (file := workspace / name).exists():
            file.unlink()
            planted = evil(workspace.parent)
            file.symlink_to(planted.parent if name == "recipes" else planted)
    if placed is folder_inside:
        planted.rename(planted.parent / recipe.name)
    with pytest.raises(RequestError, match="has changed since it was last run"):
        recall(workspace)
    assert fingerprint(load(copy)) == known
    assert fingerprint(load(remember(workspace, path))) != known  # its user has named it


def test_another_experiment_in_the_workspaces_note(workspace: Path, tmp_path: Path) -> None:
    """`plinth up` loads the experiments that ran here, and their recipes."""
    known, _ = experiments.load(Path("filters"))
    experiments.remember(workspace, known, Path("filters"))
    assert list(experiments.remembered(workspace))
    assert experiments.noted(workspace, "filters") == experiments.FOLDER / "filters.yaml"
    inside = workspace / "experiments/filters/filters.yaml"
    shutil.copy(experiments.FOLDER / "filters.yaml", inside)
    note = inside.with_name(experiments.NOTE)
    note.write_text(json.dumps({"path": str(inside)}))
    with pytest.raises(RequestError, match="was not written by this user"):
        experiments.noted(workspace, "filters")
    with pytest.warns(UserWarning, match="experiment filters is not shown"):
        assert list(experiments.remembered(workspace)) == []
    experiments.remember(workspace, known, inside)
    with pytest.raises(RequestError, match="others may have edited"):
        experiments.noted(workspace, "filters")
