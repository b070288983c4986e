"""`extends:` finds files beside the recipe, then packaged recipes; a missing base is one error."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from plinth.recipe.extends import follow
from plinth.recipe.load import check

ROOT = Path(__file__).parents[3]


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


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_wheel_holds_the_packaged_recipes_and_finds_them(tmp_path: Path) -> None:
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    made = subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    site, own = tmp_path / "site", tmp_path / "elsewhere" / "own.yaml"
    zipfile.ZipFile(wheel).extractall(site)
    own.parent.mkdir()
    own.write_text("extends: base.yaml\nname: own\n")
    script = "from plinth_jobs.recipes import FOLDER, check, find; from pathlib import Path; import plinth\n"
    script += "problems = check(Path('own.yaml'))[1]; keys = [p.key for p in problems]\n"
    script += "assert 'extends' not in keys, keys\n"
    script += f"assert FOLDER.is_relative_to({str(site)!r}) and plinth.__file__.startswith({str(site)!r})\n"
    script += "assert find('demo') == FOLDER / 'demo.yaml' and find('demo.yaml') == find('demo')"
    run = [sys.executable, "-c", script]
    ran = subprocess.run(run, cwd=own.parent, env={"PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
