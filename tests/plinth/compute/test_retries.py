"""Attempts: order, retries, giving up, leaving early; without any worker."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.engine import Attempts, drive, outcome
from plinth.errors import MissingError, PlinthError, WorkerError


class Script:
    """A pool of `room` places with a scripted result for each attempt of its tasks; they end in random order."""

    def __init__(self, room: int, seed: int = 0) -> None:
        self.room, self.random = room, random.Random(seed)
        self.running: list[tuple[int, Any]] = []
        self.begun: list[int] = []
        self.abandoned: list[int] = []

    def start(self, index: int, task: list[Any]) -> bool:
        if len(self.running) == self.room:
            return False
        self.running.append((index, task.pop(0)))
        self.begun.append(index)
        return True

    def collect(self) -> Sequence[tuple[int, Any]]:
        self.random.shuffle(self.running)
        count = self.random.randint(1, len(self.running))
        ended, self.running = self.running[:count], self.running[count:]
        return ended

    def abandon(self) -> None:
        self.abandoned = [index for index, _ in self.running]


def lost() -> WorkerError:
    return WorkerError("a worker process died")


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 5), st.integers(0, 1000))
def test_every_task_is_done_once_and_given_out_in_its_turn(failures: list[int], room: int, seed: int) -> None:
    pool, told = Script(room, seed), dict[int, int]()

    def done(index: int, result: int) -> None:
        assert index not in told
        told[index] = result

    tasks = [[*(lost() for _ in range(count)), index * index] for index, count in enumerate(failures)]
    assert list(drive(pool, tasks, retries=2, done=done)) == [index**2 for index in range(len(failures))]
    assert told == {index: index**2 for index in range(len(failures))}
    assert sorted(pool.begun) == [index for index, count in enumerate(failures) for _ in range(count + 1)]
    assert not pool.abandoned


def test_a_failure_that_may_be_bad_luck_is_tried_again_at_once_and_only_so_often() -> None:
    pool = Script(1)
    with pytest.raises(WorkerError, match="died"):
        list(drive(pool, [[0], [lost(), lost(), lost(), 1], [2]], retries=2, done=None))
    assert pool.begun == [0, 1, 1, 1]


@pytest.mark.parametrize("error", [MissingError("no such file"), PlinthError("refused")])
def test_what_was_raised_on_purpose_is_not_tried_again(error: PlinthError) -> None:
    pool = Script(1)
    with pytest.raises(PlinthError) as caught:
        list(drive(pool, [[error, 1], [2]], retries=9, done=None))
    assert caught.value is error
    assert pool.begun == [0]


def test_what_runs_is_abandoned_when_the_map_fails_and_when_its_caller_leaves() -> None:
    pool = Script(3)
    results: Iterator[int] = drive(pool, [[n] for n in range(9)], retries=0, done=None)
    assert next(results) == 0
    running = [index for index, _ in pool.running]
    results.close()  # type: ignore[attr-defined]
    assert pool.abandoned == running
    pool = Script(3, seed=1)
    with pytest.raises(WorkerError):
        list(drive(pool, [[lost()], *([n] for n in range(9))], retries=0, done=None))
    assert pool.abandoned == [index for index, _ in pool.running]
    assert pool.abandoned


def test_an_error_of_the_one_who_is_told_ends_the_map() -> None:
    def done(index: int, result: int) -> None:
        raise OSError("no space left")

    pool = Script(2)
    with pytest.raises(OSError, match="no space"):
        list(drive(pool, [[1], [2], [3]], retries=3, done=done))
    assert len(pool.begun) == 2


def test_results_wait_for_those_before_them() -> None:
    attempts = Attempts[str](3, retries=1)
    for index in range(3):
        assert attempts.next == index
        attempts.started()
    attempts.succeeded(2, "c")
    attempts.failed(0, lost())
    assert (list(attempts.in_order()), attempts.next, attempts.finished) == ([], 0, False)
    attempts.succeeded(0, "a")
    assert list(attempts.in_order()) == ["a"]
    attempts.succeeded(1, "b")
    assert list(attempts.in_order()) == ["b", "c"]
    assert attempts.finished


def test_an_outcome_is_the_result_or_the_exception_as_a_value() -> None:
    error = MissingError("no 3", remedy="look again")

    def refuse(_: int) -> int:
        raise error

    def leave(_: int) -> int:
        raise SystemExit(3)

    def interrupt(_: int) -> int:
        raise KeyboardInterrupt

    assert outcome(abs, -3) == 3
    assert outcome(refuse, 3) is error
    found = outcome(leave, 3)
    assert isinstance(found, WorkerError)
    assert found.what.endswith("leave raised SystemExit")
    assert "raise SystemExit(3)" in str(found.found)
    with pytest.raises(KeyboardInterrupt):
        outcome(interrupt, 3)
