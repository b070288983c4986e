"""The current canary with all of its observations, and the next decision."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth_ops.metrics.signed import canary_samples
from plinth_registry import policy
from plinth_registry.canary.watch import WHOLE, observe
from tests.registry.canary.conftest import measured
from tests.registry.conftest import small_policy

LATER = datetime.now(UTC) + timedelta(hours=1)


def watched(ctx: Context, two: Any, **trial: Any) -> None:
    """The release's policy names a feed, `latency`."""
    name = two[0].recipe.release.name
    asked = {"trial": {"feeds": {"latency": {"lines": "feed.jsonl"}}, **trial}}
    policy.sign(ctx, policy.gate_policy(small_policy(name, version=2).model_dump() | asked))


def say(ctx: Context, worse: float, seed: int, begin: int, end: int) -> None:
    """Add requests `begin` to `end` of a canary that is slower by `worse`, with 5% of noise."""
    rng = np.random.default_rng([seed, begin])
    with (ctx.workspace.root / "feed.jsonl").open("a") as stream:
        for at in range(begin, end):
            champion = rng.lognormal(0, 0.25)
            row = {"time": (LATER + timedelta(seconds=at)).isoformat(), "champion": champion}
            stream.write(json.dumps({**row, "canary": champion * (1 + worse + rng.normal(0, 0.05))}) + "\n")


def ticks(ctx: Context, two: Any, worse: float, seed: int = 1, count: int = 8, each: int = 100) -> list[str]:
    """Decisions at ticks between which the metric reports `each` requests, up to the one that decides."""
    found: list[str] = []
    for tick in range(count):
        say(ctx, worse, seed, tick * each, (tick + 1) * each)
        seen = observe(ctx, two[0].recipe, take=True)
        assert seen is not None
        found.append(seen.status.trial.decision)
        if found[-1] == "return":
            break
    return found


def test_a_metric_gives_a_canary_back_within_two_ticks_and_looking_takes_nothing_in(ctx: Context, two: Any) -> None:
    watched(ctx, two)
    say(ctx, 0.02, 1, 10_000, 10_010)
    looked = observe(ctx, two[0].recipe)
    assert looked is not None
    assert looked.status.feeds["latency"].pairs == 0
    found = ticks(ctx, two, 0.02, each=400)
    assert (found[-1], len(found) <= 2) == ("return", True)
    seen = observe(ctx, two[0].recipe)
    assert seen is not None
    assert seen.status.trial.reason.startswith("latency: worse than the margin after")


def test_what_a_metric_says_alone_makes_no_champion(ctx: Context, two: Any) -> None:
    watched(ctx, two)
    assert set(ticks(ctx, two, -0.2)) == {"continue"}
    seen = observe(ctx, two[0].recipe)
    assert seen is not None
    assert seen.status.next.startswith("no signed evidence: ")


def test_a_metric_that_says_nothing_holds_a_canary_that_is_good(ctx: Context, two: Any) -> None:
    watched(ctx, two)
    measured(two[0], {"web": 1.0})
    measured(two[1], {"web": 0.97})
    seen = observe(ctx, two[0].recipe, take=True)
    assert seen is not None
    decisions = {one.name: one.decision for one in seen.status.trial.streams}
    assert decisions == {WHOLE: "promote", "latency": "continue"}
    assert seen.status.next.startswith("undecided: latency")
    assert "No such file" in seen.status.feeds["latency"].fault
    assert ticks(ctx, two, -0.2)[-1] == "promote"


def test_another_champion_begins_another_trial(ctx: Context, two: Any, released: Any) -> None:
    watched(ctx, two)
    assert ticks(ctx, two, 0.05)[-1] == "return"
    released(two[0], "champion", "3")
    seen = observe(ctx, two[0].recipe)
    assert seen is not None
    assert (seen.status.champion, seen.status.feeds["latency"].pairs) == ("3", 0)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_200_canaries_at_the_limit_watched_at_every_tick_are_seldom_given_back(ctx: Context, two: Any) -> None:
    """As the sensor does: what the metric reported since is taken in, and everything is judged again."""
    watched(ctx, two, margin=0.0)
    back = 0
    for seed in range(200):
        for path in (ctx.workspace.root / "trials").rglob("*.json"):
            path.unlink()
        (ctx.workspace.root / "feed.jsonl").unlink(missing_ok=True)
        back += ticks(ctx, two, 0.0, seed, count=6, each=60)[-1] == "return"
    assert back <= 10


def test_a_trial_is_exported_by_stream(ctx: Context, two: Any) -> None:
    watched(ctx, two)
    measured(two[0], {"web": 1.0})
    measured(two[1], {"web": 0.97})
    seen, recipe = observe(ctx, two[0].recipe), two[0].recipe
    assert seen is not None
    found = {(one.name, *one.labels[1:]): one.value for one in canary_samples(ctx, lambda: recipe)}
    assert found["plinth_canary_timestamp_seconds",] == datetime.fromisoformat(seen.status.since).timestamp()
    assert found["plinth_canary_pairs", "latency"] == 0
    assert found["plinth_canary_pairs", WHOLE] > 0
    assert found["plinth_canary_worse_bound", WHOLE] < 0  # within the margin
    assert ("plinth_canary_worse_bound", "latency") not in found
