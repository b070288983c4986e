"""SimHash against its definition, near hashes against a search through all of them, on random text and bits."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plinth_text.similarity import MAX_DISTANCE, SimHashIndex, simhashes
from plinth_text.words import ngram_hashes

BITS = st.integers(0, 2**64 - 1)


def texts(*given: str) -> pa.Array:
    return pa.array(given, pa.large_string())


def slow(text: str, n: int) -> int:
    """Charikar's definition, one vote at a time."""
    _, grams = ngram_hashes(texts(text), n)
    votes = [sum(1 if int(gram) >> bit & 1 else -1 for gram in grams) for bit in range(64)]
    return sum(1 << bit for bit in range(64) if votes[bit] > 0)


@given(st.lists(st.text(st.sampled_from("ab cdé世 \n"), max_size=60), max_size=6), st.integers(1, 4))
@example(["", "a", "a b", "a a a a"], 2)
@settings(max_examples=60, deadline=None)
def test_it_is_what_the_definition_says(given: list[str], n: int) -> None:
    hashes, filled = simhashes(texts(*given), n)
    for text, value, has in zip(given, hashes.tolist(), filled.tolist(), strict=True):
        assert has == bool(ngram_hashes(texts(text), n)[1].size)
        assert value == slow(text, n)


def test_more_shingles_than_one_round_counts() -> None:
    rng = np.random.default_rng(1)
    words = [f"w{number}" for number in rng.integers(0, 3000, (1 << 16) + 5000)]  # a round is 2^16 - 1
    (value,), _ = simhashes(texts(" ".join(words)), 1)
    _, grams = ngram_hashes(texts(" ".join(words)), 1)
    ones = ((grams[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).sum(axis=0)
    assert int(value) == sum(1 << bit for bit in range(64) if 2 * int(ones[bit]) > grams.size)


def test_slices_of_a_column_and_its_nulls() -> None:
    column = pa.array(["zero", "one two three", None, "four"], pa.large_string())
    hashes, filled = simhashes(column.slice(1, 3), 2)
    alone, _ = simhashes(texts("one two three"), 2)
    assert hashes[0] == alone[0]
    assert filled.tolist() == [True, False, True]


@given(
    st.lists(BITS, min_size=0, max_size=30),
    st.lists(st.tuples(st.integers(0, 40), st.sets(st.integers(0, 63), max_size=14), BITS), max_size=20),
    st.integers(0, MAX_DISTANCE),
)
@settings(max_examples=80, deadline=None)
def test_near_finds_what_a_search_through_all_finds(
    listed: list[int], asked: list[tuple[int, set[int], int]], distance: int
) -> None:
    sought = []
    for at, turned, other in asked:  # near a listed one, or anywhere
        base = listed[at] if at < len(listed) else other
        sought.append(base ^ sum(1 << bit for bit in turned))
    near = SimHashIndex(np.array(listed, np.uint64), distance)
    places, bits = near.nearest(np.array(sought, np.uint64))
    for value, place, apart in zip(sought, places.tolist(), bits.tolist(), strict=True):
        best = min(((bin(value ^ one).count("1"), at) for at, one in enumerate(listed)), default=(65, -1))
        assert (apart, place) == (best if best[0] <= distance else (-1, -1))


def test_the_bound_is_the_bound() -> None:
    base = 0x0123456789ABCDEF
    for distance in range(MAX_DISTANCE + 1):
        near = SimHashIndex(np.array([base], np.uint64), distance)
        for spread in (1, 5, 16):  # in one block, across all, one in every block
            turned = [
                sum(1 << (bit * spread % 64 + bit * spread // 64) for bit in range(n)) for n in range(distance + 2)
            ]
            assert [bin(one).count("1") for one in turned] == list(range(distance + 2))
            places, bits = near.nearest(np.array([base ^ one for one in turned], np.uint64))
            assert places.tolist() == [0] * (distance + 1) + [-1]
            assert bits.tolist() == [*range(distance + 1), -1]


def test_a_distance_beyond_what_is_searched() -> None:
    with pytest.raises(ValueError, match="expected 0 to 11"):
        SimHashIndex(np.zeros(0, np.uint64), 12)
