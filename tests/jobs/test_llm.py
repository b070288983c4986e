"""A language model in the tiny pipeline: labels, a bucket of rewritten documents, an outage, a takedown, a release."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests import tiny_corpus
from tests.jobs.conftest import answer, here, plinth, variant
from tests.llm_server import Llm, llm_server

CHANGE = """
name: retold
corpus:
  endpoints:
    local: {url: "URL", concurrency: 8, attempts: 2, output_price: 1.0, max_money: 50}
  lists: {rate: rate.md, retell: retell.md}
  annotate:
    llm: {endpoint: local, model: tiny, prompt: rate, sample: 0.5, columns: {score: {type: integer}}}
  buckets:
    retold:
      description: Articles, retold by a model.
      owner: tests@example.org
      sources:
        - kind: rewrite
          path: prose
          licence: per-document
          terms: {train: true, redistribute: true, commercial: true}
          domain: retold.example
          snapshot: 2026-46
          options: {endpoint: local, model: tiny, prompt: retell}
  policies:
    default:
      rules:
        - {reason: opted_out, drop: opt_out.tdm_reservation or opt_out.noai}
        - {reason: language, drop: "not language.accepted or language.label != 'en'"}
        - {reason: dull, drop: llm.score < 1}
  reference_buckets: [code]
mixture:
  phases:
    - {name: stable, fraction: 0.75, weights: {web: 2, prose: 2, code: 1, retold: 1}}
    - {name: annealing, fraction: 0.25, weights: {web: 1, prose: 2, code: 1, retold: 1}}
"""


def reply(prompt: str) -> str:
    if prompt.startswith("Rate"):
        return json.dumps({"score": 4 if "def " in prompt else len(prompt) % 5})
    return tiny_corpus.article(random.Random(prompt))


def rows(workspace: Path, asset: str) -> list[dict[str, Any]]:
    ref = json.loads((workspace / "refs" / f"{asset}.json").read_bytes())
    made = json.loads((workspace / "manifests" / f"{ref['digest']}.json").read_bytes())
    parts = [one["blob"]["md5"] for one in made["parts"] if one["name"].startswith("part-")]
    blobs = [workspace / "store" / "files" / "md5" / md5[:2] / md5[2:] for md5 in parts]
    return [row for blob in blobs for row in pq.read_table(blob).to_pylist()]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_rewritten_bucket_from_an_outage_to_a_takedown(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    tiny_corpus.write(workspace / "input")
    (workspace / "input" / "rate.md").write_text("Rate: {text}")
    (workspace / "input" / "retell.md").write_text("Retell: {text}")
    with llm_server(reply) as llm:
        recipe = variant(tmp_path, CHANGE.replace("URL", llm.url))
        answered = _outage(workspace, recipe, llm)
        plinth(workspace, "run", "-r", recipe, "--select", "mixture", "--select", "funnel", "--workers", 2)
        asked = Counter(llm.prompts)
        assert not answered & set(asked)
        assert set(asked.values()) == {1}
        before = len(llm.prompts)
        again = plinth(workspace, "run", "-r", recipe, "--select", "mixture", "--workers", 2)
        assert len(llm.prompts) == before, again.stderr

        source = _derived_from(workspace)
        _takedown(workspace, recipe, source, llm)
        _release(workspace, recipe)


def _outage(workspace: Path, recipe: Path, llm: Llm) -> set[str]:
    """The run ends by name while the endpoint is down; returns the questions that were answered before."""
    llm.answer = lambda prompt: {"raw": b"", "status": 503} if len(llm.prompts) > 40 else reply(prompt)
    failed = plinth(workspace, "run", "-r", recipe, "--select", "prose/llm", "--workers", 2, check=False)
    assert failed.returncode == 6, failed.stderr
    assert "in succession" in failed.stdout + failed.stderr
    answered = set(llm.prompts[:40])
    llm.answer = reply
    llm.bodies.clear()
    return answered


def _derived_from(workspace: Path) -> dict[str, Any]:
    """Every trained document of the bucket is derived from a trained document; returns one of those sources."""
    decided = {row["id"].hex(): row["decision"] for row in rows(workspace, "prose/verdicts")}
    judged = {row["id"]: row for row in rows(workspace, "retold/verdicts")}
    sources = {row["id"]: json.loads(row["extra"])["derived_from"][0] for row in rows(workspace, "retold/documents")}
    texts = {row["id"].hex(): row for row in rows(workspace, "prose/documents")}
    trained = [id_ for id_, row in judged.items() if row["decision"] == "train"]
    assert len(trained) > 40
    assert all(decided[sources[id_]["id"]] == "train" for id_ in trained)
    held = [id_ for id_, own in sources.items() if decided[own["id"]] == "heldout"]
    assert held
    assert {judged[id_]["decision"] for id_ in held} <= {"drop", "heldout"}
    shown = answer(workspace, "explain", trained[0].hex(), run=here)
    derived_from = shown["derived_from"][0]
    assert (derived_from["bucket"], derived_from["id"]) == ("prose", sources[trained[0]]["id"])
    assert (derived_from["decision"], derived_from["licence"]) == ("train", "CC0-1.0")
    chosen = texts[sources[trained[0]]["id"]]
    return chosen | {"retold": trained[0].hex()}


def _takedown(workspace: Path, recipe: Path, source: dict[str, Any], llm: Llm) -> None:
    """A takedown of the source finds and removes what was derived from it, and asks the model nothing."""
    plinth(workspace, "run", "-r", recipe, "--select", "takedown/index", "--workers", 2)
    found = answer(workspace, "corpus", "takedown", "find", "--document", source["id"].hex())
    made = {one["id"]: one["how"] for one in found["found"]["documents"]}
    assert source["retold"] in made, made
    before = len(llm.prompts)
    plinth(workspace, "corpus", "takedown", "exclude", "--document", source["id"].hex(), "--reason", "asked", "--yes")
    plinth(workspace, "run", "-r", recipe, "--select", "mixture", "--workers", 2)
    assert len(llm.prompts) == before
    assert source["retold"] not in {row["id"].hex() for row in rows(workspace, "retold/documents")}
    assert source["id"] not in {row["id"] for row in rows(workspace, "prose/documents")}


def _release(workspace: Path, recipe: Path) -> None:
    """The bucket is trained on and released, and `explain` leads from the source to the steps that read it."""
    plinth(workspace, "run", "-r", recipe, "--workers", 2)
    assert answer(workspace, "verify", "champion", run=here)["release"] == "tiny/1"
    trained = [row["id"].hex() for row in rows(workspace, "retold/verdicts") if row["decision"] == "train"]
    shown = [answer(workspace, "explain", one, run=here) for one in trained[:5]]
    assert all(one["derived_from"][0]["bucket"] == "prose" for one in shown)
    assert any(run["run"] for one in shown for run in one["training"])
