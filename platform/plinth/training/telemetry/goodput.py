"""Goodput ledger: every rank-second that the jobs of a run queued for or used, by cause, from `events.jsonl`.

This module has the records: causes, time by attempt and cause, sums. `goodput_account` has the rules that assign a
cause to the time before each event.

    submitted ── queue ──▶ job_started ── start ──▶ run_started ── restore ──▶ resumed ── start ──▶ steps ──▶ finished
                                ▲                                                                      │
                                └── idle (back-off), start ◀── redone work │ hang │ node loss ─────────┘

A step event lists the parts of its time (step_clock), and the parts of the time since the previous step. Other time
gets its cause from the next event. Later events may reassign earlier time: steps after the checkpoint from which a run
resumes are redone work, and steps that a rollback discards have the cause `guard`. The account after an event does not
depend on later events, so following a run and reading its file later give the same result. Time is in whole
microseconds of the events' clock, which never goes back, so the causes add up exactly to the total.

The causes are subdivisions of the causes in ml-goodput-measurement. The leading rank's parts of a step apply to all
ranks. Waits for a slower rank are in the communication part of a step, which counts as goodput here (see step_clock).

Does not belong here: cost of a rank-second, aggregation of runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from plinth.records import Frozen

Cause = Literal[
    "goodput",  # steps that count: host, forward, backward, exposed communication, optimizer
    "queue",  # submitted, or requeued by the scheduler, until the supervisor is up
    "start",  # until the ranks take their first step, and from the last event until all have ended
    "compile",  # the first step of an attempt, the excess over the median of later steps
    "input",  # steps that wait for their batch
    "checkpoint stall",  # steps, and the end of a run, that wait for a checkpoint
    "restore",  # downloading, verifying and loading a checkpoint
    "redone work",  # steps after the checkpoint of the resume, and the interrupted step
    "evaluation",  # slices and probes
    "audit",  # the proof that a resume is exact; replays of sampled steps
    "guard",  # steps discarded by a rollback, and the rollback; steps with a skipped update
    "hang",  # from the last event before a hang until the ranks are ended
    "node loss",  # from the last event of a lost node until its loss is detected
    "exchange",  # a federated site's round
    "profile",  # writing a trace
    "idle",  # the pause before a restart
    "other",  # between two steps, without a cause
]  # fmt: skip
CAUSES: tuple[Cause, ...] = get_args(Cause)


class AttemptTime(Frozen):
    """One start of a run's ranks. A job's first start includes its queue time, and its last start includes its end.

    Attributes:
        job: number of the job, from 1; attempt: number of its attestation in `attempts/`.
        ranks: number of ranks that the attempt used or waited for.
        begin, end: Unix seconds.
        rank_us: rank-microseconds by cause; they add up to `ranks × (end - begin)`.
    """

    job: int
    attempt: int
    ranks: int
    begin: float
    end: float
    rank_us: Mapping[Cause, int]


class TimeSpan(NamedTuple):
    """Time span of an attempt with a single cause. With time spans, any time window can be accounted.

    Args:
        attempt: index in the ledger's `attempts`.
        begin_us: microseconds since the epoch of the events' clock.
        us: length in microseconds. It is below 0 if a step took longer by its own clock than the time between two
            events, so that the sum is exact.
        step: step that contains the span; None between steps.
    """

    attempt: int
    begin_us: int
    us: int
    cause: Cause
    step: int | None = None


class GoodputLedger(Frozen):
    """Rank-seconds of one or several runs, by attempt and cause."""

    attempts: tuple[AttemptTime, ...] = ()
    lost_steps: int = 0

    @property
    def rank_us(self) -> dict[Cause, int]:
        """Rank-microseconds of every cause, in the order of `CAUSES`."""
        return {cause: sum(one.rank_us.get(cause, 0) for one in self.attempts) for cause in CAUSES}

    @property
    def rank_s(self) -> dict[Cause, float]:
        """Rank-seconds of every cause."""
        return {cause: us / 1e6 for cause, us in self.rank_us.items()}

    @property
    def total_rank_s(self) -> float:
        """Rank-seconds in total, including queue time."""
        return sum(self.rank_us.values()) / 1e6

    @property
    def held_rank_s(self) -> float:
        """Rank-seconds that the jobs used, without queue time."""
        return (sum(self.rank_us.values()) - self.rank_us["queue"]) / 1e6

    @property
    def held_s(self) -> float:
        """Wall-clock seconds in which the jobs had ranks."""
        return sum((sum(one.rank_us.values()) - one.rank_us.get("queue", 0)) / one.ranks for one in self.attempts) / 1e6

    @property
    def goodput(self) -> float:
        """Fraction of the used rank-seconds that advanced the run."""
        held = self.held_rank_s
        return self.rank_us["goodput"] / 1e6 / held if held else 0.0

    def percentages(self, digits: int = 1) -> dict[Cause, float]:
        """Return the percentage of each cause relative to all rank-seconds. Causes without time are left out. The
        percentages are rounded so that they sum to 100."""
        found = {cause: us for cause, us in self.rank_us.items() if us}
        total, units = sum(found.values()), 100 * 10**digits
        if not total:
            return {}
        whole = {cause: us * units // total for cause, us in found.items()}
        by_rest = sorted(found, key=lambda cause: (-(found[cause] * units % total), CAUSES.index(cause)))
        for cause in by_rest[: units - sum(whole.values())]:
            whole[cause] += 1
        return {cause: number / 10**digits for cause, number in whole.items()}
