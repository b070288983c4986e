from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plinth.tokens.order.order import MAX_SIZE, Permutation, forward_each, numbered, quotient, table_of


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63))
@settings(max_examples=30, deadline=None)
def test_it_is_a_bijection_with_an_inverse(size: int, seed: int) -> None:
    permutation = Permutation(size, "test", seed)
    moved = permutation.forward(np.arange(size))
    assert np.array_equal(np.sort(moved), np.arange(size))
    assert np.array_equal(permutation.inverse(moved), np.arange(size))


@given(
    size=st.integers(2**40, MAX_SIZE),
    points=st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=20),
    seed=st.integers(),
)
@settings(max_examples=30, deadline=None)
def test_large_domains_are_reached_and_left_at_any_point(size: int, points: list[int], seed: int) -> None:
    permutation = Permutation(size, seed)
    moved = permutation.forward(points)
    assert ((moved >= 0) & (moved < size)).all()
    assert permutation.inverse(moved).tolist() == points


def test_the_largest_size() -> None:
    permutation = Permutation(MAX_SIZE, "largest")
    ends = [0, MAX_SIZE - 1]
    assert permutation.inverse(permutation.forward(ends)).tolist() == ends


@pytest.mark.parametrize("many", [1, 3])
def test_points_of_several_permutations_go_where_each_sends_its_own(many: int) -> None:
    permutations = [Permutation(10, "each", key) for key in range(many)]
    owners, values = np.arange(40) % many, np.arange(40) // 4
    alone = [int(permutations[owner].forward(value)) for owner, value in zip(owners, values, strict=True)]
    assert forward_each(table_of(permutations), owners, values).tolist() == alone


def test_numbered_permutations_have_the_keys_of_permutations() -> None:
    for key in (("block", 7, 0), ("ä", -1), ("only",)):
        each = table_of([Permutation(77, *key, number) for number in range(5, 9)])
        assert np.array_equal(numbered(77, key, range(5, 9)), each)


@given(word=st.integers(0, 2**64 - 1), modulus=st.integers(1, 2**31))
@example(word=2**64 - 1, modulus=1)
@example(word=2**64 - 1, modulus=2**31)
@settings(max_examples=120, deadline=None)
def test_division_by_a_product_is_exact(word: int, modulus: int) -> None:
    for near in {word, word - word % modulus, max(0, word - word % modulus - 1)}:
        assert quotient(near, modulus, (2**64 - 1) // modulus) == divmod(near, modulus)


def test_a_point_alone_goes_where_it_goes_among_others() -> None:
    permutation = Permutation(1000, "k", 3)
    together = permutation.forward(np.arange(1000))
    assert [int(permutation.forward(i)) for i in (0, 7, 999)] == together[[0, 7, 999]].tolist()


def test_order_is_pinned() -> None:
    # Runs of the past must be explained by the code of the future: these values may never change.
    assert Permutation(10, "order", 1).forward(np.arange(10)).tolist() == [3, 0, 8, 4, 2, 5, 1, 7, 9, 6]


def test_keys_and_epochs_differ() -> None:
    orders = {tuple(Permutation(50, "epoch", 1, "web", epoch).forward(np.arange(50)).tolist()) for epoch in range(20)}
    assert len(orders) == 20


@pytest.mark.parametrize("size", [5, 64, 1000])
def test_every_place_is_equally_likely(size: int) -> None:
    """Chi-squared over 2,000 keys: where element 1 goes. 6 standard deviations, and the keys are fixed."""
    places = [int(Permutation(size, "fair", key).forward(1)) for key in range(2000)]
    counts = np.bincount(places, minlength=size)
    chi = float(((counts - 2000 / size) ** 2 / (2000 / size)).sum())
    assert abs(chi - (size - 1)) < 6 * (2 * (size - 1)) ** 0.5


def test_neighbours_part() -> None:
    """In a random permutation the mean distance of two neighbours' images is a third of the size."""
    moved = Permutation(10_000, "distance").forward(np.arange(10_000))
    assert abs(np.abs(np.diff(moved)).mean() - 10_000 / 3) < 100


@pytest.mark.parametrize("size", [0, -1, MAX_SIZE + 1])
def test_sizes_out_of_range_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to"):
        Permutation(size, "k")
