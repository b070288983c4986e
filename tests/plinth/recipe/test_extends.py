"""`extends:` searches next to the recipe, then in packaged recipes; a missing base is one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from plinth.recipe.load import check
from plinth.recipe.yaml_lines import follow


@pytest.fixture
def packaged(tmp_path: Path) -> Path:
    """A folder of packaged recipes, apart from where the user's are."""
    folder = tmp_path / "packaged"
    folder.mkdir()
    (folder / "base.yaml").write_text("name: packaged\n")
    (folder / "web.yaml").write_text("extends: base.yaml\ndescription: web\n")
    return folder


@pytest.mark.parametrize("base", ["web.yaml", "web"])
def test_a_packaged_recipe_is_found_by_name_from_any_folder(tmp_path: Path, packaged: Path, base: str) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: {base}\n")
    found = follow(own, packaged)
    assert found.data == {"name": "packaged", "description": "web"}
    assert not found.problems


def test_a_file_beside_the_recipe_comes_first(tmp_path: Path, packaged: Path) -> None:
    (tmp_path / "base.yaml").write_text("name: beside\n")
    own = tmp_path / "own.yaml"
    own.write_text("extends: base.yaml\n")
    assert follow(own, packaged).data == {"name": "beside"}


@pytest.mark.parametrize("base", ["./base.yaml", "../base.yaml", "/base.yaml"])
def test_a_path_never_means_a_packaged_recipe(tmp_path: Path, packaged: Path, base: str) -> None:
    own = tmp_path / "inner" / "own.yaml"
    own.parent.mkdir()
    own.write_text(f"extends: {base}\n")
    (problem,) = check(own, packaged)[1]
    assert problem.key == "extends"
    assert problem.message.startswith("no file ")


def test_a_recipe_of_a_packaged_name_extends_the_packaged_one(tmp_path: Path, packaged: Path) -> None:
    own = tmp_path / "web.yaml"
    own.write_text("extends: web.yaml\nname: own\n")
    assert follow(own, packaged).data == {"name": "own", "description": "web"}


def test_a_missing_base_is_one_error_that_lists_the_packaged_recipes(tmp_path: Path, packaged: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("name: Wrong\nextends: bas.yaml\nunknown: 1\n")
    (problem,) = check(own, packaged)[1]
    assert (problem.key, problem.mark.line) == ("extends", 2)
    assert "base.yaml, web.yaml" in problem.hint


def test_a_base_that_is_no_yaml_is_one_error_in_its_file(tmp_path: Path, packaged: Path) -> None:
    (packaged / "base.yaml").write_text("name: [\n")
    own = tmp_path / "own.yaml"
    own.write_text("extends: web\n")
    (problem,) = check(own, packaged)[1]
    assert problem.mark.file == str(packaged / "base.yaml")
    assert problem.message.startswith("not YAML")


def test_nothing_is_reported_that_follows_from_an_unread_key(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("name: !!timestamp 2026-11-01\ncorpus: {}\n")
    keys = [problem.key for problem in check(own)[1]]
    assert keys.count("name") == 1
    assert "corpus.buckets" in keys
