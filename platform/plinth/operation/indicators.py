"""Service-level indicators of training: good seconds out of all seconds, from the timelines of runs alone.

    of_run(events, ranks, objectives, until)   tallies of one run
    budgets(tallies, objectives)               all runs of a window: values, and how much of each error budget is spent
    refuse_spent(budgets)                      an error that names every budget that is spent

A platform that trains in batches has few jobs and many rank-seconds: an objective is a share of seconds, never of jobs.
Time belongs to attempts, and an attempt whole to the window in which it ended or still runs. Events after `until` are
not read, and the ledger after an event depends on no later one: the past can be computed again, live and replayed
alike.

Does not belong here: which runs a workspace has, what a second costs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

from pydantic import Field

from plinth.errors import CheckFailedError, MissingError
from plinth.records import Frozen
from plinth.training.telemetry.goodput import JOB_ENDS, AttemptTime, account

Event = Mapping[str, Any]

Indicator = Literal["job success", "goodput", "checkpoint age", "restore time"]
INDICATORS: tuple[Indicator, ...] = get_args(Indicator)


class Objectives(Frozen):
    """Shares of seconds that have to be good, over a sliding window."""

    window_days: float = Field(28.0, gt=0, description="Attempts that ended, or still ran, within so many days count.")
    job_success: float = Field(
        0.95, gt=0, lt=1, description="Of rank-seconds held: by jobs that did not fail and were not killed."
    )
    silence_s: float = Field(7200.0, gt=0, description="Seconds without an event after which a job has been killed.")
    goodput: float = Field(0.90, gt=0, lt=1, description="Of rank-seconds held: by steps that count.")
    checkpoint_age: float = Field(
        0.99, gt=0, lt=1, description="Of rank-seconds since a first step: within the bound."
    )
    checkpoint_age_s: float = Field(3600.0, gt=0, description="Seconds since a checkpoint, or since the first step.")
    restore_time: float = Field(0.95, gt=0, lt=1, description="Of rank-seconds in restores: within the bound of each.")
    restore_time_s: float = Field(300.0, gt=0, description="Seconds to download, verify and load a checkpoint.")

    def target(self, indicator: Indicator) -> float:
        """The share of an indicator's seconds that has to be good."""
        found: float = getattr(self, indicator.replace(" ", "_"))
        return found


class Tally(Frozen):
    """Rank-microseconds of one indicator that ended with an attempt.

    Attributes:
        end: Unix seconds, of the attempt.
    """

    indicator: Indicator
    end: float
    good_us: int
    total_us: int


class ErrorBudget(Frozen):
    """One indicator over a window.

    Attributes:
        good_s, total_s: rank-seconds.
        target: share that has to be good.
    """

    indicator: Indicator
    target: float
    good_s: float
    total_s: float

    @property
    def value(self) -> float | None:
        """Share that was good; None where nothing was measured."""
        return self.good_s / self.total_s if self.total_s else None

    @property
    def spent(self) -> float | None:
        """Bad seconds as a share of those that the objective allows; 1 and above: spent. None: nothing was measured."""
        return (self.total_s - self.good_s) / ((1 - self.target) * self.total_s) if self.total_s else None


def of_run(events: Iterable[Event], ranks: int, objectives: Objectives, until: float) -> list[Tally]:
    """Tallies of a run's attempts, as its timeline stood at a time.

    Args:
        ranks: of a job that has not said how many it holds.
        until: Unix seconds.
    """
    seen = [event for event in events if float(event["time"]) <= until]
    attempts = account(seen, ranks).attempts
    begins = [one.begin for one in attempts]
    inside: list[list[Event]] = [[] for _ in attempts]
    for event in seen:  # the next job's queue begins when the last has ended: that event is the earlier attempt's
        if attempts:
            inside[max(0, bisect_left(begins, float(event["time"])) - 1)].append(event)
    silent = bool(seen) and until - float(seen[-1]["time"]) > objectives.silence_s
    failed = _failed_jobs(attempts, inside, silent)
    return [
        tally
        for one, its in zip(attempts, inside, strict=True)
        for tally in _of_attempt(one, its, objectives, one.job in failed)
        if tally.total_us
    ]


