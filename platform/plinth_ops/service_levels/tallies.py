"""Objectives, facts and tallies: good and total seconds of an interval, and error budgets over a window.

An objective is the required good share of an indicator's seconds. Facts are the input of indicators up to a given time,
for one run or for the assets of a workspace. A tally is uniform over its interval. A window includes the part of the
tally that overlaps the window, in whole microseconds. A long attempt therefore counts in every window that it overlaps,
and windows may have any length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import Field

from plinth.errors import CheckFailedError, MissingError
from plinth.records import Frozen
from plinth.training.telemetry.goodput import AttemptTime, TimeSpan
from plinth.training.telemetry.goodput_account import GoodputAccount
from plinth.training.telemetry.timeline import JOB_ENDS


class Objectives(Frozen):
    """Objectives: required good shares over a sliding window, and the limits that define a good second."""

    window_days: float = Field(28.0, gt=0, description="Length of the sliding window, in days.")
    silence_s: float = Field(7200.0, gt=0, description="Seconds without an event after which a job counts as killed.")
    job_success: float = Field(0.95, gt=0, lt=1, description="Required share of rank-seconds in successful jobs.")
    goodput: float = Field(0.90, gt=0, lt=1, description="Required share of rank-seconds spent in steps that are kept.")
    goodput_after_s: float = Field(
        3600.0,
        ge=0,
        description="Minimum allocated seconds before goodput is evaluated, because a short run is mostly startup.",
        exclude_if=lambda given: given == 3600.0,
    )
    checkpoint_age: float = Field(
        0.99, gt=0, lt=1, description="Required share of rank-seconds with a recent checkpoint."
    )
    checkpoint_age_s: float = Field(3600.0, gt=0, description="Maximum age of the last checkpoint, in seconds.")
    checkpoint_frequency: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="Required share of rank-seconds in checkpoint intervals that are not longer than the limit.",
    )
    checkpoint_every_s: float = Field(3600.0, gt=0, description="Maximum checkpoint interval, in seconds.")
    restore_time: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="Required share of restore time that is within the time limit of a restore.",
    )
    restore_time_s: float = Field(300.0, gt=0, description="Maximum seconds to download, verify and load a checkpoint.")
    validation_trend: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="Required share of rank-seconds that precede a held-out evaluation whose loss is within the limit.",
    )
    validation_rise: float = Field(
        0.02, ge=0, description="Tolerated rise of a held-out loss above the best earlier loss, in bits per byte."
    )
    suite_pass_rate: float = Field(
        0.99,
        gt=0,
        lt=1,
        description="Required share of seconds for which a suite's last check passed, over all suites.",
    )
    device_utilisation: float = Field(
        0.50,
        gt=0,
        lt=1,
        description="Required share of device-seconds in which the device is busy. Without device samples, the share "
        "of rank-seconds spent computing is used.",
    )
    cost_per_token: float = Field(
        0.90,
        gt=0,
        lt=1,
        description="Required share of paid rank-seconds that are within the cost allowed for their tokens.",
    )
    cost_per_million_tokens: float | None = Field(
        None, gt=0, description="Maximum cost of a million tokens; if null, the cost has no objective."
    )
    ingestion_lag: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="Required share of the waiting time of new source files that is within the limit.",
    )
    ingestion_lag_s: float = Field(
        3600.0, gt=0, description="Maximum seconds from the arrival of source files to their publication."
    )
    lineage_completeness: float = Field(
        0.999, gt=0, lt=1, description="Required share of allocated rank-seconds in runs with complete data lineage."
    )
    reproducibility_delta: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="Required share of the time of replayed runs that belongs to runs whose last replay agrees within "
        "the limit.",
    )
    reproducibility_bound: float = Field(
        0.01, ge=0, description="Maximum relative difference between the losses of a replayed and a recorded step."
    )
    time_to_fine_tune: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="Required share of the time of fine-tuning runs that is within the time limit of a run.",
    )
    fine_tune_s: float = Field(
        86400.0, gt=0, description="Maximum seconds from the submission of a fine-tuning run to its end."
    )

    def minimum_s(self, indicator: str) -> float:
        """Return the minimum number of seconds that an indicator must cover before it is evaluated."""
        return self.goodput_after_s if indicator == "goodput" else 0.0

    def target(self, indicator: str) -> float:
        """Return the required good share of an indicator."""
        found: float = getattr(self, indicator.replace(" ", "_").replace("-", "_"))
        return found


#: Consecutive pieces below this length in microseconds are merged into one tally.
GRAIN_US = 10_000_000


class Tally(NamedTuple):
    """Good and total microseconds of an indicator, multiplied by its unit (ranks, devices, suites).

    Args:
        subject: the run, asset or bucket.
        begin, end: Unix seconds.
        measured, weight: terms of the indicator's measure, sum(measured) / sum(weight). If there are no weights, the
            measure is the largest `measured`.
    """

    indicator: str
    subject: str
    begin: float
    end: float
    good_us: int
    total_us: int
    measured: float | None = None
    weight: float | None = None


class TallyPart(NamedTuple):
    """Part of an attempt, with its total and good wall-clock time in microseconds."""

    begin_us: int
    us: int
    good_us: int
    measured: float = 0.0
    weight: float | None = None


class ErrorBudget(Frozen):
    """Error budget of one indicator over a window.

    Attributes:
        unit: unit of the seconds, such as `rank-s`.
        good_s, total_s: seconds that are good, and all seconds.
        target: required good share.
        measure: underlying measure, in `measured_in`; None if the indicator has no measure.
        covered_s: wall-clock seconds that the tallies cover, summed over attempts.
        minimum_s: minimum covered seconds for an evaluation.
    """

    indicator: str
    unit: str
    target: float
    good_s: float
    total_s: float
    measure: float | None = None
    measured_in: str = ""
    covered_s: float = 0.0
    minimum_s: float = 0.0

    @property
    def value(self) -> float | None:
        """Good share, or None if there is no data."""
        return self.good_s / self.total_s if self.total_s else None

    @property
    def spent(self) -> float | None:
        """Bad seconds divided by the bad seconds that the objective allows, or None if there is no data.

        At 1 or more, the budget is exhausted.
        """
        return (self.total_s - self.good_s) / ((1 - self.target) * self.total_s) if self.total_s else None

    @property
    def is_judged(self) -> bool:
        """True if there is enough data for an evaluation."""
        return bool(self.total_s) and self.covered_s >= self.minimum_s

    @property
    def is_spent(self) -> bool:
        """True if the budget is exhausted or not a number; False if there is too little data."""
        return self.is_judged and not self.good_s > self.target * self.total_s

    @property
    def words(self) -> str:
        """Indicator with value, objective and spent share of the error budget."""
        if self.value is None or self.spent is None:
            return f"{self.indicator}: no data"
        seconds = f"{self.value:.2%} of {self.total_s:,.0f} {self.unit.removesuffix('-s')}-seconds"
        spent = f"{self.spent:.0%} of the error budget spent" if self.is_judged else self.state
        return f"{self.indicator} {seconds}, target {self.target:.2%} ({spent})"

    @property
    def state(self) -> str:
        """Spent share of the error budget, or the reason why it is not evaluated."""
        if self.total_s and not self.is_judged:
            return f"too little data: {self.covered_s:,.0f} s, minimum {self.minimum_s:,.0f} s"
        return "no data" if self.spent is None else f"{self.spent:.0%} spent"


def joined(indicator: str, subject: str, ranks: int, pieces: Iterable[TallyPart]) -> Iterator[Tally]:
    """Yield tallies of consecutive parts of an attempt. Short parts are merged."""
    held: list[TallyPart] = []
    us = 0
    for piece in pieces:
        if us > 0 and us + piece.us > GRAIN_US and piece.us >= 0:
            yield _of(indicator, subject, ranks, held, us)
            held, us = [], 0
        held.append(piece)
        us += piece.us
    if held:
        yield _of(indicator, subject, ranks, held, us)


def _of(indicator: str, subject: str, ranks: int, held: Sequence[TallyPart], us: int) -> Tally:
    begin, good = held[0].begin_us, sum(one.good_us for one in held)
    made = Tally(indicator, subject, begin / 1e6, (begin + us) / 1e6, good * ranks, us * ranks)
    if held[0].weight is None:
        return made
    return made._replace(measured=sum(one.measured for one in held), weight=sum(one.weight or 0.0 for one in held))


def up_to(indicator: str, subject: str, begin: float, end: float, bound_s: float, times: int = 1) -> Iterator[Tally]:
    """Yield the tallies of an interval that is good up to a limit and bad after it.

    Args:
        times: factor for the tallied seconds, such as the number of ranks.
    """
    turn = min(end, begin + bound_s)
    yield whole(indicator, subject, begin, turn, True, times)
    if end > turn:
        yield whole(indicator, subject, turn, end, False, times)


def whole(indicator: str, subject: str, begin: float, end: float, good: bool, times: int = 1) -> Tally:
    """Return the tally of an interval that is entirely good or bad."""
    us = (round(end * 1e6) - round(begin * 1e6)) * times
    return Tally(indicator, subject, begin, end, us if good else 0, us)


def clipped(one: Tally, begin: float, end: float) -> Tally | None:
    """Return the part of a tally that is inside a window, or None if no part is inside."""
    if one.begin >= begin and one.end <= end:
        return one
    first, last = max(one.begin, begin), min(one.end, end)
    if last <= first:
        return None
    before, after = ((time - one.begin) / (one.end - one.begin) for time in (first, last))
    share = after - before
    return one._replace(
        begin=first,
        end=last,
        good_us=round(one.good_us * after) - round(one.good_us * before),  # so adjacent windows sum exactly
        total_us=round(one.total_us * after) - round(one.total_us * before),
        measured=one.measured if one.weight is None or one.measured is None else one.measured * share,
        weight=None if one.weight is None else one.weight * share,
    )


def value(tallies: Iterable[Tally], indicator: str, begin: float, end: float) -> float | None:
    """Return an indicator's good share between two times (Unix seconds), or None if there is no data."""
    found = [cut for one in tallies if one.indicator == indicator and (cut := clipped(one, begin, end))]
    total = sum(one.total_us for one in found)
    return sum(one.good_us for one in found) / total if total else None


