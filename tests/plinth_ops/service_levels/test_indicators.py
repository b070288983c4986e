"""Service-level indicators: exact seconds of timelines written by hand; what spends a budget, and what does not."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from plinth.errors import CheckFailedError, MissingError
from plinth.training.telemetry.goodput_account import account
from plinth_ops.service_levels.indicators import budgets, of_run
from plinth_ops.service_levels.tallies import ErrorBudget, Objectives, Tally, clipped, refuse_spent, run_facts, value

Events = list[dict[str, Any]]
LATE = 1e6
TIGHT = Objectives(checkpoint_age_s=3, restore_time_s=2, goodput_after_s=0)


def event(time: float, kind: str, **fields: Any) -> dict[str, Any]:
    return {"time": time, "event": kind, **fields}


def step(time: float, number: int) -> dict[str, Any]:
    return event(time, "step", step=number, step_s=1.0, tokens=1000 * number, parts={"data": 0.0, "forward": 1.0})


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


def tallies(events: Events, objectives: Objectives = TIGHT, until: float = LATE, **more: Any) -> list[Tally]:
    return of_run(run_facts("run", events, 2, until, objectives.silence_s, **more), objectives)


def found(events: Events, objectives: Objectives = TIGHT, until: float = LATE, **more: Any) -> dict[str, ErrorBudget]:
    return {one.indicator: one for one in budgets(tallies(events, objectives, until, **more), objectives, until)}


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
    each = [one.total_us for one in tallies(restarted()) if one.indicator == "restore time"]
    assert each == [4e6, 6e6]


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
    assert found(events, until=1004 + 86400 * 28)["job success"].total_s == 8  # part of the attempt in the window
    assert found(events, until=LATE * 3)["job success"].total_s == 16


def test_a_window_holds_the_seconds_that_lie_in_it() -> None:
    """A day of steps, and an hour of waiting at its end: the hour's window sees nothing else, however long the
    attempt is."""
    day = [event(0, "job_started", ranks=4), event(0, "run_started", ranks=4, attempt=0)]
    day += [
        event(
            60 * number, "step", step=number, step_s=60.0, tokens=number, parts={"data": waits, "forward": 60 - waits}
        )
        for number in range(1, 1441)
        for waits in [60.0 if number > 1380 else 0.0]
    ]
    made = tallies(day, until=86400)
    assert [value(made, "goodput", 86400 - hours * 3600, 86400) for hours in (1, 2, 24)] == [0, 0.5, 23 / 24]
    assert value(made, "goodput", 86400 - 300, 86400) == 0
    assert value(made, "goodput", 1000, 1300) == 1
    assert value(made, "goodput", 82800 - 60, 82800 + 60) == 0.5
    assert value(made, "goodput", 90000, 91000) is None
    whole = budgets(made, TIGHT, 86400)[1]
    assert whole.total_s == 86400 * 4


def test_windows_side_by_side_add_up_to_the_whole() -> None:
    for events in (healthy(), restarted()):
        made = tallies(events)
        for name in ("job success", "goodput", "checkpoint age", "restore time"):
            cuts = [1000 + 0.5 * number for number in range(40)]
            own = [one for one in made if one.indicator == name]
            parts = [cut for one in own for begin, end in pairwise(cuts) if (cut := clipped(one, begin, end))]
            assert sum(one.total_us for one in parts) == sum(one.total_us for one in own)
            assert sum(one.good_us for one in parts) == sum(one.good_us for one in own)


def test_what_a_run_did_before_it_failed_is_bad_only_once_it_has_failed() -> None:
    events = [*healthy()[:-1], event(1008, "failed", reason="")]
    assert value(tallies(events, until=1007.5), "job success", 1000, 1005) == 1
    assert value(tallies(events, until=1008), "job success", 1000, 1005) == 0


def test_gaps_between_checkpoints_count_whole() -> None:
    events = [*healthy()[:-1], *(step(1007 + number, 5 + number) for number in range(1, 3)), event(1010, "finished")]
    made = found(events, Objectives(checkpoint_every_s=2))["checkpoint frequency"]
    assert (made.good_s, made.total_s, made.measure) == (0, 16, 5)  # 5 s to the first; 3 s since are open yet
    made = found(events, Objectives(checkpoint_every_s=4))["checkpoint frequency"]
    assert (made.good_s, made.total_s) == (6, 16)


@pytest.mark.parametrize(("later", "good", "rise"), [(2.9, 8, 0.0), (3.01, 8, 0.01), (3.1, 4, 0.1), ("nan", 4, None)])
def test_a_look_that_is_worse_than_the_best_before_makes_its_seconds_bad(
    later: Any, good: float, rise: float | None
) -> None:
    slices = {"web": 2.0, "code": later} if later == "nan" else {"web": later - 1, "code": later + 1}
    looks = [
        event(1004, "evaluated", step=2, tokens=2000, slices={"web": 2.0, "code": 4.0}),
        event(1006, "evaluated", step=4, tokens=4000, slices=slices),
    ]
    made = found(sorted([*healthy(), *looks], key=lambda one: one["time"]))["validation trend"]
    assert (made.good_s, made.total_s, made.measure) == (good, 8, pytest.approx(rise))


def test_a_look_again_after_a_restart_is_compared_with_those_before_it_alone() -> None:
    looks = [event(1002.5, "evaluated", step=1, tokens=1000, slices={"web": 3.0})]
    looks += [event(1010.5, "evaluated", step=1, tokens=1000, slices={"web": 3.5})]
    made = found(sorted([*restarted(), *looks], key=lambda one: one["time"]))["validation trend"]
    assert (made.value, made.total_s) == (1, 2)


def test_devices_are_as_busy_as_their_samples_say() -> None:
    def sample(time: float, *busy: Any) -> dict[str, Any]:
        return event(time, "devices", node=0, gpus=[{"gpu": gpu, "utilisation": one} for gpu, one in enumerate(busy)])

    samples = [sample(1000, 0, 0), sample(1010, 50, 100), sample(1020, 30, None), sample(5000, 100, 100)]
    made = found(healthy(), samples=samples)["device utilisation"]
    assert (made.good_s, made.total_s) == (15 + 3, 20 + 10)  # no sample stands for an hour without one


def test_without_samples_ranks_are_busy_as_they_compute() -> None:
    half = {"data": 0.0, "forward": 0.25, "backward": 0.25, "communication": 0.5}
    events = [one | {"parts": half} if one["event"] == "step" else one for one in healthy()]
    made = found(events)["device utilisation"]
    assert (made.good_s, made.total_s) == (5, 16)


def test_money_and_tokens() -> None:
    made = found(healthy(), price=3.6)["cost per token"]  # a thousandth per rank-second; 1000 tokens per step of 2
    assert (made.value, made.measure) == (None, pytest.approx(16e-3 / 5000 * 1e6))
    cheap = Objectives(cost_per_million_tokens=2.0)  # 2 rank-seconds a thousand tokens: what a step takes
    made = found(healthy(), cheap, price=3.6)["cost per token"]
    assert (made.good_s, made.total_s) == (10, 16)
    made = found(healthy(), Objectives(cost_per_million_tokens=1.0), price=3.6)["cost per token"]
    assert (made.good_s, made.total_s) == (5, 16)
    assert found(healthy(), cheap)["cost per token"].measure is None  # no price is known


def test_tokens_that_are_trained_again_pay_once() -> None:
    again = [*restarted()[:-2], step(1010, 1), step(1011, 2), event(1012, "finished")]
    again[3] |= {"from_step": 0}
    again[5] |= {"step": 0}
    made = found(again, Objectives(cost_per_million_tokens=2.0), price=3.6)["cost per token"]
    assert made.good_s == 4
    assert made.measure == pytest.approx(24e-3 / 2000 * 1e6)


@pytest.mark.parametrize(("complete", "good"), [(True, 16), (False, 0)])
def test_lineage_is_of_whole_runs(complete: bool, good: float) -> None:
    made = found(healthy(), complete=complete)["lineage completeness"]
    assert (made.good_s, made.total_s) == (good, 16)
    assert found(healthy())["lineage completeness"].value is None


def test_a_run_is_as_reproducible_as_its_last_replay() -> None:
    def audited(time: float, **fields: Any) -> Events:
        return sorted([*healthy(), event(time, "audited", compared_steps=4, **fields)], key=lambda one: one["time"])

    assert found(healthy())["reproducibility delta"].value is None
    made = found(audited(1007.5, bit_exact=True))["reproducibility delta"]
    assert (made.value, made.measure, made.total_s) == (1, 0, 16)
    assert found(audited(1007.5, bit_exact=False, delta=0.005))["reproducibility delta"].value == 1
    assert found(audited(1007.5, bit_exact=False, delta=0.02))["reproducibility delta"].value == 0
    assert found(audited(1007.5, bit_exact=False))["reproducibility delta"].value == 0  # earlier versions


def test_a_fine_tuning_takes_from_its_submission_to_its_end() -> None:
    soon = Objectives(fine_tune_s=50)
    assert found(healthy(), soon)["time to fine-tune"].value is None
    made = found(healthy(), soon, fine_tunes=True)["time to fine-tune"]
    assert (made.good_s, made.total_s, made.measure) == (50, 58, pytest.approx(58 / 3600))
    made = found(healthy()[:-1], soon, 1100, fine_tunes=True)["time to fine-tune"]
    assert made.total_s == 150  # it is under way
    made = found(healthy()[:-1], soon, 1007 + 7201, fine_tunes=True)["time to fine-tune"]
    assert made.total_s == 57  # it was killed


def test_spans_are_the_ledgers_causes() -> None:
    for events in (healthy(), restarted()):
        facts = run_facts("run", events, 2, LATE)
        sums: Counter[str] = Counter()
        for one, spans in zip(facts.attempts, facts.spans, strict=True):
            for span in spans:
                sums[span.cause] += span.us * one.ranks
        ledger = account(events, 2).rank_us
        assert {cause: us for cause, us in sums.items() if us} == {
            cause: us for cause, us in ledger.items() if us and cause != "queue"
        }


def test_goodput_is_the_ledgers() -> None:
    for events in (healthy(), restarted()):
        ledger, made = account(events, 2), found(events)["goodput"]
        assert made.value == pytest.approx(ledger.goodput)
        assert made.total_s == pytest.approx(ledger.held_rank_s)


def test_a_spent_budget_is_refused_by_name_and_no_run_is_no_pass() -> None:
    with pytest.raises(CheckFailedError, match=r"error budget exhausted: goodput, checkpoint age\n") as refused:
        refuse_spent(list(found(healthy()).values()))
    assert "62.50% of 16" in str(refused.value.found)
    generous = Objectives(goodput=0.5, checkpoint_age_s=60, goodput_after_s=0)
    refuse_spent(list(found(healthy(), generous).values()))
    with pytest.raises(MissingError, match="no run in the window"):
        refuse_spent(list(found([]).values()))


def test_goodput_is_judged_once_jobs_have_run_long_enough() -> None:
    """8 s of two ranks, of which 5 s count: below 90%, and start-up of a run that is too short to have any other."""
    short = found(healthy(), TIGHT.model_copy(update={"goodput_after_s": 9}))["goodput"]
    assert (short.covered_s, short.total_s, short.value) == (8, 16, 0.625)
    assert not short.is_judged
    assert not short.is_spent
    assert short.words == ("goodput 62.50% of 16 rank-seconds, target 90.00% (too little data: 8 s, minimum 9 s)")
    with pytest.raises(MissingError, match="no sufficiently long run in the window"):
        refuse_spent([short])
    enough = found(healthy(), TIGHT.model_copy(update={"goodput_after_s": 8}))["goodput"]
    assert enough.is_spent
    assert [Objectives().minimum_s(name) for name in ("goodput", "job success")] == [3600, 0]
    assert "goodput_after_s" not in Objectives().model_dump()  # a policy that was signed before keeps its digest


@pytest.mark.parametrize("share", [0.0, 1.0, 95.0])
def test_an_objective_without_an_error_budget_is_none(share: float) -> None:
    with pytest.raises(ValidationError):
        Objectives(goodput=share)