def _failed_jobs(attempts: Sequence[AttemptTime], inside: Sequence[Sequence[Event]], silent: bool) -> set[int]:
    """Numbers of the jobs that failed, lost work for good, or were killed: no end before the next began, or silence."""
    kinds: dict[int, set[str]] = {}
    for one, its in zip(attempts, inside, strict=True):
        kinds.setdefault(one.job, set()).update(str(event["event"]) for event in its)
    last = 0 if silent else max(kinds, default=0)
    return {job for job, had in kinds.items() if had & {"failed", "lost"} or (job != last and not had & JOB_ENDS)}


def _of_attempt(one: AttemptTime, its: Sequence[Event], objectives: Objectives, failed: bool) -> Iterator[Tally]:
    held = sum(one.rank_us.values()) - one.rank_us.get("queue", 0)
    yield Tally(indicator="job success", end=one.end, good_us=0 if failed else held, total_us=held)
    yield Tally(indicator="goodput", end=one.end, good_us=one.rank_us.get("goodput", 0), total_us=held)
    ages = [us * one.ranks for us in _ages_us(one, its)]
    yield _within("checkpoint age", one, ages, objectives.checkpoint_age_s)
    yield _within("restore time", one, [one.rank_us.get("restore", 0)], objectives.restore_time_s)


def _ages_us(one: AttemptTime, its: Sequence[Event]) -> list[int]:
    """Microseconds from the first step to the first checkpoint, between checkpoints, and from the last, where steps
    followed it, to the end."""
    steps = [float(event["time"]) for event in its if event["event"] == "step"]
    if not steps:
        return []
    commits = [float(event["time"]) for event in its if event["event"] == "checkpoint"]
    times = [steps[0], *(time for time in commits if time > steps[0])]
    if steps[-1] > times[-1] or len(times) == 1:
        times.append(max(one.end, steps[-1]))
    return [round((later - earlier) * 1e6) for earlier, later in pairwise(times)]


def _within(indicator: Indicator, one: AttemptTime, parts_us: Sequence[int], bound_s: float) -> Tally:
    """Each part is good up to the bound; its rest is not."""
    bound = round(bound_s * 1e6) * one.ranks
    good = sum(min(part, bound) for part in parts_us)
    return Tally(indicator=indicator, end=one.end, good_us=good, total_us=sum(parts_us))


def budgets(tallies: Iterable[Tally], objectives: Objectives, until: float) -> list[ErrorBudget]:
    """Of every indicator, over the window that ends at `until` (Unix seconds)."""
    since = until - objectives.window_days * 86400
    counted = [one for one in tallies if since < one.end <= until]
    return [
        ErrorBudget(
            indicator=indicator,
            target=objectives.target(indicator),
            good_s=sum(one.good_us for one in counted if one.indicator == indicator) / 1e6,
            total_s=sum(one.total_us for one in counted if one.indicator == indicator) / 1e6,
        )
        for indicator in INDICATORS
    ]


def refuse_spent(found: Sequence[ErrorBudget]) -> None:
    """Pass only where something was measured and every error budget has some left.

    Raises:
        MissingError: no job held a rank in the window: nothing says that all is well.
        CheckFailedError: budgets that are spent, by name.
    """
    if not any(one.total_s for one in found):
        raise MissingError(
            "no run in the window: no error budget can be judged",
            remedy="train, or widen window_days in objectives.yaml",
        )
    spent = [one for one in found if one.spent is not None and one.spent >= 1]
    if spent:
        raise CheckFailedError(
            f"error budget spent: {', '.join(one.indicator for one in spent)}",
            found="; ".join(f"{one.indicator} {one.value:.2%} of {one.total_s:,.0f} rank-seconds" for one in spent),
            expected="; ".join(f"{one.indicator} above {one.target:.2%}" for one in spent),
            remedy="`plinth goodput RUN` names the causes; promote nothing until they are mended (docs/slis.md)",
        )
