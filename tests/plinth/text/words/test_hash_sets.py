import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from plinth.text.words.hash_sets import seen, shift_for, slot_count, slots


@njit
def _repeats(values, keys, room):  # type: ignore[no-untyped-def]
    """For each value whether it came before."""
    out = np.zeros(values.size, dtype=np.bool_)
    shift = shift_for(room)
    keys[:room] = 0
    for i in range(values.size):
        out[i] = seen(keys, room, shift, values[i])
    return out


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=50))
def test_a_set_knows_what_it_has_seen(values: list[int]) -> None:
    keys = slots(64)
    keys[:] = 7  # what another text left behind
    room = slot_count(max(1, len(values)))
    # 0 marks an empty slot and counts as 1
    expected = [max(value, 1) in {max(before, 1) for before in values[:i]} for i, value in enumerate(values)]
    assert _repeats(np.array(values, dtype=np.uint64), keys, room).tolist() == expected


@given(st.integers(0, 10**6))
def test_a_set_is_never_more_than_half_full(entries: int) -> None:
    room = slot_count(entries)
    assert room >= 2 * entries
    assert room & (room - 1) == 0
    assert slots(entries).size == room
