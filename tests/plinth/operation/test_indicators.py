"""Service-level indicators: exact seconds of timelines written by hand; what spends a budget, and what does not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from plinth.errors import CheckFailedError, MissingError
from plinth.operation.indicators import ErrorBudget, Objectives, budgets, of_run, refuse_spent
from plinth.training.telemetry.goodput import account

Events = list[dict[str, Any]]
LATE = 1e6
TIGHT = Objectives(checkpoint_age_s=3, restore_time_s=2)


def event(time: float, kind: str, **fields: Any) -> dict[str, Any]:
    return {"time": time, "event": kind, **fields}


def step(time: float, number: int) -> dict[str, Any]:
    return event(time, "step", step=number, step_s=1.0, parts={"data": 0.0, "forward": 1.0})


def healthy(begin: float = 1000.0) -> Events:
    """Two ranks for 8 s: 1 s until the ranks are up, five steps, a checkpoint, 1 s to the end."""
    return [
        event(begin - 50, "submitted", launcher="local"),
        event(begin, "job_started", ranks=2),
        event(begin + 1, "run_started", ranks=2, attempt=0),
        *(step(begin + 1 + number, number) for number in range(1, 6)),
        event(begin + 7, "checkpoint", step=5, seconds=1.0),
        event(begin + 8, "finished"),
    ]


def restarted(begin: float = 1000.0) -> Events:
    """A rank is killed; the next attempt restores for 5 s and ends in order."""
    return [
        event(begin, "job_started", ranks=2),
        event(begin + 1, "run_started", ranks=2, attempt=0),
        step(begin + 2, 1),
        event(begin + 3, "restart", attempt=1, reason="killed", from_step=1, backoff_s=0.0),
        event(begin + 4, "run_started", ranks=2, attempt=1),
        event(begin + 9, "resumed", step=1),
        step(begin + 10, 2),
        event(begin + 11, "finished"),
    ]


def found(events: Events, objectives: Objectives = TIGHT, until: float = LATE) -> dict[str, ErrorBudget]:
    return {one.indicator: one for one in budgets(of_run(events, 2, objectives, until), objectives, until)}


def test_a_job_that_ends_well() -> None:
    made = found(healthy())
    assert (made["job success"].good_s, made["job success"].total_s) == (16, 16)  # without the queue
    assert (made["goodput"].good_s, made["goodput"].total_s) == (10, 16)
    assert (made["checkpoint age"].good_s, made["checkpoint age"].total_s) == (6, 10)  # 5 s, of which 3 are allowed
    assert (made["restore time"].value, made["restore time"].spent) == (None, None)
    assert made["goodput"].spent == pytest.approx(6 / 1.6)


def test_a_restore_longer_than_its_bound_is_bad_beyond_it() -> None:
    made = found(restarted())
    assert (made["restore time"].good_s, made["restore time"].total_s) == (4, 10)
    assert made["job success"].value == 1  # it went on by itself
    assert made["checkpoint age"].total_s == 2 * (1 + 1)  # from each first step to the end of its attempt


@pytest.mark.parametrize("bad", ["failed", "lost", None])
def test_a_job_that_fails_or_is_killed_is_bad_whole(bad: str | None) -> None:
    ended = [event(1008, bad, reason="")] if bad else []
    if bad == "lost":
        ended.append(event(1008.5, "stopped"))
    events = [*healthy()[:-1], *ended, *healthy(2000)]
    made = found(events)["job success"]
    assert made.good_s == 16
    assert made.total_s - made.good_s == {"failed": 16, "lost": 17, None: 14}[bad]


def test_a_job_under_way_is_no_failure_and_a_preempted_one_none() -> None:
    assert found(healthy()[:-1], until=1007 + 7200)["job success"].value == 1
    preempted = [*healthy()[:-1], event(1008, "signal", signal="SIGTERM", step=5), event(1009, "stopped")]
    assert found([*preempted, *healthy(2000)[1:]])["job success"].value == 1


def test_a_job_that_falls_silent_was_killed_and_one_that_ended_is_not_silent() -> None:
    assert found(healthy()[:-1], until=1007 + 7201)["job success"].value == 0
    assert found(healthy(), until=LATE)["job success"].value == 1


def test_an_end_at_which_the_next_queue_begins_belongs_to_the_job_before() -> None:
    first = [*healthy()[:-1], event(1008, "failed", reason="")]
    made = found([*first, *healthy(2000)[1:]])["job success"]  # no `submitted`: it has queued since 1008
    assert (made.good_s, made.total_s) == (16, 32)


def test_the_past_is_computed_again_and_a_window_forgets() -> None:
    events = [*healthy(), *healthy(1008 + 86400 * 30)]
    assert found(events, until=1008) == found(healthy())
    assert found(events, until=1005) == found([one for one in events if one["time"] <= 1005], until=1006)
    assert found(events, until=1008 + 86400 * 28)["job success"].total_s == 0
    assert found(events, until=LATE * 3)["job success"].total_s == 16


def test_goodput_is_the_ledgers() -> None:
    for events in (healthy(), restarted()):
        ledger, made = account(events, 2), found(events)["goodput"]
        assert made.value == pytest.approx(ledger.goodput)
        assert made.total_s == pytest.approx(ledger.held_rank_s)


def test_a_spent_budget_is_refused_by_name_and_no_run_is_no_pass() -> None:
    with pytest.raises(CheckFailedError, match=r"error budget spent: goodput, checkpoint age\n") as refused:
        refuse_spent(list(found(healthy()).values()))
    assert "62.50% of 16" in str(refused.value.found)
    generous = Objectives(goodput=0.5, checkpoint_age_s=60)
    refuse_spent(list(found(healthy(), generous).values()))
    with pytest.raises(MissingError, match="no run in the window"):
        refuse_spent(list(found([]).values()))


@pytest.mark.parametrize("share", [0.0, 1.0, 95.0])
def test_an_objective_without_an_error_budget_is_none(share: float) -> None:
    with pytest.raises(ValidationError):
        Objectives(goodput=share)
