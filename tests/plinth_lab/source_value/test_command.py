"""The value of a source through Dagster: what is like the test text is bought; noise and copies are not."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from plinth.storage.workspace import Workspace
from plinth_registry.mlflow.server import stop_server
from tests.jobs.conftest import answer, plinth
from tests.plinth_lab.mixture.test_swarm_run import RECIPE, _texts, _write

pytestmark = pytest.mark.exhaustive

#: The workspace has the words of the test text, in no order or in that of the alphabet.
BUCKETS = ("shuffled", "sorted")
OVER = {
    "corpus": {"canaries": {"count": 8}},
    "evaluation": {"fairness": {}, "pii_outputs": {}, "against": None},
    "mixture": {
        "total_tokens": 40960,
        "phases": [{"name": "all", "fraction": 1, "weights": dict.fromkeys(BUCKETS, 1)}],
    },
    "training": {"checkpoints": {"every_steps": 40, "keep_every": 40}, "validation": None, "launch": {"ranks": 1}},
}
DESCRIBED = ("--kind", "jsonl", "--licence", "CC0-1.0")
ASKED = ("--price", 20000, "--share", 0.5, "--test", "test/articles.jsonl", "--train")


def noise(count: int) -> list[str]:
    picks = random.Random("noise")

    def word() -> str:
        return "".join(picks.choice(string.ascii_lowercase) for _ in range(picks.randint(2, 9)))

    return [" ".join(word() for _ in range(120)) for _ in range(count)]


def named(kind: str, count: int) -> list[str]:
    """Texts with a new name after every fifth word: no two share 13 words, so that none is held for another's copy."""
    picks, found = random.Random(f"names of {kind}"), list[str]()
    for text in _texts(kind, count):
        words = text.split()
        for at in range(len(words) // 5 * 5, 0, -5):
            words.insert(at, "".join(picks.choice("bdfgklmnprst") + picks.choice("aeiou") for _ in range(3)).title())
        found.append(" ".join(words))
    return found


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A workspace whose recipe has been run, and the recipe."""
    folder = tmp_path_factory.mktemp("source")
    workspace, recipe = folder / "workspace", folder / "recipe.yaml"
    buckets = {name: one for name, one in RECIPE["corpus"]["buckets"].items() if one is None or name in BUCKETS}
    corpus = RECIPE["corpus"] | OVER["corpus"] | {"buckets": buckets}
    recipe.write_text(yaml.safe_dump(RECIPE | OVER | {"corpus": corpus}))
    for kind in BUCKETS:
        _write(workspace / "input" / "planted" / f"{kind}.jsonl", named(kind, 200))
    for name, texts in (("articles", named("articles", 200)), ("noise", noise(200)), ("tiny", noise(1)),
                        ("copies", named("shuffled", 200)), ("leaked", named("test", 60)),
                        ("reversed", named("reversed", 200))):  # fmt: skip
        _write(workspace / "input" / "new" / f"{name}.jsonl", texts)
    _write(workspace / "input" / "test" / "articles.jsonl", named("test", 60))
    try:
        plinth(workspace, "keys", "init", "--demo")
        plinth(workspace, "run", "-r", recipe, "--select", "checkpoint")
        yield workspace, recipe
    finally:
        stop_server(Workspace(workspace))


def new(workspace: Path, name: str) -> Path:
    return workspace / "input" / "new" / f"{name}.jsonl"


def test_a_source_of_the_kind_of_the_test_text_is_bought(asked: tuple[Path, Path]) -> None:
    """From new weights and in annealing from a mid-run checkpoint; what else changed is measured."""
    workspace, recipe = asked
    (parent,) = (workspace / "runs").glob("planted-*")
    command = ("corpus", "source", "value", new(workspace, "articles"), "-r", recipe, *DESCRIBED, *ASKED)
    found = answer(workspace, *command, "--anneal", f"{parent.name}:40", "--anneal-tokens", 40960, "--seeds", 5)
    assert found["verdict"] == "buy"
    by_use = {one["use"]: one for one in found["gains"]}
    assert set(by_use) == {"proxy", "anneal"}
    shown = [use for use, one in by_use.items() if one["gain"]["low"] > 0]
    assert found["reason"].partition(":")[0] in shown  # one use is enough, at half the error
    assert all(one["seeds"] == [1, 2, 3, 4, 5] for one in by_use.values())
    assert {one["kind"] for one in found["changes"]} >= {"memorisation", "fairness", "personal data"}
    assert 0.9 < found["tokens"]["tokens"] / found["tokens"]["nominal_tokens"] <= 1
    page = Path(found["page"]).read_text()
    assert "Verdict" in page
    assert "<script" not in page
    assert answer(workspace, "source", "value", new(workspace, "articles"), "--show")["digest"] == found["digest"]
    again = answer(workspace, "experiment", "run", found["file"])
    assert again["made"] == []


def test_words_in_another_order_are_not_bought_once_trained_on(asked: tuple[Path, Path]) -> None:
    """New text, as good as any by its words: only the trained runs show that it is not worth its price."""
    workspace, recipe = asked
    command = ("corpus", "source", "value", new(workspace, "reversed"), "-r", recipe, *DESCRIBED, *ASKED)
    found = answer(workspace, *command, "--least-gain", 0.5, "--seeds", 5)
    (proxy,) = found["gains"]
    assert found["verdict"] == "do not buy"
    assert found["reason"].startswith("no use gains more than 0.5 bits per byte: proxy")
    assert proxy["gain"]["high"] <= 0.5
    assert proxy["seeds"] == [1, 2, 3, 4, 5]


def test_noise_is_not_bought(asked: tuple[Path, Path]) -> None:
    """The tokenizer takes words of random letters apart: no run begins."""
    workspace, recipe = asked
    found = answer(workspace, "source", "value", new(workspace, "noise"), "-r", recipe, *DESCRIBED, *ASKED)
    assert found["verdict"] == "do not buy"
    assert "bytes per token" in found["reason"]


def test_what_the_workspace_has_already_is_not_bought_and_trains_nothing(asked: tuple[Path, Path]) -> None:
    workspace, recipe = asked
    before = set((workspace / "runs").glob("*"))
    found = answer(workspace, "source", "value", new(workspace, "copies"), "-r", recipe, *DESCRIBED, *ASKED)
    assert found["verdict"] == "do not buy"
    assert "are new" in found["reason"]
    assert found["tokens"]["per_token"]["value"] is None
    assert set((workspace / "runs").glob("*")) == before


def test_a_checkpoint_that_is_not_kept_is_refused_before_anything_is_trained(asked: tuple[Path, Path]) -> None:
    workspace, recipe = asked
    before = set((workspace / "runs").glob("*"))
    command = ("corpus", "source", "value", new(workspace, "articles"), "-r", recipe, *DESCRIBED, *ASKED)
    refused = plinth(workspace, *command, "--anneal", "planted:41", "--anneal-tokens", 20480, check=False)
    assert refused.returncode == 3  # nothing has that name
    assert "has no checkpoint 41" in refused.stderr
    assert set((workspace / "runs").glob("*")) == before


@pytest.mark.parametrize(
    ("name", "said"), [("leaked", "60 of 60 documents of the test text"), ("tiny", "too small for its share")]
)
def test_what_cannot_be_asked_is_refused_by_name(asked: tuple[Path, Path], name: str, said: str) -> None:
    workspace, recipe = asked
    command = ("corpus", "source", "value", new(workspace, name), "-r", recipe, *DESCRIBED, *ASKED)
    refused = plinth(workspace, *command, check=False)
    assert refused.returncode == 2
    assert said in refused.stderr