def refuse_spent(found: Sequence[ErrorBudget]) -> None:
    """Check that there is enough data and that no error budget is exhausted.

    Raises:
        MissingError: no run has enough data or, if no indicator of runs is included, there is no data at all.
        CheckFailedError: an error budget is exhausted.
    """
    runs = [one for one in found if one.unit == "rank-s"] or found
    if not any(one.is_judged for one in runs):
        short = [one.words for one in runs if one.total_s]
        raise MissingError(
            f"no {'sufficiently long ' if short else ''}run in the window; error budgets cannot be evaluated",
            found="; ".join(short) or None,
            remedy="train, or increase window_days in objectives.yaml",
        )
    spent = [one for one in found if one.is_spent]
    if spent:
        raise CheckFailedError(
            f"error budget exhausted: {', '.join(one.indicator for one in spent)}",
            found="; ".join(f"{one.indicator} {one.value:.2%} of {one.total_s:,.0f} {one.unit}" for one in spent),
            expected="; ".join(f"{one.indicator} above {one.target:.2%}" for one in spent),
            remedy="find the causes with `plinth run goodput RUN`; fix them before a promotion (docs/slis.md)",
        )


Event = Mapping[str, Any]


@dataclass(frozen=True)
class RunFacts:
    """Facts of one run, the input of the indicators of runs.

    Args:
        run: name of the run.
        events: events of the run's timeline, in order, up to `until`.
        ranks: default number of ranks for jobs that did not report their number.
        until: Unix seconds.
        silence_s: seconds without an event after which a job counts as killed.
        price: price per rank-hour; 0 if unknown.
        samples: samples of the run's devices, in order, up to `until`.
        fine_tunes: True if the run started from existing weights.
        complete: True if the run's data lineage is complete; None if not checked.
    """

    run: str
    events: Sequence[Event]
    ranks: int
    until: float
    silence_s: float = 7200.0
    price: float = 0.0
    samples: Sequence[Event] = ()
    fine_tunes: bool = False
    complete: bool | None = None

    @cached_property
    def _account(self) -> GoodputAccount:
        taken = GoodputAccount(self.ranks)
        for event in self.events:
            taken.add(event)
        return taken

    @cached_property
    def attempts(self) -> tuple[AttemptTime, ...]:
        """Attempts of the run, in order."""
        return self._account.ledger().attempts

    @cached_property
    def spans(self) -> list[list[TimeSpan]]:
        """Time spans of each attempt, in order, without queue time."""
        found: list[list[TimeSpan]] = [[] for _ in self.attempts]
        for span in self._account.spans():
            if span.cause != "queue":
                found[span.attempt].append(span)
        return found

    @cached_property
    def inside(self) -> list[list[Event]]:
        """Events of each attempt.

        The event that ends a job also starts the queue time of the next job. This event belongs to the earlier attempt.
        """
        begins = [one.begin for one in self.attempts]
        found: list[list[Event]] = [[] for _ in self.attempts]
        for event in self.events if begins else ():
            found[max(0, bisect_left(begins, float(event["time"])) - 1)].append(event)
        return found

    @property
    def silent(self) -> bool:
        """True if the timeline has had no event for so long that an active job counts as killed."""
        return bool(self.events) and self.until - float(self.events[-1]["time"]) > self.silence_s

    @cached_property
    def lost_jobs(self) -> set[int]:
        """Numbers of the jobs that failed, were lost or were killed.

        A job counts as killed if it has no end event before the next job, or no event for `silence_s` seconds.
        """
        kinds: dict[int, set[str]] = {}
        for one, its in zip(self.attempts, self.inside, strict=True):
            kinds.setdefault(one.job, set()).update(str(event["event"]) for event in its)
        last = 0 if self.silent else max(kinds, default=0)
        return {job for job, had in kinds.items() if had & {"failed", "lost"} or (job != last and not had & JOB_ENDS)}

    def held(self, number: int) -> tuple[float, float]:
        """Return start and end (Unix seconds) of the time for which an attempt held its ranks, without queue time."""
        one = self.attempts[number]
        return one.begin + one.rank_us.get("queue", 0) / one.ranks / 1e6, one.end

    @cached_property
    def tokens(self) -> dict[int, int]:
        """Number of tokens by step, over all ranks."""
        through = {int(event["step"]): int(event["tokens"]) for event in self.of("step") if "tokens" in event}
        return {step: n - through.get(step - 1, 0) for step, n in through.items() if step == 1 or step - 1 in through}

    def of(self, kind: str) -> Iterator[Event]:
        """Return an iterator over the run's events of one kind, in order."""
        return (event for event in self.events if event["event"] == kind)


def run_facts(
    run: str, events: Iterable[Event], ranks: int, until: float, silence_s: float = 7200.0, **more: Any
) -> RunFacts:
    """Return the facts of a run up to the time `until`. `more` contains other fields of `RunFacts`."""
    seen = [event for event in events if float(event["time"]) <= until]
    return RunFacts(run, seen, ranks, until, silence_s, **more)


@dataclass(frozen=True)
class AssetFacts:
    """Facts of a workspace's assets: checks, publications and arrivals.

    Args:
        events: events of the asset log, in order, up to `until`.
        until: Unix seconds.
    """

    events: Sequence[Event]
    until: float
