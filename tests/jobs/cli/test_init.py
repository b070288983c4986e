"""`plinth init`: a project from a folder of data."""

import json
from pathlib import Path

from tests.jobs.test_dg import data_folder


def test_it_writes_a_project_once_and_lists_its_sources(tmp_path: Path, plinth) -> None:
    data = data_folder(tmp_path / "data")
    found = json.loads(plinth("init", "mine", "--data", data, "--licence", "MIT", "--json").out)
    assert found["name"] == "mine"
    assert len(found["sources"]) == 5
    assert all((tmp_path / path).is_file() for path in found["files"])
    again = plinth("init", "mine")
    assert again.code == 2
    assert "already contains files of a project" in again.err
    other = plinth("init", "other", "--data", data)
    assert "bucket web: 1 file of kind jsonl" in other.out
    assert "no reader knows them: 1 file .png" in other.out
    assert found["not_read"] == {".png": 1}
    assert plinth("recipe", "check", "other/recipe.yaml").code == 0
    assert plinth("gates", "check", "other/policy.yaml").code == 0
    assert "cannot be the name of a recipe" in plinth("init", "9lives").err


def test_costs_that_nothing_tells_are_unknown(tmp_path: Path, plinth) -> None:
    plinth("init", "mine", "--data", data_folder(tmp_path / "data"), "--licence", "MIT")
    shown = plinth("run", "-w", "mine/workspace", "-r", "mine/recipe.yaml", "--dry-run")
    assert shown.code == 0, shown.err
    lines = {" ".join(line.split()) for line in shown.out.splitlines()}
    assert {"CPU hours unknown", "rank-hours unknown", "USD unknown", "up to date 0 assets"} <= lines
    assert not (tmp_path / "mine" / "workspace").exists()
