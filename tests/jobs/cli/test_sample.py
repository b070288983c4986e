"""`plinth corpus sample`, `review`, `label`, `policy try`, `ledger export` on a judged corpus."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.storage.workspace import Workspace
from tests import judged_corpus

Plinth = Callable[..., Any]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judged_corpus.copy(tmp_path_factory, tmp_path_factory.mktemp("judged")).workspace.root


@pytest.fixture
def workspace(judged: Path, tmp_path: Path) -> Path:
    """A copy where the commands look."""
    shutil.copytree(judged, tmp_path / "workspace")
    return tmp_path / "workspace"


def test_from_sample_to_summary(plinth: Plinth, workspace: Path) -> None:
    assert plinth("corpus", "sample", "--reason", "too_few_words", "-b", "web", "--out", "short.jsonl").code == 0
    rows = [json.loads(line) for line in Path("short.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    rows[0]["label"], rows[1]["label"], rows[1]["note"] = "good", "bad", "empty phrases"
    Path("short.jsonl").write_text("\n".join(map(json.dumps, rows)))
    kept = plinth("corpus", "review", "short.jsonl", "--reviewer", "ada@example.org", "--json")
    assert json.loads(kept.out) == {"kept": 2, "without_label": 4}
    lines = (workspace / "reviews" / "ada_example.org.jsonl").read_text().splitlines()
    assert [set(json.loads(line)) for line in lines] == [{"id", "reason", "label", "reviewer", "time", "note"}] * 2
    assert plinth("corpus", "label", rows[2]["id"], "bad", "--reviewer", "bob").code == 0
    assert (
        plinth("corpus", "label", rows[0]["id"], "bad", "--reviewer", "ada@example.org", "--note", "seen again").code
        == 0
    )
    (row,) = json.loads(plinth("corpus", "review", "summary", "--json").out)
    assert (row["reason"], row["labels"], row["rightly_removed"]) == ("too_few_words", 3, 3)
    assert "too_few_words" in plinth("corpus", "review", "summary").out


def test_a_label_needs_a_reason(plinth: Plinth, workspace: Path) -> None:
    kept = json.loads(plinth("explain", judged_corpus.uri("prose", 0), "--json").out)["id"]
    outcome = plinth("corpus", "label", kept, "good")
    assert outcome.code == 3
    assert "was not removed" in outcome.err
    assert plinth("corpus", "label", "nobody", "good", "--reason", "x").code == 2
    assert not (workspace / "reviews").exists() or not list((workspace / "reviews").iterdir())


def test_lines_that_are_no_sample_are_named(plinth: Plinth, workspace: Path) -> None:
    Path("bad.jsonl").write_text('{"id": "1", "reason": "x"}\n{"id"\n')
    outcome = plinth("corpus", "review", "bad.jsonl")
    assert (outcome.code, "bad.jsonl:2 is not JSON" in outcome.err) == (2, True)
    assert plinth("corpus", "review", "nowhere.jsonl").code == 3


def test_sample_in_the_terminal(plinth: Plinth, workspace: Path) -> None:
    shown = plinth("corpus", "sample", "--reason", "too_few_words", "-n", "2").out
    assert "gopher_quality.word_count = 10  (gopher_quality.word_count < 20)" in shown
    assert shown.count("https://") == 2
    unknown = plinth("corpus", "sample", "--reason", "too_short")
    assert unknown.code == 3
    assert "too_few_words (8)" in unknown.err
    assert plinth("corpus", "sample", "--reason", "empty", "--bucket", "wbe").code == 3


def test_policy_try(plinth: Plinth, workspace: Path) -> None:
    recipe = Path(judged_corpus.__file__).parents[1] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"
    rules = [dict(rule) for rule in judged_corpus.RULES]
    rules[1]["drop"] = "gopher_quality.word_count < 5"
    policies = {"default": {"profiles": [], "rules": rules}}
    tried = {"extends": str(recipe), "corpus": {"buckets": {"code": None}, "policies": policies}}
    tried |= {"mixture": {"phases": [{"name": "main", "fraction": 1.0, "weights": {"web": 1}}]}}
    Path("new.yaml").write_text(json.dumps(tried))
    found = json.loads(plinth("corpus", "policy", "try", "new.yaml", "-r", "new.yaml", "--json").out)
    assert found["total"]["newly_kept"]["documents"] == 8
    assert {row["reason"] for row in found["samples"]} == {"too_few_words"}
    shown = plinth("corpus", "policy", "try", "new.yaml", "-r", "new.yaml", "--bucket", "web")
    assert shown.code == 0
    assert "too_few_words" in shown.out
    assert "gopher_quality.word_count = 10" in shown.out
    Path("wrong.yaml").write_text(
        "policies:\n  default:\n    rules:\n      - {reason: x, drop: gopher_quality.wrds < 5}\n"
    )
    wrong = plinth("corpus", "policy", "try", "wrong.yaml", "-r", "new.yaml")
    assert wrong.code == 2
    assert "wrong.yaml:4" in wrong.err
    assert plinth("corpus", "policy", "try", "new.yaml", "-r", "new.yaml", "--bucket", "wbe").code == 3
    assert "no bucket has" not in shown.err
    Path("spare.yaml").write_text(json.dumps({"policies": {"spare": {"profiles": [], "rules": rules}}}))
    spare = plinth("corpus", "policy", "try", "spare.yaml", "-r", "new.yaml")
    assert "no bucket uses the policy spare" in spare.err


def test_ledger_before_it_is_made(plinth: Plinth, workspace: Path) -> None:
    outcome = plinth("corpus", "ledger", "export", "out")
    assert outcome.code == 3
    assert "plinth run --select ledger" in outcome.err
    assert not Path("out").exists()
    assert Workspace(workspace).root.is_dir()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_source_value(plinth: Plinth, workspace: Path) -> None:
    recipe = Path(judged_corpus.__file__).parents[1] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"
    tried = {"extends": str(recipe), "corpus": {"annotate": {"c4": None, "fineweb": None, "gopher_repetition": None}}}
    tried["corpus"]["policies"] = {"default": judged_corpus.POLICY.model_dump(mode="json"), "code": {"rules": []}}
    tried["corpus"]["policies"]["code"]["rules"] = judged_corpus.POLICY.model_dump(mode="json")["rules"]
    Path("r.yaml").write_text(json.dumps(tried))
    lines = [json.dumps({"text": text}) for text, _ in judged_corpus.texts("prose")]
    Path("new.jsonl").write_text("\n".join(lines) + "\n")
    words = ("corpus", "source", "value", "new.jsonl", "-r", "r.yaml", "--kind", "jsonl", "--licence", "MIT")
    outcome = plinth(*words, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["acceptance"]["duplicates_of_corpus"]["value"] == 1.0
    assert found["effective"]["bytes"]["value"] == 0.0
    shown = plinth(*words).out
    assert "in the corpus already" in shown
    assert "too_few_words" in shown
    unknown = plinth("corpus", "source", "value", "nowhere", "-r", "r.yaml")
    assert (unknown.code, "--kind and --licence" in unknown.err) == (3, True)
    unstated = plinth(*words[:-1], "unknown")
    assert (unstated.code, "licence: the license is missing" in unstated.err) == (2, True)
