"""Coordinates of ranks, and the groups they form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plinth.training.parallel.topology import AXES, RankPlace, place_of, ranks_of, shape_of
from plinth.training.parameters.parallel import Parallel


def test_tensor_ranks_are_neighbours_and_data_ranks_far_apart() -> None:
    parallel = Parallel(tensor=2, sequence=2)
    places = [place_of(parallel, 8, rank) for rank in range(8)]
    assert [place.data for place in places] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [place.sequence for place in places] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [place.tensor for place in places] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [rank for rank, place in enumerate(places) if place.leads] == [0, 4]
    assert ranks_of(parallel, 8, ("tensor",)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert ranks_of(parallel, 8, ("data",)) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert ranks_of(parallel, 8, ("data", "sequence")) == [[0, 2, 4, 6], [1, 3, 5, 7]]


degrees = st.integers(1, 4)


@given(degrees, degrees, degrees, degrees)
def test_places_are_all_different_and_groups_cover_every_rank_once(data: int, pipe: int, seq: int, tensor: int) -> None:
    parallel, ranks = Parallel(tensor=tensor, pipeline=pipe, sequence=seq), data * pipe * seq * tensor
    assert shape_of(parallel, ranks) == RankPlace(data, pipe, seq, tensor)
    places = [place_of(parallel, ranks, rank) for rank in range(ranks)]
    assert len(set(places)) == ranks
    assert all(c < size for place in places for c, size in zip(place, shape_of(parallel, ranks), strict=True))
    for axis in AXES:
        groups = ranks_of(parallel, ranks, (axis,))
        assert sorted(rank for group in groups for rank in group) == list(range(ranks))
        for group in groups:  # members differ along this axis only, and stand in its order
            assert [getattr(places[rank], axis) for rank in group] == list(range(len(group)))
            assert len({places[rank]._replace(**{axis: 0}) for rank in group}) == 1
