"""Submissions by a token bucket, with pauses after refusals: counted on a clock of the test's own."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.errors import LaunchError
from plinth.launch.base import Handle
from plinth.launch.parameters import Launch, SubmissionRate
from plinth.launch.submission_rate import FOLDER, LONGEST_PAUSE_S, RateState, answered, submit_within, taken

HANDLE = Handle(launcher="local", id="1", started="2", host="here")


class Clock:
    """Time passes by sleeping alone."""

    def __init__(self, now: float = 1e9) -> None:
        self.now, self.slept = now, list[float]()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def submissions(folder: Path, rate: SubmissionRate, count: int, clock: Clock, kind: str = "slurm") -> None:
    for _ in range(count):
        submit_within(folder, kind, rate, lambda: HANDLE, clock=clock, sleep=clock.sleep)


def test_a_burst_at_once_then_one_for_each_interval(tmp_path: Path) -> None:
    clock, rate = Clock(), SubmissionRate(per_hour=60, burst=3)
    submissions(tmp_path, rate, 3, clock)
    assert clock.slept == []
    submissions(tmp_path, rate, 2, clock)
    assert clock.slept == pytest.approx([60.0, 60.0])
    submissions(tmp_path, rate, 1, clock, kind="kubernetes")  # a bucket of its own
    submissions(tmp_path / "other", rate, 3, clock)
    assert len(clock.slept) == 2


def test_whoever_would_wait_too_long_is_refused_and_has_taken_nothing(tmp_path: Path) -> None:
    clock, rate = Clock(), SubmissionRate(per_hour=1, burst=1, wait_s=100)
    submissions(tmp_path, rate, 1, clock)
    with pytest.raises(LaunchError, match="submissions to slurm exceed") as refusal:
        submissions(tmp_path, rate, 1, clock)
    assert "3,600 s" in str(refusal.value)
    clock.now += 3600
    submissions(tmp_path, rate, 1, clock)
    assert clock.slept == []


def test_refusals_in_a_row_double_the_pause_and_a_submission_ends_it(tmp_path: Path) -> None:
    clock, rate = Clock(), SubmissionRate(per_hour=1e6, burst=100, backoff_s=2)

    def refused() -> Handle:
        raise LaunchError("the queue is full")

    for _ in range(4):
        with pytest.raises(LaunchError, match="the queue is full"):
            submit_within(tmp_path, "slurm", rate, refused, clock=clock, sleep=clock.sleep)
    submissions(tmp_path, rate, 2, clock)
    assert clock.slept == pytest.approx([2, 4, 8, 16])
    with pytest.raises(LaunchError, match="the queue is full"):
        submit_within(tmp_path, "slurm", rate, refused, clock=clock, sleep=clock.sleep)
    submissions(tmp_path, rate, 1, clock)
    assert clock.slept[-1] == pytest.approx(2)


def test_no_pause_is_longer_than_the_longest() -> None:
    state = RateState(tokens=5, at=0.0)
    for _ in range(2000):
        state = answered(state, 100.0, refused=True)
    assert taken(state, SubmissionRate(), 100.0)[1] == LONGEST_PAUSE_S


@given(moves=st.lists(st.floats(-1e5, 1e5), max_size=50), per_hour=st.floats(0.1, 1e4), burst=st.integers(1, 50))
def test_no_more_than_the_rate_permits_whatever_the_clock_does(moves: list[float], per_hour: float, burst: int) -> None:
    """A clock that was set back takes nothing away and gives nothing: the bound is over the time that went forward."""
    rate, now = SubmissionRate(per_hour=per_hour, burst=burst), 1e9
    state, forward, admitted = RateState(tokens=burst, at=now), 0.0, 0
    for move in moves:
        now, forward = now + move, forward + max(0.0, move)
        state, wait = taken(state, rate, now)
        admitted += wait == 0.0
        assert 0.0 <= state.tokens <= burst
    assert admitted <= burst + forward * per_hour / 3600 + 1e-6


def _submit(folder: str, number: int) -> bool:
    rate = SubmissionRate(per_hour=0.001, burst=5, wait_s=0)
    try:
        submit_within(Path(folder), "local", rate, lambda: HANDLE)
    except LaunchError:
        return False
    return True


def test_processes_share_one_bucket(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.starmap(_submit, [(str(tmp_path), number) for number in range(12)])
    assert sum(found) == 5


def test_a_damaged_state_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / FOLDER / "slurm.json"
    path.parent.mkdir()
    path.write_text("{torn")
    clock = Clock()
    submissions(tmp_path, SubmissionRate(burst=2), 2, clock)
    assert clock.slept == []


def test_a_recipe_sets_the_rate() -> None:
    assert Launch.model_validate({"rate": {"per_hour": 6, "burst": 1}}).rate == SubmissionRate(per_hour=6, burst=1)
    with pytest.raises(ValueError, match="per_hour"):
        Launch.model_validate({"rate": {"per_hour": 0}})
