"""Which items a run scores, and how often: what the share of the run pays for, by count."""

from __future__ import annotations

from pathlib import Path

import heldout_text
import numpy as np
import probed
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.evaluation.engine.batches import ScoredStream
from plinth.evaluation.probes.base import ProbeItem
from plinth.storage.workspace import Workspace
from plinth.training.validation import probe_plan
from plinth.training.validation.probe_plan import LEAST_LOOKS, Budget, choose

LENGTH = 20


def asked(sizes: dict[str, int]) -> tuple[list[ProbeItem], list[ScoredStream]]:
    """Items by probe, each of two streams of 20 tokens of input, none of which have anything in common."""
    items = [
        ProbeItem(str(n), probe, "code", "t", "p", " g", (), "c") for probe, size in sizes.items() for n in range(size)
    ]
    draw = np.random.default_rng(1)
    streams = [ScoredStream(draw.integers(1, 10**6, LENGTH + 1), LENGTH) for _ in range(2 * len(items))]
    return items, streams


def budget(tokens: int, looks: int) -> Budget:
    """Return a budget that pays for `tokens` scored tokens in all."""
    return Budget(share=tokens / 3_000_000, tokens=1_000_000, looks=looks, sequence_tokens=64)


def test_everything_at_every_look_where_it_is_paid_for() -> None:
    items, streams = asked({"a": 5, "b": 3})  # 8 items of 40 tokens: 320 a look
    found = choose(items, streams, budget(320 * 30, looks=30))
    assert (found.items, found.every, found.tokens) == (items, 1, 320)
    assert [len(one.ids) for one in found.streams] == [LENGTH + 1] * 16


def test_fewer_looks_come_before_fewer_items() -> None:
    items, streams = asked({"a": 5, "b": 3})
    assert choose(items, streams, budget(320 * 30 - 1, looks=30))[2:] == (2, 320)
    assert choose(items, streams, budget(320 * LEAST_LOOKS, looks=30))[2:] == (4, 320)  # 8 looks
    cut = choose(items, streams, budget(320 * LEAST_LOOKS - 1, looks=30))
    assert [sum(one.probe == name for one in cut.items) for name in "ab"] == [4, 3]  # the same number of each
    assert cut.tokens == 280
    few = choose(items, streams, budget(320 * 3, looks=3))  # a run of three looks needs no more
    assert (len(few.items), few.every) == (8, 1)


def test_where_nothing_is_paid_for_nothing_is_asked() -> None:
    items, streams = asked({"a": 5, "b": 3})
    assert choose(items, streams, budget(79, looks=1)).items == []
    assert len(choose(items, streams, budget(81, looks=1)).items) == 2
    assert choose([], [], budget(10**6, looks=5)) == ([], [], 1, 0)


@given(st.integers(1, 40_000), st.integers(1, 60))
def test_the_share_is_kept_and_fewer_items_are_a_part_of_more(tokens: int, looks: int) -> None:
    items, streams = asked({"a": 12, "b": 7, "c": 1})
    found, more = (choose(items, streams, budget(paid, looks)) for paid in (tokens, 2 * tokens))
    assert -(-looks // found.every) * found.tokens <= tokens
    assert set(found.items) <= set(more.items)


def test_the_manifest_says_how_many_of_how_many_and_gives_back_what_is_asked(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path).ensure())
    made = probed.prepared(ctx)
    assert probed.prepared(ctx) == made
    assert made.stats["probes"] == {"animals": {"items": 6, "of": 6}, "loops": {"items": 2, "of": 2}}
    assert made.stats["too_long"] == 1
    assert (made.stats["every"], made.stats["looks"]) == (1, 6)
    assert made.stats["share"] == pytest.approx(6 * made.stats["tokens"] / 3 / 20_000, abs=1e-6)
    plan = probe_plan.load(ctx.store, ctx.refs.load(made.digest))
    assert plan.items == probed.fitting()
    end = heldout_text.corpus(ctx)[1].stats["end_of_text"]
    assert {int(one.ids[0]) for one in plan.streams} == {end}
    cheap = probed.prepared(ctx, share=made.stats["share"] / 2)
    assert all(0 < one["items"] < one["of"] for one in cheap.stats["probes"].values())
    assert cheap.stats["set"] != made.stats["set"]
