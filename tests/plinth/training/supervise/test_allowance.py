"""A job leaves before more is spent than was granted, at a committed checkpoint, and is not started again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from plinth.errors import TrainingError
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.supervise import result as job_result
from plinth.training.supervise.result import Allowance, AllowanceWatch, SubmittedNumbers
from plinth.training.telemetry.timeline import Timeline, timeline

Make = Callable[..., RunConfig]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock of the module, in the first place."""
    now = [1000.0]
    monkeypatch.setattr(job_result.time, "monotonic", lambda: now[0])
    return now


def started(config: RunConfig, rank_s: float, price: float = 3.6) -> AllowanceWatch:
    job_result.write_allowance(config.directory, Allowance(rank_s=rank_s, price_per_rank_hour=price))
    Timeline(config.directory.events).append("job_started", ranks=config.ranks, nodes=1)
    found = AllowanceWatch.of(config)
    assert found is not None
    return found


def test_without_a_grant_nothing_is_watched(make: Make) -> None:
    config = make()
    assert AllowanceWatch.of(config) is None
    job_result.write_allowance(config.directory, Allowance(rank_s=1, price_per_rank_hour=1))
    job_result.write_allowance(config.directory, None)
    assert job_result.read_allowance(config.directory) is None
    config.directory.allowance.write_text("{}")
    with pytest.raises(TrainingError, match="is not the allowance of this run"):
        AllowanceWatch.of(config)


def test_who_writes_the_workspace_lifts_no_limit(make: Make, clock: list[float]) -> None:
    """A larger grant, an earlier one, one of another run, none: before the job, and while it runs."""
    config = make(supervision={"grace_s": 0.1})
    run, place = config.directory, config.directory.allowance
    job_result.write_allowance(run, Allowance(rank_s=1e9, price_per_rank_hour=1))
    early = place.read_bytes()
    watch = started(config, 100.0)
    least = watch.granted.number
    for numbers in (SubmittedNumbers(), SubmittedNumbers(least), SubmittedNumbers(0, 7), SubmittedNumbers(least, 7)):
        assert SubmittedNumbers.split(["--trainer", "d", *numbers.options]) == (["--trainer", "d"], numbers)
    good = place.read_bytes()
    other = make(run_id="other-000000000000").directory
    other.root.mkdir(parents=True)
    job_result.write_allowance(other, Allowance(rank_s=1e9, price_per_rank_hour=1))
    for forged in (good.replace(b"100.0", b"900.0"), other.allowance.read_bytes(), early, None):
        place.unlink() if forged is None else place.write_bytes(forged)
        with pytest.raises(TrainingError, match="is not the allowance of this run"):
            AllowanceWatch.of(config, least)
    for forged in (early, None):
        place.unlink() if forged is None else place.write_bytes(forged)
        clock[0] += 3.0
        assert not watch.spent()
        assert watch.granted.rank_s == 100.0
        place.touch()
    clock[0] += 100.0
    place.write_bytes(early)
    assert watch.spent()
    place.write_bytes(good)
    assert AllowanceWatch.of(config, least) is not None


def test_it_is_spent_when_only_the_time_to_leave_is_left(make: Make, clock: list[float]) -> None:
    """2 ranks, 1,000 rank-seconds, 60 s to leave: 440 s of the clock. Marks are on the timeline once."""
    config = make(supervision={"grace_s": 60.0})
    watch = started(config, 1000.0)
    said = []
    for second in (0, 249, 250, 251, 400, 439.9, 440, 450):
        clock[0] = 1000.0 + second
        said.append(watch.spent())
    assert said == [False] * 6 + [True] * 2
    assert watch.reason == "the granted budget is spent: 0.88 of 1.00; the rest is reserved for stopping the run"
    events = timeline(config.directory.events)
    assert [event["share"] for event in events.of("allowance")] == [0.5, 0.8]
    (spent,) = events.of("allowance_spent")
    assert (spent["rank_s"], spent["granted_rank_s"], spent["price_per_rank_hour"]) == (880.0, 1000.0, 3.6)


def test_a_larger_grant_takes_effect_while_the_job_runs(make: Make, clock: list[float]) -> None:
    config = make(supervision={"grace_s": 0.1})
    watch = started(config, 100.0)
    clock[0] += 20.0
    assert not watch.spent()
    job_result.write_allowance(config.directory, Allowance(rank_s=1000.0, price_per_rank_hour=1))
    clock[0] += 40.0  # 120 rank-seconds
    assert not watch.spent()
    assert watch.granted.rank_s == 1000.0


def test_earlier_jobs_of_the_run_count(make: Make, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    config = make(supervision={"grace_s": 0.1})
    events = Timeline(config.directory.events)
    for now, event in ((100.0, "job_started"), (140.0, "stopped")):  # 80 rank-seconds
        monkeypatch.setattr("plinth.training.telemetry.timeline.time.time", lambda now=now: now)
        events.append(event, **({"ranks": 2} if event == "job_started" else {}))
    watch = started(config, 100.0)
    clock[0] += 9.0
    assert not watch.spent()
    clock[0] += 1.0
    assert watch.spent()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_real_job_leaves_at_a_committed_step_and_goes_on_with_more(make: Make, job: Callable[..., int]) -> None:
    """The grant is cut while it trains: it stops on the way; another start takes no step."""
    config = make(launch={"ranks": 1}, supervision={"grace_s": 120.0, "backoff_s": 0.1}, total_steps=100_000,
                  checkpoints={"every_steps": 50_000, "audit_steps": 4})  # fmt: skip
    job_result.write_allowance(config.directory, Allowance(rank_s=1e9, price_per_rank_hour=3600.0))
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(job, config)
        while not under_way.done() and not timeline(config.directory.events).steps:
            time.sleep(0.1)
        job_result.write_allowance(config.directory, Allowance(rank_s=1.0, price_per_rank_hour=3600.0))
        assert under_way.result() == 0  # no scheduler starts it again
    result = json.loads(config.directory.result.read_text())
    assert result["status"] == "stopped"
    assert result["reason"].startswith("the granted budget is spent")
    story = timeline(config.directory.events)
    assert 0 < max(story.steps) < config.total_steps
    assert checkpoint.committed(config.directory)[-1] == max(story.steps) == result["step"]  # nothing is lost
    assert job(config) == 0  # at once: nothing is left
    again = timeline(config.directory.events)
    assert max(again.steps) == max(story.steps)
    assert len(again.of("allowance_spent")) == 2
