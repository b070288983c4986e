"""Nomination: all pairs of a few, neighbours and the smallest id of a crowd, whatever the order of entries."""

import itertools
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.corpus.dedup.candidates import ALL_PAIRS, NEIGHBOURS, nominate

Entry = tuple[int, int, int]  # band key, id, address


def pairs(entries: list[Entry]) -> set[frozenset[int]]:
    columns = [np.array(column, dtype=np.uint64) for column in zip(*entries, strict=True)] or [
        np.empty(0, np.uint64)
    ] * 3
    key, low, at = columns
    left, right = nominate(key, np.zeros_like(low), low, at)
    return {frozenset(pair) for pair in zip(left.tolist(), right.tolist(), strict=True)}


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=20))
def test_a_few_documents_under_a_key_are_all_paired(keys: list[int]) -> None:
    entries = [(key, 100 - i, i) for i, key in enumerate(keys)]
    expected = {frozenset((i, j)) for i, j in itertools.combinations(range(len(keys)), 2) if keys[i] == keys[j]}
    assert pairs(entries) == expected


def test_the_bound_of_all_pairs_is_inclusive() -> None:
    count = ALL_PAIRS
    assert len(pairs([(1, i, i) for i in range(count)])) == count * (count - 1) // 2
    assert len(pairs([(1, i, i) for i in range(count + 1)])) < (count + 1) * count // 2


def test_a_crowd_is_paired_with_its_smallest_id_and_its_neighbours_in_linear_number() -> None:
    count, picks = 500, random.Random(1)
    ids = picks.sample(range(10**9), count)
    entries = [(7, identity, at) for at, identity in enumerate(ids)]
    found = pairs(entries)
    smallest = ids.index(min(ids))
    others = {frozenset((smallest, at)) for at in range(count) if at != smallest}
    assert others <= found
    chain = found - others
    assert NEIGHBOURS * (count - NEIGHBOURS) - 2 * NEIGHBOURS <= len(chain) <= NEIGHBOURS * count
    another_band = pairs([(8, identity, at) for at, identity in enumerate(ids)]) - others
    assert len(chain & another_band) < len(chain) / 4  # an order of its own
    picks.shuffle(entries)
    assert pairs(entries) == found
