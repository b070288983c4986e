"""Rules of the goodput ledger, which assign a cause to every microsecond of a run, event by event.

Does not belong here: the records of time by cause (`goodput`).
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from plinth.training.telemetry.goodput import CAUSES, AttemptTime, Cause, GoodputLedger, TimeSpan
from plinth.training.telemetry.timeline import JOB_ENDS, NODE_SILENT, waited_s

#: Cause of parts of a step that are not goodput, and of the time between two steps (step_clock).
_PARTS: dict[str, Cause] = {"data": "input", "checkpoint": "checkpoint stall"}
_BESIDES: dict[str, Cause] = {
    "save": "checkpoint stall",
    "evaluation": "evaluation",
    "loading": "guard",
    "profile": "profile",
    "exchange": "exchange",
    "replay": "audit",
}

#: Events that name the cause of the time before them, unless a later step does.
_NAMED_BY: dict[str, Cause] = {
    "evaluated": "evaluation",
    "checkpoint": "checkpoint stall",
    "retired": "checkpoint stall",
    "uploaded": "checkpoint stall",
    "upload_failed": "checkpoint stall",
    "save_failed": "checkpoint stall",
    "averaged": "exchange",
    "profiled": "profile",
    "audited": "audit",
    "upgraded": "audit",
    "upgrade_refused": "audit",
    "replayed": "audit",
    "replay_checked": "audit",
}

#: Events that end the previous job in any case.
_BETWEEN_JOBS = frozenset({"submitted", "vanished"})

Event = Mapping[str, Any]


class GoodputAccount:
    """Account of a run's time by cause. It takes the events in order; `ledger` returns the account after any event.

    Args:
        ranks: number of ranks of a queued job that has not reported its ranks yet.
        bounded: True to limit memory in processes that follow a run for months. The account then keeps neither the
            time spans (`spans`) nor steps before the earliest kept checkpoint. A resume from an earlier checkpoint in a
            bucket no longer reassigns the time of these steps.
    """

    def __init__(self, ranks: int = 1, *, bounded: bool = False) -> None:
        self._ranks, self._jobs, self._bounded = ranks, 0, bounded
        self._checkpoints: set[int] = set()
        self._attempts: list[TimedAttempt] = []
        self._steps: dict[int, StepTurn] = {}  # current steps
        self._lost_steps = 0
        self._now = 0
        self._job: TimedAttempt | None = None  # the current attempt

    def add(self, event: Event) -> None:
        """Add the next event of the timeline."""
        kind = str(event["event"])
        if kind == "devices":  # samples of a node, merged into the events by pages
            return
        self._now = max(self._now, round(float(event["time"]) * 1e6))
        if kind in _BETWEEN_JOBS or (kind == "job_started" and self._job and self._job.stage != "queue"):
            self._between_jobs(kind)
        if self._job is None and kind not in JOB_ENDS:
            self._begin(kind)
        if self._job is not None:
            self._take(self._job, kind, event)
        if self._bounded and kind in ("checkpoint", "retired"):
            self._forget(kind, event)

    def ledger(self, until: float | None = None) -> GoodputLedger:
        """Return the ledger after all events so far.

        Args:
            until: Unix seconds at which the queue time ends, if a job is still queued.
        """
        waiting = self._job
        if until is not None and waiting is not None and waiting.stage == "queue":
            waiting.now = max(waiting.now, round(until * 1e6))
        made = tuple(
            AttemptTime(
                job=one.job,
                attempt=one.number,
                ranks=one.ranks,
                begin=one.begin / 1e6,
                end=one.now / 1e6,
                rank_us={cause: us * one.ranks for cause, us in one.result().items()},
            )
            for one in self._attempts
        )
        return GoodputLedger(attempts=made, lost_steps=self._lost_steps)

    def spans(self) -> Iterator[TimeSpan]:
        """Yield all time in order, as spans with one cause each. Their sums equal the ledger, except for rounding."""
        for number, one in enumerate(self._attempts):
            yield from one.spans(number)

    def _begin(self, kind: str) -> None:
        """Start a job with this event. A job without a submission event was requeued by its scheduler, or is the first
        job."""
        again = kind in ("vanished", "job_started") and bool(self._attempts)
        since = self._attempts[-1].now if again else self._now
        self._jobs += 1
        following = self._attempts[-1].number + 1 if self._attempts else 1  # until the ranks log it
        self._open(following, since, "queue" if again or kind == "submitted" else "start")

    def _open(self, number: int, begin: int, stage: Literal["queue", "start"]) -> TimedAttempt:
        phase = begin, 0
        self._job = TimedAttempt(
            self._jobs, number, self._ranks, begin, self._now, stage, phase=phase, ordered=not self._bounded
        )
        self._attempts.append(self._job)
        return self._job

    def _between_jobs(self, kind: str) -> None:
        """Close the previous job, if there is one. A job without a final event ends with its last event."""
        if self._job is not None and (self._job.stage != "queue" or kind == "submitted"):
            self._job.settle("redone work" if self._job.stage == "training" else self._job.unnamed)
            self._job = None

    def _take(self, job: TimedAttempt, kind: str, event: Event) -> None:
        passed, job.now = self._now - job.now, self._now
        if kind == "job_started":
            job.settle("queue")
            job.stage, job.ranks = "start", int(event["ranks"])
            self._ranks = job.ranks
        elif kind == "downloaded":
            job.settle("restore")
        elif kind == "run_started":
            self._run_started(job, event)
        elif kind == "resumed":
            job.settle("restore")
            job.stage = "start"
            self._lose_after(int(event["step"]), "redone work")
        elif kind == "step":
            self._step(job, event)
        elif kind == "rolled_back":
            self._lose_after(int(event["step"]), "guard")
            job.since.clear()
            job.settle("guard")
            job.phase = (job.now, job.named.total())
        elif kind == "hang":
            job.since.clear()
            job.settle("hang")
            job.hung = True
        elif kind in ("restart", "lost"):
            self._failed(job, kind, event)
        elif kind in JOB_ENDS:
            job.settle("start")
            self._job = None
        elif kind in _NAMED_BY and job.stage == "training":
            stated = round(float(event.get("seconds", 0.0)) * 1e6) if kind == "evaluated" else passed
            job.since[_NAMED_BY[kind]] += min(stated, max(0, job.open - job.since.total()))
        if kind == "vanished":
            self._lose_after(int(event["from_step"]), "redone work")

    def _run_started(self, job: TimedAttempt, event: Event) -> None:
        """Record that the ranks have started. If a checkpoint was chosen, it has been verified and will be loaded
        next."""
        job.ranks, job.number = int(event["ranks"]), int(event.get("attempt", job.number))
        self._ranks = job.ranks
        verified = min(round(float(event.get("verified_s", 0.0)) * 1e6), max(0, job.open))
        job.name({"restore": verified})
        job.settle("start")
        job.stage = "start"

    def _step(self, job: TimedAttempt, event: Event) -> None:
        step = int(event["step"])
        parts, besides = _named_time(event, job.since)
        if job.stage != "training":  # the previous phase ended at the start of the first step
            first = parts.total()
            room = max(0, job.open)
            begun = max(0, room - first)
            job.name({"start": begun})
            job.stage, job.phase = "training", (job.now - room + begun, job.named.total())
        room = job.now - job.phase[0] - (job.named.total() - job.phase[1])
        _shorten(besides, max(0, room - parts.total()))  # without the time named by the previous phase
        job.name(besides)
        if (earlier := self._steps.pop(step, None)) is not None:
            self._lose(earlier, "redone work")
        turn = StepTurn(job, step, parts)
        job.add_turn(turn)
        if event.get("vetoed"):
            self._lose(turn, "guard", counted=False)
        else:
            self._steps[step] = turn
        job.since.clear()
        job.in_loop = job.open

    def _failed(self, job: TimedAttempt, kind: str, event: Event) -> None:
        """Record that the ranks of an attempt have failed."""
        node, phase = NODE_SILENT in str(event.get("reason", "")), event.get("phase", "train")
        causes: list[tuple[bool, Cause]] = [
            (job.hung, "hang"),
            (node, "node loss"),
            (phase == "audit", "audit"),
            (job.stage == "training", "redone work"),
        ]
        job.settle(next((cause for applies, cause in causes if applies), job.unnamed))
        job.stage = "ending"
        if phase != "audit" and "from_step" in event:
            self._lose_after(int(event["from_step"]), "redone work")
        if kind == "restart":
            following = self._open(int(event["attempt"]), self._now, "start")
            following.ranks = job.ranks
            following.since["idle"] = round(float(event.get("backoff_s", 0.0)) * 1e6)

    def _forget(self, kind: str, event: Event) -> None:
        """Forget the steps up to the earliest kept checkpoint, because no rollback or resume can discard them."""
        if kind == "checkpoint":
            self._checkpoints.add(int(event["step"]))
            return
        self._checkpoints -= set(map(int, event["steps"]))
        earliest = min(self._checkpoints, default=0)
        for step in [number for number in self._steps if number <= earliest]:
            del self._steps[step]

    def _lose_after(self, step: int, cause: Cause) -> None:
        for later in [number for number in self._steps if number > step]:
            self._lose(self._steps.pop(later), cause)

    def _lose(self, turn: StepTurn, cause: Cause, *, counted: bool = True) -> None:
        """Assign all time of one training of a step to another cause, because its result is lost."""
        for before, us in turn.by_cause.items():
            turn.attempt.named[before] -= us
        turn.attempt.named[cause] += turn.by_cause.total()
        turn.lost = cause
        self._lost_steps += counted


def _named_time(event: Event, since: Mapping[Cause, int]) -> tuple[Counter[Cause], Counter[Cause]]:
    """Return the microseconds of a step by cause, and the microseconds before the step by cause.

    Step events of earlier versions lack the time before the step, so other events provide it (`since`).
    """
    parts, besides = Counter[Cause](), Counter[Cause]()
    if "parts" not in event:
        waited = round(waited_s(event) * 1e6)
        parts["input"], parts["goodput"] = waited, max(0, round(float(event["step_s"]) * 1e6) - waited)
        besides.update(since)
        return parts, besides
    for part, seconds in event["parts"].items():
        parts[_PARTS.get(part, "goodput")] += round(seconds * 1e6)
    for name, seconds in event.get("besides", {}).items():
        besides[_BESIDES.get(name, "other")] += round(seconds * 1e6)
    return parts, besides


def _shorten(named: Counter[Cause], room: int) -> None:
    """Reduce the time of the largest causes until all causes fit into the available time."""
    over = named.total() - room
    for cause in sorted(named, key=lambda one: -named[one]):
        cut = min(max(0, over), named[cause])
        named[cause] -= cut
        over -= cut


def account(events: Iterable[Event], ranks: int = 1, until: float | None = None) -> GoodputLedger:
    """Return the ledger of a timeline, or of its first events.

    Args:
        events: events in order.
        ranks: number of ranks of a job that never started.
        until: Unix seconds at which the queue time ends, if a job is still queued.
    """
    taken = GoodputAccount(ranks)
    for event in events:
        taken.add(event)
    return taken.ledger(until)


@dataclass
class TimedAttempt:
    """Microseconds of one attempt by cause.

    `named` is time with an assigned cause. `since` is the time by cause of the events since the last step or phase; it
    is used if no step follows.
    """

    job: int
    number: int
    ranks: int
    begin: int
    now: int
    stage: Literal["queue", "start", "restore", "training", "ending"] = "queue"
    named: Counter[Cause] = field(default_factory=Counter)
    since: Counter[Cause] = field(default_factory=Counter)
    in_loop: int = 0  # unassigned at the end of the last step
    phase: tuple[int, int] = (0, 0)  # start of the phase, and the time named until then
    first: StepTurn | None = None
    computing: array[int] = field(default_factory=lambda: array("q"))  # all turns but the first, sorted
    ordered: bool = True
    order: list[_Named] = field(default_factory=list)
    hung: bool = False

    @property
    def open(self) -> int:
        """Time without an assigned cause; below 0 if clocks differ."""
        return self.now - self.begin - self.named.total()

    @property
    def unnamed(self) -> Cause:
        """Cause of the time since the last event, as long as no later event is known."""
        by_stage: dict[str, Cause] = {"queue": "queue", "restore": "restore", "training": "other"}
        return by_stage.get(self.stage, "start")

    def name(self, by_cause: Mapping[Cause, int], turn: StepTurn | None = None) -> None:
        """Assign causes to the time that directly follows the time with causes."""
        for cause, us in by_cause.items():
            self.named[cause] += us
            if self.ordered:
                self.order.append(_Named(cause, us, turn))

    def settle(self, cause: Cause) -> None:
        """End a phase. Time since the last step gets the causes of its events; the other time of the phase gets
        `cause`."""
        self.name(self._divided(cause))
        self.since.clear()
        self.in_loop = 0

    def _divided(self, cause: Cause) -> Counter[Cause]:
        left, found = self.open, Counter[Cause]()
        if left < 0:  # steps may exceed the time between two events by its resolution
            found["goodput"] = left
            return found
        loop = min(max(0, self.in_loop), left) if self.stage == "training" else 0
        found["other"] = loop
        for between, us in self.since.items():
            found[between] += min(us, left - found.total())
        found[cause] += left - found.total()
        return found

    def result(self) -> dict[Cause, int]:
        """Return the microseconds by cause, as known so far."""
        found = Counter(self.named)
        found.update(self._divided(self.unnamed))
        if self.first is not None and (longer := self._compiling()):
            found[self.first.lost or "goodput"] -= longer
            found["compile"] += longer
        return _without_debts(found)

    def _compiling(self) -> int:
        """Return the microseconds by which the first step took longer than the median of later steps."""
        if self.first is None or not self.computing:
            return 0
        median = self.computing[(len(self.computing) - 1) // 2]  # the lower of the two middle values
        return max(0, self.first.by_cause["goodput"] - median)

    def add_turn(self, turn: StepTurn) -> None:
        """Add the time of one training of a step."""
        if self.first is None:
            self.first = turn
        else:
            insort(self.computing, turn.by_cause["goodput"])
        self.name(turn.by_cause, turn)

    def spans(self, number: int) -> Iterator[TimeSpan]:
        """Yield the time of the attempt in order. All parts of a lost step have the cause of the loss."""
        left, at = self._compiling(), self.begin
        rest = (_Named(cause, us, None) for cause, us in self._divided(self.unnamed).items())
        for cause, us, turn in (*self.order, *rest):
            step = turn.step if turn else None
            if left and cause == "goodput" and turn is self.first:
                yield TimeSpan(number, at, min(left, us), "compile", step)
                at, us, left = at + min(left, us), us - min(left, us), 0
            if us:
                yield TimeSpan(number, at, us, turn.lost or cause if turn else cause, step)
            at += us


# One start of a run's ranks during the account: time with a cause, in order, and time without one yet.


@dataclass(slots=True)
class StepTurn:
    """Microseconds of one training of a step, by cause. A step that is redone is trained several times."""

    attempt: TimedAttempt
    step: int
    by_cause: Counter[Cause]
    lost: Cause | None = None


class _Named(NamedTuple):
    """Time with an assigned cause, and the training of a step to which it belongs, if any."""

    cause: Cause
    us: int
    turn: StepTurn | None


def _without_debts(found: Counter[Cause]) -> dict[Cause, int]:
    """Return the times by cause without negative times. These are subtracted from the largest cause, so the total
    stays."""
    debt = sum(us for us in found.values() if us < 0)
    positive = {cause: found[cause] for cause in CAUSES if found[cause] > 0}
    while debt:
        largest = max(positive, key=lambda cause: positive[cause])
        paid = min(-debt, positive[largest])
        positive[largest] -= paid
        debt += paid
    return {cause: us for cause, us in positive.items() if us}
