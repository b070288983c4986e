import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.words import repeats, slot_count, slots


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=50))
def test_a_set_knows_what_it_has_seen(values: list[int]) -> None:
    keys = slots(64)
    keys[:] = 7  # what another text left behind
    room = slot_count(max(1, len(values)))
    # 0 marks an empty slot and counts as 1
    expected = [max(value, 1) in {max(before, 1) for before in values[:i]} for i, value in enumerate(values)]
    found = np.zeros(len(values), dtype=np.bool_)
    repeats(np.array(values, dtype=np.uint64), keys, room, found)
    assert found.tolist() == expected


@given(st.integers(0, 10**6))
def test_a_set_is_never_more_than_half_full(entries: int) -> None:
    room = slot_count(entries)
    assert room >= 2 * entries
    assert room & (room - 1) == 0
    assert slots(entries).size == room
