"""The sampled steps, what they cost, and the bound that equal replays support."""

from __future__ import annotations

from collections import Counter

import pytest
from pydantic import ValidationError

from plinth.launch.parameters import Launch
from plinth.training.corruption.sampling import (
    CORRUPTION,
    RECORD,
    ReplayRecord,
    interval,
    is_sampled,
    plan_in_words,
    samples,
    trusted,
)
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import ReplayChecks, Training

KEY = "0" * 64


def test_one_step_of_each_block_is_sampled_and_every_position_equally_often() -> None:
    every = interval(0.3)
    assert every == 5
    found = list(samples(KEY, 0.3, 5001))
    assert [(step - 2) // every for step in found] == list(range(1000))
    assert found == [step for step in range(5002) if is_sampled(KEY, 0.3, step)]
    positions = Counter((step - 2) % every for step in found)
    assert all(150 < positions[position] < 250 for position in range(every))
    assert list(samples("1" * 64, 0.3, 5001)) != found


@pytest.mark.parametrize("share", [0.5, 0.3, 0.01, 0.001, 1e-6])
def test_replays_cost_at_most_the_share(share: float) -> None:
    assert 1.5 / interval(share) <= share or interval(share) == 2


def test_the_bound_is_exact_for_equal_replays_and_counts_mismatches_and_steps_without_sampling() -> None:
    def bound(steps: int = 60_000, **fields: int) -> float:
        return ReplayRecord(steps=60_000, **fields).bound(steps)

    covered = 59_999 / 60_000  # the first step is never sampled
    assert bound(samples=299) == pytest.approx(1 - covered * 0.05 ** (1 / 299))
    assert ReplayRecord(steps=2, samples=1).bound(2) == pytest.approx(1 - 0.5 * 0.05)
    assert bound(samples=299) == pytest.approx(3 / 299, rel=0.01)  # rule of three
    assert bound(samples=299) < bound(samples=299, mismatches=1) < bound(samples=100, mismatches=1)
    assert bound(120_000, samples=299) == pytest.approx(0.5 + 0.5 * bound(60_001, samples=299), rel=1e-4)
    assert bound(samples=0) == 1.0
    assert bound(samples=0, mismatches=1) == 1.0


def test_words() -> None:
    record = ReplayRecord(steps=900, samples=6, other_hosts=True)
    assert record.in_words(900) == (
        "no mismatch in 6 steps replayed on another host: corruption of a step is rarer than 0.39 at 95%"
    )
    fewer = ReplayRecord(steps=900, samples=6, mismatches=1, other_hosts=False).in_words(1800)
    assert fewer.startswith("1 rolled back in 7 steps replayed on another device of the same host: ")
    assert fewer.endswith("; 900 of 1,800 steps could be sampled")
    assert plan_in_words(KEY, 0.01, 900).startswith("one step of 150 is replayed on other devices, for at most 0.01 of")


def test_the_record_in_a_checkpoint_counts_the_rollbacks_of_the_guard() -> None:
    rollbacks = [{"rule": "loss_spike"}, {"rule": CORRUPTION}]
    record = ReplayRecord(steps=9, samples=2, last=7)
    monitor = {"guard": {"rollbacks": rollbacks}, RECORD: record.model_dump()}
    assert ReplayRecord.of(monitor) == record.model_copy(update={"mismatches": 1})
    assert ReplayRecord.of({"guard": {"rollbacks": []}}) == ReplayRecord()
    after = record.after().after(equal=True, step=11, other_hosts=False).after(equal=True, step=12)
    assert after == ReplayRecord(steps=12, samples=4, last=12, other_hosts=False)


def test_the_newest_checkpoint_up_to_the_last_equal_replay_is_kept() -> None:
    assert trusted({RECORD: {"last": 7}}, [3, 6, 9, 12]) == [6]
    assert trusted({RECORD: {"last": 2}}, [3, 6]) == trusted({}, [3, 6]) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"parallel": Parallel(tensor=4)}, "launch.ranks 4"),
        ({"parallel": Parallel(pipeline=2)}, "parallel.pipeline 2"),
        ({"parallel": Parallel(offload="optimizer", zero_stage=2)}, "parallel.offload optimizer"),
        ({"precision": "fp16"}, "precision fp16"),
        ({"deterministic": False}, "deterministic false"),
        ({"launch": Launch(ranks=1)}, "launch.ranks 1"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(changes: dict[str, object], named: str) -> None:
    given = {"launch": Launch(ranks=4), "replay_checks": ReplayChecks(), **changes}
    with pytest.raises(ValidationError, match=f"replay_checks cannot be combined with {named}"):
        Training(**given)  # type: ignore[arg-type]
