from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.tokens.mixture.apportion import Blocks, floor_sum, largest_remainder, shares

weight_lists = st.lists(st.integers(0, 1000).map(lambda n: n / 100), min_size=1, max_size=6).filter(any)


def test_shares_are_the_decimals_that_were_written() -> None:
    assert shares([0.1, 0.2, 0.7]) == [Fraction(1, 10), Fraction(1, 5), Fraction(7, 10)]
    assert shares([3, 1]) == [Fraction(3, 4), Fraction(1, 4)]


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -0.5], []])
def test_weights_that_are_no_weights(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        shares(weights)


def test_largest_remainder_by_hand() -> None:
    # 0.5, 0.3, 0.2 of 11 are 5.5, 3.3, 2.2: floors 5, 3, 2, and the seat left goes to the largest remainder.
    assert largest_remainder(shares([0.5, 0.3, 0.2]), 11) == [6, 3, 2]
    assert largest_remainder(shares([1, 1, 1]), 4) == [2, 1, 1]  # a tie goes to the first
    with pytest.raises(ValueError, match="add up"):
        largest_remainder([Fraction(1, 2)], 4)


@given(n=st.integers(0, 40), modulus=st.integers(1, 30), slope=st.integers(0, 90), offset=st.integers(0, 90))
def test_floor_sum_is_the_sum_of_floors(n: int, modulus: int, slope: int, offset: int) -> None:
    assert floor_sum(n, modulus, slope, offset) == sum((slope * i + offset) // modulus for i in range(n))


@given(weights=weight_lists, size=st.integers(1, 40), blocks=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_blocks_are_full_exact_and_drift_little(weights: list[float], size: int, blocks: int) -> None:
    exact = shares(weights)
    totals = largest_remainder(exact, size * blocks)
    made = Blocks(blocks, tuple(totals))
    running = [0] * len(weights)
    for block in range(blocks):
        assert made.before(block) == running
        counts = made.counts(block)
        assert sum(counts) == size
        for j, share in enumerate(exact):
            assert floor(share * size) <= counts[j] <= ceil(share * size)
            running[j] += counts[j]
            assert abs(running[j] - share * size * (block + 1)) < 4
    assert running == totals == made.before(blocks)


def test_drift_stays_a_few_sequences_in_a_million_blocks() -> None:
    blocks, size = 1_000_003, 256
    exact = shares([0.37, 0.33, 0.21, 0.0899, 0.0001])
    made = Blocks(blocks, tuple(largest_remainder(exact, blocks * size)))
    points = [*range(1, 300), *range(1000, blocks, 9973)]
    drift = max(abs(n - w * size * k) for k in points for n, w in zip(made.before(k), exact, strict=True))
    assert drift < 8
