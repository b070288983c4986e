"""A user's probe is checked line by line, and with the recipe that names it; items are shown as text."""

import json
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.evaluation.parameters import Probes, UserProbe
from plinth.evaluation.probes import probe_sets
from plinth.storage.workspace import Workspace
from plinth_jobs.cli import call

GOOD = {"prompt": "The capital of Wales is", "gold": "Cardiff", "wrong": ["Swansea"]}
TINY = Path(__file__).parents[3] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"


def write(folder: Path, *rows: object, examples: int = 1) -> Path:
    (folder / "input").mkdir(exist_ok=True)
    (folder / "input" / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = folder / "my.yaml"
    sets = f"{{mine: {{path: mine.jsonl, examples: {examples}}}}}"
    recipe.write_text(f"extends: {TINY}\nname: mine\nevaluation: {{probes: {{sets: {sets}}}}}\n")
    return recipe


def test_bad_lines_are_listed_by_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, GOOD, {"prompt": "x"}, [1])
    path = tmp_path / "input" / "mine.jsonl"
    assert call(["model", "probes", "check", str(path), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [(one["line"], one["reason"][:6]) for one in found["rejects"]] == [(2, "`gold`"), (3, "a JSON")]
    assert found["scored"] == 1
    write(tmp_path, GOOD)
    assert call(["model", "probes", "check", str(path)]) == 0
    assert call(["model", "probes", "check", str(path), "--examples", "1"]) == 2


def test_fewer_items_than_examples_are_found_with_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write(tmp_path, GOOD)
    assert call(["-w", str(tmp_path), "recipe", "check", str(recipe), "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["key"] == "evaluation.probes.sets.mine"
    assert "too few items: 1 items, examples: 1" in problem["message"]
    recipe = write(tmp_path, GOOD, {**GOOD, "prompt": "The largest town of Wales is"})
    assert call(["-w", str(tmp_path), "recipe", "check", str(recipe)]) == 0
    (tmp_path / "input" / "mine.jsonl").unlink()  # the run reports a file that is not there
    assert call(["-w", str(tmp_path), "recipe", "check", str(recipe)]) == 0


def test_an_item_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Foreign text cannot control the terminal, keeps its white space and lines, and is not shown as a Python
    literal."""
    hostile = {"id": "a", "prompt": "Say [red]\x1b[2J\nand", "gold": "it's", "wrong": ["no\u202eon"], "control": "x"}
    write(tmp_path, hostile)
    ctx = Context(Workspace(tmp_path).ensure())
    ctx.refs.publish(probe_sets.run(ctx, Probes(families=(), sets={"mine": UserProbe(path="mine.jsonl")})), key="k")
    assert call(["-w", str(tmp_path), "model", "probes", "explain", "mine/a"]) == 0
    shown = capsys.readouterr().out
    assert "    |Say [red]\\x1b[2J\n    |and\n" in shown
    assert "correct answer\n    | it's\n" in shown
    assert "wrong answer\n    | no\\u202eon\n" in shown
    assert not {"\x1b", "\u202e"} & set(shown)
    assert "examples" not in shown
    assert call(["-w", str(tmp_path), "model", "probes", "explain", "mine/a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == hostile["prompt"]
    assert call(["-w", str(tmp_path), "model", "probes", "explain", "mine/b"]) == 3
    assert call(["-w", str(tmp_path), "model", "probes", "list"]) == 0
