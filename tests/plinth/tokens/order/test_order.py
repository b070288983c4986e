from __future__ import annotations

import tracemalloc
from collections import Counter
from math import ceil, floor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.errors import MissingError
from plinth.tokens.order.order import Order

AVAILABLE = {"a": 7, "b": 31, "c": 100}
weight_sets = st.lists(
    st.fixed_dictionaries({name: st.integers(0, 9).map(float) for name in AVAILABLE}).filter(lambda w: any(w.values())),
    min_size=1,
    max_size=3,
)
shapes = given(weights=weight_sets, sequences=st.integers(3, 300), block=st.integers(1, 40), seed=st.integers(0, 5))
lightly = settings(max_examples=20, deadline=None)


@shapes
@lightly
def test_epochs_are_permutations_and_counts_are_exact(
    made: SimpleNamespace, weights: list[dict[str, float]], sequences: int, block: int, seed: int
) -> None:
    mixture = made.paper_mixture(AVAILABLE, weights, sequences=sequences, block=block, seed=seed)
    order = Order(mixture)
    refs = order.refs(order.window(0, sequences))
    seen = Counter((ref.stream, ref.epoch, ref.index) for ref in refs)
    assert max(seen.values()) == 1  # nothing twice in an epoch
    for bucket, available in AVAILABLE.items():
        taken = sum(ref.stream == bucket for ref in refs)
        assert taken == sum(phase["counts"][bucket] for phase in mixture.stats["phases"])
        for epoch in range(taken // available):  # every whole epoch has everything
            assert {ref.index for ref in refs if (ref.stream, ref.epoch) == (bucket, epoch)} == set(range(available))
        assert all(ref.epoch <= taken // available for ref in refs if ref.stream == bucket)


@shapes
@lightly
def test_every_full_block_has_its_share(
    made: SimpleNamespace, weights: list[dict[str, float]], sequences: int, block: int, seed: int
) -> None:
    order = Order(mixture := made.paper_mixture(AVAILABLE, weights, sequences=sequences, block=block, seed=seed))
    for phase, own in zip(mixture.stats["phases"], weights, strict=True):
        for first in range(phase["first"], phase["first"] + phase["blocks"] * block, block):
            window = order.window(first, first + block)
            for number, name in enumerate(order.streams):
                share = own[name] / sum(own.values()) * block
                assert floor(share + 1e-9) <= int((window.streams == number).sum()) <= ceil(share - 1e-9)


@shapes
@lightly
def test_the_way_back_finds_every_position(
    made: SimpleNamespace, weights: list[dict[str, float]], sequences: int, block: int, seed: int
) -> None:
    order = Order(made.paper_mixture(AVAILABLE, weights, sequences=sequences, block=block, seed=seed))
    expected: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for ref in order.refs(order.window(0, sequences)):
        expected.setdefault((ref.stream, ref.index), []).append((ref.epoch, ref.position))
    for bucket, available in AVAILABLE.items():
        for index in range(available):
            assert order.positions(bucket, index) == sorted(expected.get((bucket, index), []))
    assert order.positions("unknown", 0) == []


@given(first=st.integers(0, 199), count=st.integers(0, 50))
@lightly
def test_a_window_is_a_slice_of_the_whole(made: SimpleNamespace, first: int, count: int) -> None:
    mixture = made.paper_mixture(AVAILABLE, [{"a": 1.0, "c": 5.0}, {"b": 1.0}], sequences=200)
    whole, part = Order(mixture).window(0, 200), Order(mixture).window(first, stop := min(200, first + count))
    assert np.array_equal(part.streams, whole.streams[first:stop])
    assert np.array_equal(part.epochs, whole.epochs[first:stop])
    assert np.array_equal(part.indices, whole.indices[first:stop])


def test_step_and_window_agree(made: SimpleNamespace) -> None:
    order = Order(made.paper_mixture(AVAILABLE, [{"a": 1.0, "b": 2.0}], sequences=30))
    refs = order.refs(order.step_window(2, 7))
    assert refs == [order.refs(order.window(position, position + 1))[0] for position in range(14, 21)]
    assert [(ref.position, ref.start, ref.tokens) for ref in refs] == [
        (14 + row, ref.index * 8, 9) for row, ref in enumerate(refs)
    ]
    assert order.steps(7).total == 4


def test_seed_changes_the_order_and_not_the_counts(made: SimpleNamespace) -> None:
    one, two = (Order(made.paper_mixture(AVAILABLE, [{"b": 1.0, "c": 1.0}], sequences=64, seed=s)) for s in (1, 2))
    assert not np.array_equal(one.window(0, 64).indices, two.window(0, 64).indices)
    for first in range(0, 64, 16):
        counts = [(order.window(first, first + 16).streams == 1).sum() for order in (one, two)]
        assert counts == [8, 8]


def test_another_bucket_does_not_shuffle_the_rest(made: SimpleNamespace) -> None:
    """The order within a bucket is keyed by its name, so its sequences come in the same order in any mixture."""

    def own(available: dict[str, int], weights: dict[str, float]) -> list[int]:
        order = Order(made.paper_mixture(available, [weights], sequences=60, block=1))  # blocks of one shuffle nothing
        return [ref.index for ref in order.refs(order.step_window(0, 60)) if ref.stream == "c"][:30]

    assert own({"c": 100}, {"c": 1.0}) == own({"a": 7, "c": 100}, {"a": 1.0, "c": 1.0})


def test_order_is_pinned(made: SimpleNamespace) -> None:
    # Steps of past runs are explained by the code of the future: these values may never change.
    mixture = made.paper_mixture({"a": 5, "b": 9}, [{"a": 0.25, "b": 0.75}, {"b": 1.0}], sequences=12, block=4, seed=7)
    order = Order(mixture)
    found = [(ref.stream, ref.epoch, ref.index) for ref in order.refs(order.step_window(0, 12))]
    first_phase = [("b", 0, 1), ("a", 0, 0), ("b", 0, 2), ("b", 0, 3), ("a", 0, 1), ("b", 0, 5)]
    second_phase = [("b", 0, 7), ("b", 0, 8), ("b", 0, 4), ("b", 0, 0), ("b", 0, 6), ("b", 1, 7)]
    assert found == first_phase + second_phase


@pytest.mark.parametrize(("step", "batch"), [(-1, 4), (3, 4), (0, 13), (10**12, 1)])
def test_steps_outside_the_run_are_named(made: SimpleNamespace, step: int, batch: int) -> None:
    order = Order(made.paper_mixture(AVAILABLE, [{"c": 1.0}], sequences=12))
    with pytest.raises(MissingError, match="no step"):
        order.refs(order.step_window(step, batch))


def test_a_trillion_tokens_cost_what_a_thousand_do(made: SimpleNamespace) -> None:
    """10^12 tokens in 2.4 x 10^8 sequences of 4,096, a million blocks: opened, listed and inverted at once."""
    available = {"code": 40_000_003, "web": 150_000_001, "books": 9_999_991}
    weights = [{"code": 0.2, "web": 0.7, "books": 0.1}, {"code": 0.4, "web": 0.3, "books": 0.3}]
    size = 10**12 // 4096
    mixture = made.paper_mixture(
        available, weights, sequences=size, fractions=[0.9, 0.1], block=256, sequence_tokens=4096
    )
    tracemalloc.start()  # a list of the order would take gigabytes, and a scan of it minutes
    order = Order(mixture)
    for step in (0, 77_777, order.steps(2048).total - 1):
        refs = order.refs(order.step_window(step, 2048))
        assert len(refs) == 2048
        assert len({(ref.stream, ref.epoch, ref.index) for ref in refs}) == 2048
        for ref in refs[:: 2048 // 3]:
            assert (ref.epoch, ref.position) in order.positions(ref.stream, ref.index)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20
