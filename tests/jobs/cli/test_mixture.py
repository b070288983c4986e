"""`plinth mixture` tells shares, epochs and how near they come, of what was made and of what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from plinth.context import Context
from plinth.recipe import tokens as recipe
from plinth.recipe.mixture import Phase
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.tokens import mixture


@pytest.fixture
def published(tmp_path: Any) -> Context:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    phases = (
        Phase(name="main", fraction=0.8, weights={"web": 3.0, "code": 1.0}),
        Phase(name="anneal", fraction=0.2, weights={"web": 1.0}, to_weights={"code": 1.0}),
    )
    params = recipe.Mixture(sequence_tokens=8, total_tokens=8 * 1000, phases=phases, block_sequences=10, max_epochs=9.0)
    stats = mixture.plan(params, {"web": 700, "code": 60})
    made = Manifest(asset="mixture", step="tokens.mixture", version="3", params={}, inputs={}, parts=(), stats=stats)
    ctx.refs.publish(made, "k" * 64)
    return ctx


def test_as_json(plinth: Callable[..., Any], published: Context) -> None:
    told = json.loads(plinth("mixture", "--json").out)
    assert [row["phase"] for row in told["phases"]] == ["main", "main", "anneal", "anneal"]
    assert abs(told["streams"]["code"]["needed"] - 300) <= 1  # a ramp without a tail is exact to a sequence
    assert told["realised"]["within"]
    assert "course" not in told
    (sentence,) = told["advice"]
    assert sentence.startswith("code is repeated 5.0 times; beyond 4 repetition teaches less and less. 118 more tokens")
    course = json.loads(plinth("mixture", "--course", "--json").out)["course"]
    assert course[-1]["asked"]["code"] >= 0.95


def test_for_a_person(plinth: Callable[..., Any], published: Context) -> None:
    outcome = plinth("mixture")
    assert outcome.code == 0
    assert "75.000%" in outcome.out
    assert "At most" in outcome.out
    assert "code is repeated 5.0 times" in " ".join(outcome.out.split())


def test_before_there_is_one(plinth: Callable[..., Any]) -> None:
    assert plinth("mixture").code == 3
