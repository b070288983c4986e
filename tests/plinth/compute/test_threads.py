"""Threads as an engine: order, failures as they are, nothing started after one."""

import threading
import time

import pytest

from plinth.compute.engine import Threads, cores
from plinth.errors import SourceError


def slow_first(task: int) -> int:
    time.sleep(0.05 if task == 0 else 0)
    return task * task


def test_results_come_in_the_order_of_tasks_and_each_is_announced() -> None:
    seen: list[tuple[int, int]] = []
    found = list(Threads(3).map(slow_first, range(9), done=lambda index, result: seen.append((index, result))))
    assert found == [task * task for task in range(9)]
    assert seen == list(enumerate(found))
    assert cores() >= 1


def test_tasks_run_beside_each_other() -> None:
    both = threading.Barrier(2, timeout=300)  # passed only by two at once
    assert len(list(Threads(2).map(lambda _: both.wait(), range(2)))) == 2


def test_a_failure_is_raised_as_it_is_and_ends_the_rest() -> None:
    ran: list[int] = []

    def broken(task: int) -> int:
        ran.append(task)
        if task == 1:
            raise SourceError("the source broke")
        time.sleep(0.01)  # all of them would take ten seconds: time to hear of the failure
        return task

    with pytest.raises(SourceError, match="the source broke"):
        list(Threads(1).map(broken, range(1000)))
    assert len(ran) < 1000
