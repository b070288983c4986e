"""Votes of devices: one that contradicts itself or the majority is faulty; without a majority, all are suspects."""

from __future__ import annotations

import pytest

from plinth.training.corruption.votes import DeviceVerdict, Vote, judged


@pytest.mark.parametrize(
    ("votes", "verdict"),
    [
        ([], None),
        ([(0, 0, 7), (0, 1, 7), (0, 2, 7)], None),
        ([(0, 0, 7), (1, 0, 8)], None),  # different values
        ([(0, 0, 7), (0, 1, 7), (0, 2, 8)], DeviceVerdict((2,))),
        ([(0, 0, 7), (0, 1, 8)], DeviceVerdict((), (0, 1))),
        ([(0, 0, 7), (0, 0, 8), (0, 1, 8)], DeviceVerdict((0,))),  # contradicts itself, by chance once with the other
        ([(0, 0, 7), (0, 0, 7), (0, 1, 8)], DeviceVerdict((), (0, 1))),  # a repeated error is no second vote
        ([(0, 0, 1), (0, 1, 2), (1, 1, 5), (1, 2, 5), (1, 0, 6)], DeviceVerdict((0,), (1,))),
        ([(0, 0, 1), (0, 1, 2), (0, 2, 3)], DeviceVerdict((), (0, 1, 2))),
        ([(0, 0, 7), (0, 0, 8)], DeviceVerdict((0,))),
    ],
)
def test_votes(votes: list[tuple[int, int, int]], verdict: DeviceVerdict | None) -> None:
    assert judged(Vote(*vote) for vote in votes) == verdict
