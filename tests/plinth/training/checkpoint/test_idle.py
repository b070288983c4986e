"""Work waits for an idle core until its result is needed."""

from __future__ import annotations

import os
import sys
import threading
from functools import partial

import pytest

from plinth.training.checkpoint.writer import Idle


def test_pieces_are_done_in_order_by_a_thread_that_gives_way_until_they_are_urgent() -> None:
    waits = False
    idle = Idle(lambda: waits)
    done: list[tuple[int, bool, int | None]] = []

    def piece(number: int) -> None:
        policy = os.sched_getscheduler(0) if sys.platform == "linux" else None
        done.append((number, threading.current_thread() is threading.main_thread(), policy))

    for number in range(5):
        waits = number == 2  # asked once; who waits goes on waiting
        idle(partial(piece, number))
    idle.begin()
    idle(partial(piece, 5))
    assert [number for number, _, _ in done] == list(range(6))
    assert [here for _, here, _ in done] == [False, False, True, True, True, False]
    if sys.platform == "linux":
        assert {policy == os.SCHED_IDLE for _, here, policy in done if not here} == {True}
        assert {policy for _, here, policy in done if here} == {os.sched_getscheduler(0)}


def test_what_a_piece_raises_is_raised_and_patience_ends() -> None:
    def full() -> None:
        raise OSError(28, threading.current_thread().name)

    with pytest.raises(OSError, match="idle"):
        Idle(lambda: False)(full)
    with pytest.raises(OSError, match="MainThread"):
        Idle(lambda: False, timeout_s=-1.0)(full)
