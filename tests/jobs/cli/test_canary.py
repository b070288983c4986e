"""`plinth release canary` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.recipe.load import load
from plinth.storage.workspace import Workspace
from plinth.trust.dsse import now
from plinth_registry import policy, releases
from tests.jobs.conftest import RECIPE
from tests.registry.conftest import small_policy

Plinth = Callable[..., Any]


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    """A champion and a canary of which nothing was measured, without MLflow."""
    ctx, model = Context(Workspace(tmp_path / "workspace").ensure()), load(RECIPE).required_release().name
    for action, version in (("champion", "1"), ("canary", "2")):
        facts = {"goal": action, "model": model, "version": version, "previous": None}
        subjects = {"candidate": version * 64, "checkpoint": version * 64}
        known = {"candidate": subjects, "candidate_version": version}
        releases.append(ctx, action=action, by="ada", reason="good", at=now(), **facts, **known)
    return ctx


def test_the_status_says_what_is_missing_and_what_decides(plinth: Plinth, ctx: Context) -> None:
    assert plinth("release", "canary", "-r", RECIPE).code == 8  # no policy that defines "worse" is signed
    given = small_policy(load(RECIPE).required_release().name).model_dump()
    feeds = {"x[red]\x1b[31m": {"lines": "metrics"}}
    policy.sign(ctx, policy.gate_policy(given | {"trial": {"feeds": feeds}}))
    shown = plinth("release", "canary", "-r", RECIPE).out
    assert "version 2, champion 1" in shown
    assert "not paired: fewer than 100 paired documents or templates" in shown
    assert "x[red]" in shown
    assert "\x1b" not in shown
    found = json.loads(plinth("release", "canary", "-r", RECIPE, "--json").out)
    assert (found["canary"], found["champion"], found["trial"]["decision"]) == ("2", "1", "continue")


@pytest.mark.parametrize("wrong", [("--return",), ("--return", "--by", "ada"), ("--judge", "--return")])
def test_a_return_is_somebodys_with_a_reason(plinth: Plinth, ctx: Context, wrong: tuple[str, ...]) -> None:
    assert plinth("release", "canary", "-r", RECIPE, *wrong).code == 2
