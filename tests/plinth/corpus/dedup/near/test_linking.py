"""The kernels of linking by hand: the smallest id, the table of refused pairs, shares of equal minima."""

import numpy as np
import pytest

from plinth.corpus.dedup.near import linking
from plinth.corpus.dedup.near.linking import SIGNATURES, Links, Payload


def test_the_smallest_id_of_a_group_and_of_equal_ones_the_first() -> None:
    high, low = np.array([[1, 0], [0, 5], [0, 5], [0, 7], [2, 1]], np.uint64).T.copy()
    bounds, node = np.array([0, 3, 5, 7]), np.array([4, 1, 2, 0, 3, 2, 1])
    found = np.empty(3, np.int64)
    linking.smallest(bounds, node, high, low, found)
    assert found.tolist() == [1, 3, 2]


def test_a_table_of_refused_pairs_is_at_most_half_full_and_keeps_them_when_it_grows() -> None:
    table = linking._grown(np.array([0, 77], np.uint64), 2)
    assert sorted(table.tolist()) == [0] * 3 + [77]
    assert linking._grown(table, 2) is table
    assert sorted(linking._grown(table, 3).tolist()) == [0] * 7 + [77]


@pytest.mark.parametrize(("threshold", "roots"), [(0.75, [0, 0]), (0.76, [0, 1])])
def test_by_signature_the_similarity_is_the_share_of_equal_minima(threshold: float, roots: list[int]) -> None:
    minima = np.array([1, 2, 3, 4, 1, 2, 3, 9], np.uint32)
    ids = np.arange(2, dtype=np.uint64)
    links = Links(np.ones(2, np.uint64), np.arange(2), ids, ids, threshold)
    links.walk(SIGNATURES, payload=Payload(np.array([0, 2]), np.array([2, 2]), minima.view(np.uint64), minima=4))
    assert links.roots().tolist() == roots
