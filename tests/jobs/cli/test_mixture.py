"""`plinth tokens mixture` tells shares, epochs and how near they come, of what was made and of what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards.index import write_index


@pytest.fixture
def published(tmp_path: Any) -> Context:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    phases = (
        Phase(name="main", fraction=0.8, weights={"web": 3.0, "code": 1.0}),
        Phase(name="anneal", fraction=0.2, weights={"web": 1.0}, to_weights={"code": 1.0}),
    )
    params = Mixture(sequence_tokens=8, total_tokens=8 * 1000, phases=phases, block_sequences=10, max_epochs=9.0)
    stats = mixture.plan(params, {"web": 700, "code": 60})
    made = Manifest(asset="mixture", step="tokens.mixture", version="3", params={}, inputs={}, parts=(), stats=stats)
    ctx.refs.publish(made, "k" * 64)
    return ctx


def test_as_json(plinth: Callable[..., Any], published: Context) -> None:
    told = json.loads(plinth("tokens", "mixture", "--json").out)
    assert [row["phase"] for row in told["phases"]] == ["main", "main", "anneal", "anneal"]
    assert abs(told["streams"]["code"]["needed"] - 300) <= 1  # a ramp without a tail is exact to a sequence
    assert told["realised"]["within"]
    assert "course" not in told
    (sentence,) = told["advice"]
    assert sentence.startswith("code is repeated 5.0 times; returns diminish above 4 epochs.")
    course = json.loads(plinth("tokens", "mixture", "--course", "--json").out)["course"]
    assert course[-1]["asked"]["code"] >= 0.95


def test_for_a_person(plinth: Callable[..., Any], published: Context) -> None:
    outcome = plinth("tokens", "mixture")
    assert outcome.code == 0
    assert "75.000%" in outcome.out
    assert "Maximum difference" in outcome.out
    assert "code is repeated 5.0 times" in " ".join(outcome.out.split())


def test_before_there_is_one(plinth: Callable[..., Any]) -> None:
    assert plinth("tokens", "mixture").code == 3


RECIPE = """
name: tried
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
shards: {axes: [language]}
mixture:
  sequence_tokens: 8
  total_tokens: 8000
  block_sequences: 10
  max_epochs: 9
  phases: [{name: all, fraction: 1.0, weights: {WEIGHTS}}]
release: {name: tried}
"""


def cut(ctx: Context) -> Manifest:
    """Shards of two streams, with the index that a mixture is measured by."""
    parts, streams = [], {}
    for label, count in (("language=de", 40), ("language=en", 80)):
        lengths = np.full(count, 50)
        ids = pa.array([row.to_bytes(16, "big") for row in range(count)], pa.binary(16))
        places = (np.cumsum(lengths) - lengths, lengths, np.zeros(count, np.int32), np.arange(count, dtype=np.int32))
        facts = {"start": 0, "tokens": 50 * count}
        blob = ctx.store.put_bytes(np.ones(50 * count, "<u2").tobytes())
        parts.append(Part(name=f"{label}/shard-00000.bin", blob=blob, stats=facts))
        columns = [ids, *map(pa.array, places)]
        parts.append(write_index(ctx.store, f"{label}/index-00000.arrow", columns, {**facts, "parts": [0, 0]}))
        streams[label] = {"documents": count, "tokens": 50 * count}
    stats = {"documents": 120, "tokens": 6000, "end_of_text": 0, "dtype": "<u2", "streams": streams}
    made = Manifest(asset="web/shards", step="cut", version="1", params={}, inputs={}, parts=tuple(parts), stats=stats)
    ctx.refs.publish(made, "k" * 64)
    return made


def test_what_can_be_weighed_and_what_would_come_of_it(
    plinth: Callable[..., Any], published: Context, tmp_path: Path
) -> None:
    cut(published)
    weights = "{web/language=de: 1, web/language=en: 3}"
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("{WEIGHTS}", weights))
    assert json.loads(plinth("tokens", "mixture", "-r", "recipe.yaml", "--streams", "--json").out) == [
        {"stream": "web/language=de", "tokens": 2000, "documents": 40},
        {"stream": "web/language=en", "tokens": 4000, "documents": 80},
    ]
    table = plinth("tokens", "mixture", "-r", "recipe.yaml", "--streams").out
    assert "web/language=en" in table
    assert "4,000" in table
    before = published.refs.current("mixture")
    told = json.loads(plinth("tokens", "mixture", "-r", "recipe.yaml", "--try", "--json").out)
    assert {name: own["needed"] for name, own in told["streams"].items()} == {
        "web/language=de": 250, "web/language=en": 750
    }  # fmt: skip
    assert told["streams"]["web/language=de"]["sequences"] == 249  # 2,000 tokens, the last of them a target only
    assert published.refs.current("mixture") == before  # nothing was stored
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("{WEIGHTS}", "{web/language=fr: 1}"))
    refused = plinth("tokens", "mixture", "-r", "recipe.yaml", "--try")
    assert refused.code == 2
    assert "web/language=fr" in refused.err
