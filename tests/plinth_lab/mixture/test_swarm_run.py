"""A swarm of mixtures through Dagster finds the bucket that was planted to be the best, and writes it as a recipe."""

import json
import random
from pathlib import Path

import pytest
import yaml

from plinth.storage.workspace import Workspace
from plinth_registry.mlflow.server import stop_server
from tests.jobs.conftest import answer, plinth
from tests.tiny_corpus import article

#: One bucket has the language of the test text; in the others its words are shuffled, or in order of the alphabet.
BUCKETS = ("articles", "shuffled", "sorted")
RECIPE = {
    "extends": "tiny",
    "name": "planted",
    "corpus": {
        "buckets": {
            **dict.fromkeys(("web", "prose", "code")),
            **{
                name: {
                    "description": "Generated.",
                    "owner": "tests@example.org",
                    "sources": [
                        {
                            "kind": "jsonl",
                            "path": f"planted/{name}.jsonl",
                            "licence": "CC0-1.0",
                            "terms": {"train": True, "redistribute": True, "commercial": True},
                            "domain": f"{name}.example",
                            "snapshot": "2026-46",
                        }
                    ],
                }
                for name in BUCKETS
            },
        },
        "policies": {"default": {"profiles": [], "rules": []}},
        "holdout": {"min_documents": 1},
    },
    "mixture": {"total_tokens": 81920, "phases": [{"name": "all", "fraction": 1, "weights": {"articles": 1}}]},
    "training": {"validation": None},
}
EXPERIMENT = {
    "name": "planted",
    "question": "Which bucket is like the test text?",
    "recipe": "planted-recipe.yaml",
    "test": {"articles": {"path": "test/articles.jsonl"}},
    # Every draw has all buckets: with "sorted" alone the loss is twice any other's, and no smooth surface reaches it.
    "swarm": {"prior": dict.fromkeys(BUCKETS, 1), "count": 20, "sparse": 0},
    "seeds": [1],
    "curve_points": 1,
}


def _texts(kind: str, count: int) -> list[str]:
    rng, found = random.Random(kind), list[str]()
    while len(found) < count:
        words = article(rng).split()
        if kind == "shuffled":
            rng.shuffle(words)
        if kind in ("sorted", "reversed"):
            words.sort(reverse=kind == "reversed")
        found.append(" ".join(words))
    return found


def _write(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": f"d{at}", "text": text}) + "\n" for at, text in enumerate(texts)))


@pytest.mark.exhaustive
def test_twenty_runs_find_the_planted_bucket(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    for kind in BUCKETS:
        _write(workspace / "input" / "planted" / f"{kind}.jsonl", _texts(kind, 200))
    _write(workspace / "input" / "test" / "articles.jsonl", _texts("test", 60))
    (tmp_path / "planted-recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    file = tmp_path / "planted.yaml"
    file.write_text(yaml.safe_dump(EXPERIMENT))
    better, confirm = tmp_path / "better.yaml", tmp_path / "confirm.yaml"
    try:
        plinth(workspace, "experiment", "run", file, "--side-by-side", 2)
        found = answer(workspace, "experiment", "propose", file, "--write", better, "--confirm", confirm)
        runs = answer(workspace, "experiment", "check", confirm)["runs"]
        held = answer(workspace, "experiment", "run", confirm)["confirmation"]
        plinth(workspace, "experiment", "propose", file, "--write", better)
    finally:
        stop_server(Workspace(workspace))
    assert found["family"] != "mean"
    assert max(found["shares"], key=found["shares"].get) == "articles"
    assert found["shares"]["articles"] > 2 / 3  # twice the prior's; from there on all loss is nearly the same
    assert found["low"] > 0
    assert len(found["runs"]) == 21
    page = (workspace / "reports" / "experiment-planted.html").read_text()
    assert "bits per byte lower than with the prior mixture" in page
    assert 'confirmation runs: <span class="better">holds</span>' in page
    plinth(workspace, "recipe", "check", better)
    assert better.read_text().startswith("# Proposed by experiment planted: confirmed by new runs: +")
    assert held["status"] == "holds"
    assert held["low"] > 0
    losses = [loss for _, loss, _ in found["runs"]]  # the prior's is the first
    assert held["gain"] > 0.9 * (losses[0] - min(losses))  # nearly as good as the best run of the swarm
    assert [run["asset"] for run in runs[:2]] == [
        "experiment/planted-confirm/prior/one-s2",
        "experiment/planted-confirm/proposed/one-s2",
    ]
