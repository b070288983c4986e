"""`plinth recipe check | show | schema`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth.errors import MissingError
from plinth.recipe.load import fingerprint, load
from plinth_jobs import recipes
from plinth_jobs.recipes import recall, remember

Plinth = Callable[..., Any]
RECIPE = """\
name: small
corpus:
  annotate: {language: {}, licence: {}}
  buckets:
    web:
      description: Pages.
      owner: corpus@example.org
      sources:
        - kind: text
          path: pages
          licence: MIT
          terms: {train: true, redistribute: true, commercial: true}
          domain: example.org
          snapshot: 2026-46
  policies: {default: {rules: [{reason: licence, drop: not licence.permitted}]}}
  permitted_licences: [MIT]
mixture:
  total_tokens: 65536
  phases: [{name: main, fraction: 1, weights: {web: 1}}]
release: {name: small}
"""


@pytest.fixture
def right(tmp_path: Path) -> Path:
    path = tmp_path / "right.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.yaml"
    path.write_text(RECIPE.replace("kind: text", "kind: txt").replace("total_tokens", "total_tokns"))
    return path


def test_check_says_right(plinth: Plinth, right: Path) -> None:
    outcome = plinth("recipe", "check", right)
    assert outcome.code == 0
    assert "is valid" in outcome.out
    assert fingerprint(load(right)) in outcome.out


def test_check_notes_a_licence_that_the_gate_will_stop(plinth: Plinth, right: Path) -> None:
    assert "permitted_licences" not in plinth("recipe", "check", right).out
    right.write_text(RECIPE.replace("licence: MIT", "licence: CC-BY-4.0 OR GPL-3.0-only"))
    outcome = plinth("recipe", "check", right)
    assert outcome.code == 0
    assert "sources[0].licence: CC-BY-4.0 OR GPL-3.0-only is not in `corpus.permitted_licences`" in outcome.out
    note, *others = json.loads(plinth("recipe", "check", right, "--json").out)["notes"]
    assert "drops every document" in note
    assert [other.split(":")[0] for other in others] == [
        "training.guard.window_steps / 4",
        "training.checkpoints.every_steps",
    ]


def test_check_names_every_problem(plinth: Plinth, wrong: Path) -> None:
    outcome = plinth("recipe", "check", wrong)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "wrong.yaml:9  corpus.buckets.web.sources[0].kind" in outcome.err
    assert "wrong.yaml:18  mixture.total_tokns: unknown key (did you mean `total_tokens`?)" in outcome.err


def test_check_reads_the_lists(plinth: Plinth, tmp_path: Path) -> None:
    folder = tmp_path / "input" / "blocked"
    folder.mkdir(parents=True)
    path = tmp_path / "lists.yaml"
    corpus = "corpus:\n  lists: {blocked: blocked}\n  illegal: {lists: blocked}\n  annotate: {url: {lists: blocked}, "
    path.write_text(RECIPE.replace("corpus:\n  annotate: {", corpus))
    (folder / "domains.txt").write_text("bücher.example\n")
    assert plinth("--workspace", tmp_path, "recipe", "check", path).code == 0
    (folder / "domains.txt").write_text("bücher.example\nno host\n")
    outcome = plinth("--workspace", tmp_path, "recipe", "check", path)
    assert outcome.code == 2
    assert "corpus.lists.blocked" in outcome.err
    assert "domains.txt, line 2" in outcome.err


def test_check_in_json(plinth: Plinth, right: Path, wrong: Path) -> None:
    good, bad = plinth("recipe", "check", right, "--json"), plinth("recipe", "check", wrong, "--json")
    assert (good.code, bad.code) == (0, 2)
    assert json.loads(good.out)["right"] is True
    problems = json.loads(bad.out)["problems"]
    assert [(problem["line"], problem["key"]) for problem in problems] == [
        (9, "corpus.buckets.web.sources[0].kind"),
        (18, "mixture.total_tokns"),
    ]


def test_show_prints_a_recipe_with_the_same_fingerprint(plinth: Plinth, right: Path, tmp_path: Path) -> None:
    for args in ((), ("--json",)):
        shown = tmp_path / "shown.yaml"
        shown.write_text(plinth("recipe", "show", right, *args).out)
        assert fingerprint(load(shown)) == fingerprint(load(right))
    assert yaml.safe_load(shown.read_text())["tokenizer"]["vocab_size"] == 8192


def test_schema_is_a_json_schema_of_recipes(plinth: Plinth) -> None:
    schema = json.loads(plinth("recipe", "schema").out)
    assert set(schema["required"]) == {"name", "corpus"}
    assert schema["additionalProperties"] is False


def test_a_key_that_is_set_counts_as_in_a_file_that_extends(plinth: Plinth, right: Path, tmp_path: Path) -> None:
    given = ("mixture.total_tokens=131072", "corpus.permitted_licences=[MIT, Apache-2.0]", "name=larger")
    sets = [word for text in given for word in ("--set", text)]
    body = "mixture: {total_tokens: 131072}\ncorpus: {permitted_licences: [MIT, Apache-2.0]}\nname: larger\n"
    (tmp_path / "file.yaml").write_text(f"extends: right.yaml\n{body}")
    same = load(tmp_path / "file.yaml")
    assert fingerprint(same) in plinth("recipe", "check", str(right), *sets).out
    assert yaml.safe_load(plinth("recipe", "show", str(right), *sets).out)["name"] == "larger"
    remember(tmp_path / "workspace", recipes.overridden(right, given, tmp_path / "workspace"))
    assert load(recall(tmp_path / "workspace")) == same
    assert "total_tokns" in plinth("recipe", "check", str(right), "--set", "mixture.total_tokns=1").err


@pytest.mark.parametrize(
    "given", [["name"], ["=x"], ["a..b=1"], ["a=1", "a=2"], ["a=1", "a.b=2"], ["a.b=1", "a=2"], ["a=1\nb: 2"]]
)
def test_what_cannot_be_set_is_refused(plinth: Plinth, right: Path, given: list[str]) -> None:
    refused = plinth("recipe", "check", str(right), *(word for text in given for word in ("--set", text)))
    assert refused.code == 2
    assert "expected: KEY=VALUE" in refused.err


def test_absent_recipe(plinth: Plinth) -> None:
    outcome = plinth("recipe", "check", "absent.yaml")
    assert outcome.code == 2
    assert "absent.yaml" in outcome.err


class TestRemembered:
    def test_the_last_run_recipe_is_the_default(self, plinth: Plinth, right: Path, tmp_path: Path) -> None:
        remember(tmp_path / "workspace", right)
        assert fingerprint(load(right)) in plinth("recipe", "check").out

    def test_a_copy_by_0_3_serves_too(self, right: Path, tmp_path: Path) -> None:
        workspace = tmp_path / "workspace"
        remember(workspace, right)
        note = json.loads((workspace / "recipe.json").read_bytes())
        note |= {"recipe": load(right).model_dump(mode="json"), "path": str(tmp_path / "gone.yaml")}
        recipes.write_note(workspace, "recipe.json", json.dumps(note).encode())
        assert fingerprint(load(recall(workspace))) == fingerprint(load(right))

    def test_a_copy_serves_when_the_file_has_gone(self, right: Path, tmp_path: Path) -> None:
        before = load(right)
        remember(tmp_path / "ws", right)
        right.unlink()
        assert load(recall(tmp_path / "ws")) == before

    def test_a_workspace_in_which_nothing_was_run(self, tmp_path: Path) -> None:
        with pytest.raises(MissingError, match="no recipe was run in"):
            recall(tmp_path)
