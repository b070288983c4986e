import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.words import HashLookup, is_sorted

HASHES = st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(st.sets(HASHES, max_size=60), st.lists(HASHES, max_size=20))
def test_positions_are_those_of_the_table(table: set[int], strangers: list[int]) -> None:
    ordered = sorted(table)
    asked = [*ordered, *strangers]
    found = HashLookup(np.array(ordered, dtype=np.uint64)).find(np.array(asked, dtype=np.uint64))
    assert found.tolist() == [ordered.index(value) if value in table else -1 for value in asked]


@pytest.mark.parametrize("table", [[2, 1], [1, 1], [5, 6, 6]])
def test_an_unsorted_table_is_refused(table: list[int]) -> None:
    assert not is_sorted(np.array(table, dtype=np.uint64))
    with pytest.raises(ValueError, match="not sorted"):
        HashLookup(np.array(table, dtype=np.uint64))
