"""`plinth init`: a project from a folder of data."""

import json
import shlex
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


def test_names_that_hide_a_package_are_refused(plinth) -> None:
    for name in ("class", "code", "dagster", "plinth-jobs"):
        refused = plinth("init", name)
        assert (refused.code, "cannot be the name of a project" in refused.err) == (2, True)


def test_next_commands_can_be_pasted(tmp_path: Path, plinth) -> None:
    shown = plinth("init", "my data/mine").out
    (command,) = [line for line in shown.splitlines() if "plinth recipe check" in line]
    assert plinth(*shlex.split(command)[1:4]).code == 0


def test_a_license_that_the_policy_drops_is_told(tmp_path: Path, plinth) -> None:
    data = data_folder(tmp_path / "data")
    told = "its documents are dropped"
    assert told in plinth("init", "one", "--data", data, "--licence", "CC-BY-4.0").out
    assert told not in plinth("init", "two", "--data", data, "--licence", "MIT").out


def test_costs_that_nothing_tells_are_unknown(tmp_path: Path, plinth) -> None:
    plinth("init", "mine", "--data", data_folder(tmp_path / "data"), "--licence", "MIT")
    shown = plinth("run", "-w", "mine/workspace", "-r", "mine/recipe.yaml", "--dry-run")
    assert shown.code == 0, shown.err
    lines = {" ".join(line.split()) for line in shown.out.splitlines()}
    assert {"CPU hours unknown", "rank-hours unknown", "USD unknown", "up to date 0 assets"} <= lines
    assert not (tmp_path / "mine" / "workspace").exists()
