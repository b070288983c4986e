"""Planted noise: does an experiment detect it, and how much of it does a policy remove?

One bucket contains articles of a small grammar and the same number of words of five kinds of noise (`KINDS`). Arms
differ in what they drop: nothing (`raw`), what `fineweb` or the demo's policy (`plinth`) reject, or exactly what was
planted (`clean`), which is the most that any filter could bring. Test text is of the same grammar. All arms train the
same model on equally many tokens; the effects are those of `plinth experiment`, over other seeds and other documents.
This tests the mechanism: synthetic noise does not measure filters on real pages, which `plinth experiment run
filters` measures.

    python tests/benchmarks/bench_noise.py [--seeds 3] [--tokens 204800] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "noise.json"
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from tests.tiny_corpus import ADJECTIVES, NOUNS, VERBS, article  # noqa: E402

ARTICLES, TESTS = 1_500, 200


def _salad(rng: random.Random) -> str:
    """Nouns, verbs and adjectives drawn at random."""
    return " ".join(rng.choice(rng.choice((NOUNS, ADJECTIVES, VERBS))) for _ in range(rng.randint(80, 160))) + "."


def _listing(rng: random.Random) -> str:
    """A page of links."""
    return "\n".join(f"* {rng.choice(NOUNS)} | {rng.randint(1, 99)} {rng.choice(NOUNS)} ..." for _ in range(30))


def _echo(rng: random.Random) -> str:
    """One sentence over and over."""
    sentence = article(rng).split(". ")[0] + "."
    return "\n".join([sentence] * rng.randint(10, 16))


def _letters(rng: random.Random) -> str:
    """Return random letters that do not form words."""
    return " ".join("".join(rng.choices("bcdfghjklmnpqrstvwxz", k=rng.randint(3, 9))) for _ in range(120)) + "."


def _shuffled(rng: random.Random) -> str:
    """The words of an article in another order: no rule about words or lines tells it from an article."""
    words = article(rng).split()
    return " ".join(rng.sample(words, len(words)))


KINDS: dict[str, Callable[[random.Random], str]] = {
    "salad": _salad,
    "listing": _listing,
    "echo": _echo,
    "letters": _letters,
    "shuffled": _shuffled,
}

RECIPE = """
extends: tiny
name: noise
corpus:
  buckets:
    web: null
    code: null
    prose:
      sources:
        - kind: jsonl
          path: noise/articles.jsonl
          licence: CC0-1.0
          terms: {train: true, redistribute: true, commercial: true}
          domain: articles.example
          snapshot: articles
        - kind: jsonl
          path: noise/planted.jsonl
          licence: CC0-1.0
          terms: {train: true, redistribute: true, commercial: true}
          domain: planted.example
          snapshot: planted
  policies: {default: {profiles: [], rules: []}}
  holdout: {min_documents: 1}
mixture:
  sequence_tokens: 128
  total_tokens: %(tokens)d
  phases: [{name: all, fraction: 1, weights: {prose: 1}}]
training:
  optimizer: {lr: 4e-3, warmup_fraction: 0.1}
  checkpoints: {every_steps: %(quarter)d, keep_every: %(quarter)d}
  validation: null
"""


def prepare(folder: Path, seeds: int, tokens: int) -> tuple[Path, dict[str, int]]:
    """The sources, the recipe and the experiment below `folder`; returns the experiment's file and words by kind."""
    rng = random.Random(1)
    articles = [article(rng) for _ in range(ARTICLES)]
    enough = sum(len(text.split()) for text in articles) / len(KINDS)
    noise: list[str] = []
    words = dict.fromkeys(KINDS, 0)
    for kind, make in KINDS.items():
        while words[kind] < enough:
            noise.append(make(rng))
            words[kind] += len(noise[-1].split())
    given, test = folder / "workspace" / "input" / "noise", folder / "workspace" / "input" / "test"
    _lines(given / "articles.jsonl", articles)
    _lines(given / "planted.jsonl", noise)
    _lines(test / "articles.jsonl", [article(random.Random(f"test {number}")) for number in range(TESTS)])
    sequences = 8  # of a step, in the tiny recipe
    recipe = RECIPE % {"tokens": tokens, "quarter": tokens // (128 * sequences) // 4}
    (folder / "noise-recipe.yaml").write_text(recipe)
    demo = yaml.safe_load((ROOT / "jobs" / "plinth_jobs" / "recipes" / "demo.yaml").read_text())
    policy = demo["corpus"]["policies"]["documentation"]["rules"]
    default: dict[str, Any] = {
        "raw": {},
        "fineweb": {"profiles": ["fineweb/pipeline"]},
        "plinth": {"rules": policy},
        "clean": {"rules": [{"reason": "planted", "drop": 'documents.snapshot == "planted"'}]},
    }
    file = folder / "noise.yaml"
    experiment = {
        "name": "noise",
        "question": "How much of planted noise does each policy take out?",
        "recipe": "noise-recipe.yaml",
        "base": "raw",
        "test": {"articles": {"path": "test/articles.jsonl"}},
        "arms": {arm: {"corpus": {"policies": {"default": what}}} if what else {} for arm, what in default.items()},
        "seeds": list(range(1, seeds + 1)),
    }
    file.write_text(json.dumps(experiment, indent=1))
    return file, words


def _lines(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(texts)))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--tokens", type=int, default=204_800)
    options.add_argument("--folder", type=Path)
    given = options.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    file, words = prepare(folder, given.seeds, given.tokens)
    workspace = str(folder / "workspace")

    def plinth(*command: object) -> str:
        call = [sys.executable, "-m", "plinth_jobs.cli", "--workspace", workspace, *map(str, command)]
        return subprocess.run(call, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout

    plinth("keys", "init", "--demo")
    plinth("experiment", "run", file)
    answer = json.loads(plinth("experiment", "show", file, "--json"))
    kept = {name: answer[name] for name in ("effects", "runs", "unsure")}
    found = {"machine": platform.processor() or platform.machine(), "words": words, "seeds": given.seeds, **kept}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
