"""Learned gates through the pipeline: models, annotators, slices with bounds that block, and the command."""

import json
from pathlib import Path

import pytest

from tests.jobs.conftest import answer, plinth, variant
from tests.shared import copied

GATES = """
test: true
corpus:
  lists: {toxic: generated/lexicon.tsv, toxic_set: generated/toxicity.jsonl, quality_set: generated/quality.jsonl}
  models:
    toxicity: {kind: classifier, labelled: [toxic_set], lexicon: toxic, window: 64}
    quality: {kind: classifier, labelled: [quality_set], positive: good}
    domain: {kind: tagger, labels: {prose: [prose], code: [code]}, min_documents: 60}
  annotate:
    toxicity: {}
    quality_classifier: {}
    domain: {}
  slices:
    toxicity: {removes: toxicity.final > 0.5, min_recall: 0.9, max_false_positive: 0.1}
    quality: {removes: quality_classifier.final < 0.4, max_over_removal: %s}
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_gates_are_trained_measured_and_shown(corpus: Path, tmp_path: Path) -> None:
    workspace = copied(corpus, tmp_path / "workspace")
    plinth(workspace, "corpus", "slices", "--write", workspace / "input" / "generated")
    # a recipe that is not a test may not learn from generated sets, whether checked or run
    real = variant(tmp_path, (GATES % 0.2).replace("test: true", "test: false"))
    for command in (("recipe", "check"), ("run", "--select", "models/toxicity", "-r")):
        done = plinth(workspace, *command, real, check=False)
        assert "models/toxicity may not read lists/toxic_set" in done.stdout + done.stderr
        assert done.returncode in (2, 4)
    recipe = variant(tmp_path, GATES % 0.2)
    plinth(workspace, "run", "-r", recipe, "--select", "slices/*")
    stats = answer(workspace, "slices")
    assert set(stats) == {"quality", "toxicity"}
    slices = stats["toxicity"]["slices"]
    assert set(slices) == {"all", "medical", "legal", "news", "code", "fiction", "plain"}
    assert all(row["recall"] >= 0.9 and row["false_positive"] <= 0.1 for row in slices.values())
    shown = plinth(workspace, "corpus", "slices", "toxicity", "--misses", 2).stdout
    assert "medical" in shown
    assert "min_recall 0.9" in shown
    labels = answer(workspace, "status", "-r", recipe)
    states = {row["asset"]: row["state"] for row in labels}
    assert states["slices/toxicity"] == states["models/quality"] == "up to date"

    # a label of a reviewer makes the evaluation stale, and nothing above it
    (workspace / "reviews").mkdir()
    said = {"id": "0" * 32, "reason": "toxicity", "label": "bad", "reviewer": "a", "time": "2026-01-01T00:00:00Z"}
    (workspace / "reviews" / "a.jsonl").write_text(json.dumps(said) + "\n")
    states = {row["asset"]: row["state"] for row in answer(workspace, "status", "-r", recipe)}
    assert (states["slices/toxicity"], states["models/toxicity"]) == ("stale", "up to date")

    # bounds that are not kept stop the gate, and what was published before stays
    strict = variant(tmp_path, GATES % 0.0)
    done = plinth(workspace, "run", "-r", strict, "--select", "slices/quality", check=False)
    assert done.returncode == 6
    assert "over removal" in done.stderr + done.stdout
    assert answer(workspace, "slices", "quality")["quality"]["bounds"]["max_over_removal"] == 0.2


def test_mistakes_in_the_recipe_are_named(tmp_path: Path) -> None:
    slices = "{toxcity: {}, quality: {removes: quality_classifier.fin < 1}, toxicity: {removes: c4.sentences < 1}}"
    annotate = "{toxicity: {model: null}, quality_classifier: {}}"
    recipe = variant(tmp_path, f"corpus:\n  annotate: {annotate}\n  slices: {slices}\n")
    done = plinth(tmp_path, "recipe", "check", recipe, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 2
    for what in ("no gate 'toxcity'", "no column 'quality_classifier.fin'", "needs lists/toxic", "models/quality"):
        assert what in said


def test_nothing_measured_yet(tmp_path: Path) -> None:
    (tmp_path / "refs").mkdir()
    done = plinth(tmp_path, "corpus", "slices", check=False)
    assert done.returncode == 3
    assert "no gate was measured" in done.stderr
