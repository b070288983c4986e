"""The goodput ledger: causes of stories written by hand, and sums that hold for any timeline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.training.supervise.rank_watch import NODE_LOST, describe_exit
from plinth.training.telemetry.goodput import GoodputLedger
from plinth.training.telemetry.goodput_account import GoodputAccount, account


class Story:
    """A timeline written by hand; a step computes for 0.8 s and waits 0.2 s for its batch."""

    def __init__(self) -> None:
        self.now, self.events = 1000.0, list[dict[str, Any]]()

    def add(self, event: str, after: float = 0.0, **fields: Any) -> None:
        self.now += after
        self.events.append({"seq": len(self.events) + 1, "time": round(self.now, 3), "event": event, **fields})

    def begin(self, ranks: int = 2) -> None:
        self.add("submitted", launcher="slurm")
        self.add("job_started", 30.0, ranks=ranks)
        self.add("run_started", 5.0, ranks=ranks, attempt=0)

    def step(self, step: int, after: float = 1.0, besides: dict[str, float] | None = None, **fields: Any) -> None:
        own = {"besides": besides} if besides else {}
        self.add("step", after, step=step, step_s=1.0, parts={"data": 0.2, "forward": 0.8}, **own, **fields)


def seconds(ledger: GoodputLedger) -> dict[str, float]:
    """Return the seconds of a rank by cause, for a run on two ranks."""
    return {cause: us / 2e6 for cause, us in ledger.rank_us.items() if us}


def test_a_run_that_ends_well() -> None:
    story = Story()
    story.begin()
    story.add("step", 4.0, step=1, step_s=3.0, parts={"data": 0.2, "forward": 2.8})  # a second before it begins
    story.step(2)
    story.add("evaluated", 6.0, step=2, seconds=6.0)
    story.step(3, besides={"evaluation": 6.0, "save": 0.25}, after=1.25)
    story.add("evaluated", 2.0, step=3, seconds=1.5)
    story.add("checkpoint", 0.5, step=3, seconds=9.0)
    story.add("audited", 7.0)
    story.add("finished", 1.0)
    ledger = account(story.events)
    assert seconds(ledger) == pytest.approx(
        {"goodput": 2.4, "queue": 30, "start": 5 + 1 + 1 + 0.5, "compile": 2, "input": 0.6, "checkpoint stall": 0.75,
         "evaluation": 7.5, "audit": 7}
    )  # fmt: skip
    assert ledger.held_rank_s == pytest.approx(ledger.total_rank_s - 60)
    assert ledger.goodput == pytest.approx(4.8 / ledger.held_rank_s)


def test_a_kill_a_hang_and_a_rollback() -> None:
    story = Story()
    story.begin()
    for step in (1, 2, 3):
        story.step(step)
    story.add("restart", 3.0, attempt=1, reason="rank 1 was killed by SIGKILL", from_step=1, backoff_s=4.0)
    story.add("run_started", 10.0, attempt=1, ranks=2, verified_s=1.5)
    story.add("resumed", 2.0, step=1)
    for step in (2, 3, 4):
        story.step(step)
    story.add("hang", 60.0)
    story.add("restart", 1.0, attempt=2, reason="the ranks hang", from_step=3, backoff_s=8.0)
    story.add("run_started", 10.0, attempt=2, ranks=2)
    story.add("resumed", 2.0, step=3)
    for step in (4, 5):
        story.step(step)
    story.add("rolled_back", 2.0, step=3)
    story.step(4, besides={"loading": 1.5})  # named by the rollback already
    story.step(6, vetoed=True)
    story.add("finished")
    ledger = account(story.events)
    assert seconds(ledger) == pytest.approx(
        {"goodput": 4 * 0.8, "queue": 30, "start": 5 + (10 - 4 - 1.5) + (10 - 8), "input": 4 * 0.2,
         "restore": 1.5 + 2 + 2, "redone work": 2 + 3 + 1, "guard": 2 + 2 + 1, "hang": 61, "idle": 12}
    )  # fmt: skip
    assert ledger.lost_steps == 2 + 1 + 2
    assert [(one.job, one.attempt) for one in ledger.attempts] == [(1, 0), (1, 1), (1, 2)]


def test_a_lost_node_and_the_next_job() -> None:
    story = Story()
    story.begin()
    story.step(1)
    story.step(2)
    story.add("lost", 20.0, reason=describe_exit(1, NODE_LOST), from_step=1)
    story.add("stopped", 1.0)
    story.add("submitted", 3600.0, launcher="slurm")  # no device is allocated meanwhile
    story.add("job_started", 10.0, ranks=2)
    story.add("run_started", 5.0, ranks=2, attempt=0)
    story.add("resumed", 1.0, step=1)
    story.step(2)
    found = seconds(account(story.events))
    expected = {"goodput": 1.6, "queue": 40, "start": 11, "input": 0.4, "restore": 1, "redone work": 1, "node loss": 20}
    assert found == pytest.approx(expected)


def test_a_job_that_was_killed_ends_with_its_last_event_and_one_in_the_queue_waits() -> None:
    story = Story()
    story.begin()
    story.step(1)
    story.add("submitted", 500.0)
    ledger = account(story.events, until=story.now + 7)
    assert [one.end - one.begin for one in ledger.attempts] == pytest.approx([36, 7])
    assert seconds(ledger)["queue"] == pytest.approx(37)
    assert account(story.events).rank_us["queue"] == 60_000_000


def test_devices_are_no_job() -> None:
    story = Story()
    story.begin()
    story.step(1)
    story.add("finished")
    story.add("devices", 100.0, gpus=[])
    assert len(account(story.events).attempts) == 1


KINDS = ("submitted", "job_started", "run_started", "resumed", "step", "evaluated", "checkpoint", "rolled_back", "hang",
         "restart", "lost", "vanished", "audited", "finished", "stopped", "downloaded", "retired")  # fmt: skip
EVENTS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(-500, 5000), st.integers(1, 5), st.integers(0, 3000)), max_size=40
)


def random_timeline(drawn: list[tuple[str, int, int, int]]) -> list[dict[str, Any]]:
    now, made = 1_000_000, []
    for kind, after, number, length in drawn:
        now += after  # a clock may be set back
        parts = {"data": length / 4000, "forward": length / 2000, "checkpoint": length / 8000}
        made.append(
            {"event": kind, "time": now / 1000, "step": number, "from_step": number, "ranks": 3, "attempt": number,
             "seconds": length / 1000, "step_s": sum(parts.values()), "parts": parts, "backoff_s": length / 1000,
             "besides": {"save": length / 3000, "evaluation": length / 5000}}
        )  # fmt: skip
    return made


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_any_timeline_adds_up_and_is_the_same_live_and_replayed(drawn: list[tuple[str, int, int, int]]) -> None:
    events, live = random_timeline(drawn), GoodputAccount()
    for number, event in enumerate(events, 1):
        live.add(event)
        ledger = live.ledger()
        assert ledger == account(events[:number])
        for one in ledger.attempts:
            assert all(us > 0 for us in one.rank_us.values())
            assert sum(one.rank_us.values()) == one.ranks * (round(one.end * 1e6) - round(one.begin * 1e6))
        tenths = [round(10 * share) for share in ledger.percentages().values()]
        assert sum(tenths) in (0, 1000)


def test_a_bounded_account_is_the_same_and_keeps_the_steps_that_can_be_taken_back() -> None:
    """Two checkpoints are kept, ten steps apart; a kill goes back to the last, a rollback to the one before."""
    story, bounded, most = Story(), GoodputAccount(bounded=True), 0
    story.begin()
    taken, back = 0, {157: 150, 263: 250}
    for turn in range(1, 400):
        taken += 1
        story.step(taken)
        if taken % 10 == 0:
            story.add("checkpoint", step=taken, seconds=0.5)
            if taken > 20:
                story.add("retired", steps=[taken - 20], reason="retention")
        if taken == 157 and turn == 157:
            story.add("restart", 2.0, attempt=1, reason="killed", from_step=150, lost_steps=7, lost_s=7, backoff_s=1.0)
            story.add("run_started", 3.0, ranks=2, attempt=1)
            story.add("resumed", 1.0, step=150)
            taken = back[157]
        elif taken == 263:
            story.add("rolled_back", 2.0, step=250, undone=13, number=1)
            taken, back[263] = 264, 0
    for event in story.events:
        bounded.add(event)
        most = max(most, len(bounded._steps))
    assert bounded.ledger() == account(story.events)
    assert bounded.ledger().lost_steps == 7 + 13
    assert most <= 31
    assert list(bounded.spans()) == []
