"""Compare the data that a run really draws with the recipe, block by block and sequence by sequence."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.records import Manifest
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.apportion import EVERY_BLOCKS, TOLERANCE, Ramp, advice, blocks_of, shares, shares_over_run
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.order import Order

NAMES = ("a", "b", "c", "d", "e")
weights = st.lists(st.one_of(st.just(0.0), st.floats(0.001, 10.0)), min_size=5, max_size=5).filter(any)


def made(start: list[float], end: list[float] | None, block: int, sequences: int) -> Manifest:
    phase = Phase(
        name="p",
        fraction=1.0,
        weights=dict(zip(NAMES, start, strict=True)),
        to_weights=dict(zip(NAMES, end, strict=True)) if end else None,
    )
    params = Mixture(
        sequence_tokens=8, total_tokens=8 * sequences, phases=(phase,), block_sequences=block, max_epochs=1e9
    )
    stats = mixture.plan(params, dict.fromkeys(NAMES, 1000))
    return Manifest(asset="mixture", step="made", version="1", params={}, inputs={}, parts=(), stats=stats)


@given(start=weights, end=st.none() | weights, block=st.integers(16, 512), blocks=st.integers(1000, 3500))
@settings(max_examples=12, deadline=None)
def test_every_thousand_blocks_are_within_a_thousandth(
    start: list[float], end: list[float] | None, block: int, blocks: int
) -> None:
    """Weights of any size, constant or on a ramp: added up block by block, and compared with floats worked out here."""
    sequences = blocks * block + 7
    stats = made(start, end, block, sequences).stats
    given_ = blocks_of(stats["phases"][0], block, NAMES)
    counts = np.array([given_.counts(number) for number in range(blocks)])
    for first in range(0, blocks - EVERY_BLOCKS + 1, EVERY_BLOCKS // 2):
        found = counts[first : first + EVERY_BLOCKS].sum(axis=0) / (EVERY_BLOCKS * block)
        asked = asked_at(start, end, (first + EVERY_BLOCKS / 2) * block / sequences)
        assert np.abs(found - asked).max() <= TOLERANCE
    assert stats["realised"]["within"]
    whole = np.array([stats["phases"][0]["counts"][name] for name in NAMES])
    assert whole.sum() == sequences
    assert np.abs(whole / sequences - asked_at(start, end, 0.5)).max() <= TOLERANCE


def asked_at(start: list[float], end: list[float] | None, share_of_run: float) -> Any:
    low, high = (np.array(own) / sum(own) for own in (start, end or start))
    return low + (high - low) * share_of_run


def test_the_order_draws_what_the_counts_say() -> None:
    manifest = made([8, 4, 2, 1, 0], [0, 1, 2, 4, 8], 16, 16 * 600 + 5)
    drawn = Order(manifest).window(0, 16 * 600 + 5).streams
    for first in range(0, 9600, 1600):
        found = np.bincount(drawn[first : first + 1600], minlength=5) / 1600
        assert np.abs(found - asked_at([8, 4, 2, 1, 0], [0, 1, 2, 4, 8], (first + 800) / 9605)).max() < 0.003
    counts = manifest.stats["phases"][0]["counts"]
    assert np.bincount(drawn, minlength=5).tolist() == [counts[name] for name in NAMES]


@given(start=weights, end=weights, size=st.integers(1, 40), blocks=st.integers(1, 60), tail=st.integers(0, 39))
@settings(max_examples=30, deadline=None)
def test_blocks_of_a_ramp_are_full_and_add_up(
    start: list[float], end: list[float], size: int, blocks: int, tail: int
) -> None:
    low, high, sequences = shares(start), shares(end), blocks * size + tail % size
    ramp = Ramp.between(low, high, size, sequences)
    running = [0] * 5
    for block in range(blocks):
        assert ramp.before(block) == running
        counts = ramp.counts(block)
        assert sum(counts) == size
        at = Fraction((2 * block + 1) * size, 2 * sequences)
        exact = [size * (first + (last - first) * at) for first, last in zip(low, high, strict=True)]
        assert all(-1e-6 < count - int(share) < 2 for count, share in zip(counts, exact, strict=True))
        running = [before + count for before, count in zip(running, counts, strict=True)]
    assert ramp.before(blocks) == running


def test_the_way_back_through_a_ramp() -> None:
    order = Order(made([1, 2, 3, 0, 0], [0, 1, 0, 5, 5], 7, 300))
    seen: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for ref in order.refs(order.window(0, 300)):
        seen.setdefault((ref.stream, ref.index), []).append((ref.epoch, ref.position))
    for bucket in NAMES:
        for index in range(1000):
            assert order.positions(bucket, index) == sorted(seen.get((bucket, index), []))


def test_a_ramp_of_a_million_blocks_is_one_row_and_as_exact() -> None:
    """10^12 tokens: opened, measured at every 1,000 blocks, listed and inverted from a few numbers."""
    phase = Phase(name="p", fraction=1.0, weights={"a": 8, "b": 1, "c": 1}, to_weights={"a": 1, "b": 2, "c": 7})
    params = Mixture(
        sequence_tokens=4096, total_tokens=10**12, phases=(phase,), block_sequences=256, max_epochs=1e9
    )
    stats = mixture.plan(params, {"a": 40_000_003, "b": 150_000_001, "c": 9_999_991})
    (row,) = stats["phases"]
    assert row["blocks"] == 10**12 // 4096 // 256
    realised = stats["realised"]
    assert realised["stretches"] == row["blocks"] // 1000 + 1
    assert realised["max_share_error"] < 1e-4
    assert realised["max_drift_sequences"] < 30
    order = Order(Manifest(asset="mixture", step="m", version="1", params={}, inputs={}, parts=(), stats=stats))
    for ref in order.refs(order.step_window(60_000, 2048))[::500]:
        assert (ref.epoch, ref.position) in order.positions(ref.stream, ref.index)


def test_the_course_of_a_run_adds_up() -> None:
    stats = made([8, 1, 1, 0, 0], [1, 1, 8, 0, 0], 16, 16 * 500).stats
    rows = shares_over_run(stats, points=20)
    assert (rows[0]["first"], rows[-1]["stop"]) == (0, 8000)
    assert all(before["stop"] == after["first"] for before, after in pairwise(rows))
    drawn = sum(row["realised"]["a"] * (row["stop"] - row["first"]) for row in rows)
    assert round(drawn) == stats["phases"][0]["counts"]["a"]
    assert all(abs(row["realised"][n] - row["asked"][n]) < 0.005 for row in rows for n in NAMES)


@pytest.mark.parametrize(
    ("available", "fields", "said"),
    [
        (
            {"a": 50, "b": 900},
            {"max_epochs": 2.0, "over_cap": "redistribute"},
            "other streams supply 800 tokens of its share",
        ),
        ({"a": 40, "b": 900}, {"max_epochs": 9.0}, "a is repeated 5.0 times"),
        ({"a": 52, "b": 900}, {"max_epochs": 4.0}, "a needs 3.85 of at most 4 epochs. A run 4% longer"),
        ({"a": 900, "b": 90_000}, {}, "b is rarely used: the run reads 0.22% of its text"),
    ],
    ids=["capped", "repeated", "near", "hardly"],
)
def test_advice_names_the_stream_and_the_cure(available: dict[str, int], fields: dict[str, Any], said: str) -> None:
    phase = Phase(name="p", fraction=1.0, weights={"a": 1.0, "b": 1.0})
    params = Mixture(sequence_tokens=8, total_tokens=8 * 400, phases=(phase,), block_sequences=20, **fields)
    (sentence,) = advice(mixture.plan(params, available))
    assert said in sentence


def test_nothing_to_say_of_a_mixture_with_enough_text(made: SimpleNamespace) -> None:
    assert advice(made.paper_mixture({"a": 500}, [{"a": 1.0}], sequences=300, max_epochs=4.0).stats) == []
