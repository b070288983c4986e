"""The goodput ledger: every rank-second that the jobs of a run asked for or held, by its cause, from `events.jsonl`.

    submitted ── queue ──▶ job_started ── start ──▶ run_started ── restore ──▶ resumed ── start ──▶ steps ──▶ finished
                                ▲                                                                      │
                                └── idle (back-off), start ◀── redone work │ hang │ node loss ─────────┘

A step says itself what its time was (step_clock), and what lay between it and the step before; time that no step
accounts for belongs to what the next event says had been going on. An event may change what earlier time was: steps
after the checkpoint that a run goes on from are redone work, and those that a rollback takes back are the guard's. The
account after an event depends on no later one, so that a run that is followed and its file read years later give the
same. Time is whole microseconds of the events' clock, which never goes back: causes add up to the whole exactly.

Causes are those of ml-goodput-measurement, divided further. The leading rank's division of a step stands for all ranks:
ranks that wait for a slower one do so in the communication of a step, which is goodput here (see roofline).

Does not belong here: what a rank-second costs, which runs are looked at together.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from plinth.records import Frozen
from plinth.training.supervise.watch import NODE_SILENT
from plinth.training.telemetry.timeline import waited_s

Cause = Literal[
    "goodput",  # steps that count: host, forward, backward, exposed communication, optimizer
    "queue",  # submitted, or given back to the queue by the scheduler, until the supervisor is up
    "start",  # until the ranks take their first step, and from the last event until all have ended
    "compile",  # the first step of an attempt, as far as it takes longer than the median of those that follow
    "input",  # steps that wait for their batch
    "checkpoint stall",  # steps, and the end of a run, that wait for a checkpoint
    "restore",  # downloading, verifying and loading a checkpoint
    "redone work",  # steps after the checkpoint that the run went on from, and the step that a failure cut
    "evaluation",  # slices and probes
    "audit",  # the proof that a resume is exact
    "guard",  # steps that a rollback took back, with the rollback; steps whose update was not made
    "hang",  # from the last event before a hang until the ranks are ended
    "node loss",  # from the last event of a node that is lost until its silence is noticed
    "exchange",  # a federated site's round
    "profile",  # writing a trace
    "idle",  # the pause before a restart
    "other",  # between two steps, and accounted for by none
]  # fmt: skip
CAUSES: tuple[Cause, ...] = get_args(Cause)

#: Parts of a step that are not goodput, and what lies between two steps (step_clock).
_PARTS: dict[str, Cause] = {"data": "input", "checkpoint": "checkpoint stall"}
_BESIDES: dict[str, Cause] = {
    "save": "checkpoint stall",
    "evaluation": "evaluation",
    "loading": "guard",
    "profile": "profile",
    "exchange": "exchange",
}

#: Events that name the time before them, where no step that follows does.
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
}

#: Events with which a job ends in order.
JOB_ENDS = frozenset({"finished", "failed", "stopped"})

#: Events before which the job before is over, however it ended.
_BETWEEN_JOBS = frozenset({"submitted", "vanished"})

Event = Mapping[str, Any]


class AttemptTime(Frozen):
    """One start of a run's ranks; the first of a job has its queue, the last its end.

    Attributes:
        job: number of the job, from 1; attempt: of this start within the job, from 0.
        ranks: that it held, or waited for.
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
    """Time of an attempt that has one cause, for accounts of any window.

    Args:
        attempt: index in the ledger's `attempts`.
        begin_us: microseconds since the epoch of the events' clock.
        us: its length; below 0 where a step was longer by its own clock than between two events: the sum is exact.
        step: of which it is a part; None of time between steps.
    """

    attempt: int
    begin_us: int
    us: int
    cause: Cause
    step: int | None = None


class GoodputLedger(Frozen):
    """Where the rank-seconds of a run went, or of several."""

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
        """Rank-seconds, with those in a queue."""
        return sum(self.rank_us.values()) / 1e6

    @property
    def held_rank_s(self) -> float:
        """Rank-seconds that were held: without those in a queue."""
        return (sum(self.rank_us.values()) - self.rank_us["queue"]) / 1e6

    @property
    def held_s(self) -> float:
        """Seconds of the clock in which ranks were held."""
        return sum((sum(one.rank_us.values()) - one.rank_us.get("queue", 0)) / one.ranks for one in self.attempts) / 1e6

    @property
    def goodput(self) -> float:
        """Share of what was held that advanced the run."""
        held = self.held_rank_s
        return self.rank_us["goodput"] / 1e6 / held if held else 0.0

    def percentages(self, digits: int = 1) -> dict[Cause, float]:
        """Every cause that has a share, in percent of all rank-seconds; rounded so that they add up to 100 exactly."""
        found = {cause: us for cause, us in self.rank_us.items() if us}
        total, units = sum(found.values()), 100 * 10**digits
        if not total:
            return {}
        whole = {cause: us * units // total for cause, us in found.items()}
        by_rest = sorted(found, key=lambda cause: (-(found[cause] * units % total), CAUSES.index(cause)))
        for cause in by_rest[: units - sum(whole.values())]:
            whole[cause] += 1
        return {cause: number / 10**digits for cause, number in whole.items()}


def merged(ledgers: Iterable[GoodputLedger]) -> GoodputLedger:
    """Of several runs together."""
    many = list(ledgers)
    attempts = tuple(attempt for one in many for attempt in one.attempts)
    return GoodputLedger(attempts=attempts, lost_steps=sum(one.lost_steps for one in many))


@dataclass(slots=True)
class _Turn:
    """One time that a step was trained: microseconds by cause."""

    attempt: _Attempt
    step: int
    by_cause: Counter[Cause]
    lost: Cause | None = None


class _Named(NamedTuple):
    """Time in the order in which it was named, which is that in which it passed."""

    cause: Cause
    us: int
    turn: _Turn | None


@dataclass
class _Attempt:
    """Microseconds of one attempt.

    `named` is what has a cause; `since`, what an event after the last step or phase would name if none followed.
    """

    job: int
    number: int
    ranks: int
    begin: int
    now: int
    stage: Literal["queue", "start", "restore", "training", "ending"] = "queue"
    named: Counter[Cause] = field(default_factory=Counter)
    since: Counter[Cause] = field(default_factory=Counter)
    in_loop: int = 0  # not accounted for when the last step ended
    phase: tuple[int, int] = (0, 0)  # when the phase began, and what was named by then
    first: _Turn | None = None
    computing: array[int] = field(default_factory=lambda: array("q"))  # of all turns but the first, sorted
    ordered: bool = True
    order: list[_Named] = field(default_factory=list)
    hung: bool = False

    @property
    def open(self) -> int:
        """Time that nothing accounts for yet; below 0 where clocks differ."""
        return self.now - self.begin - self.named.total()

    def name(self, by_cause: Mapping[Cause, int], turn: _Turn | None = None) -> None:
        """The next time that has no cause yet has these."""
        for cause, us in by_cause.items():
            self.named[cause] += us
            if self.ordered:
                self.order.append(_Named(cause, us, turn))

    def settle(self, cause: Cause) -> None:
        """A phase is over: name all of its time, that since the last step by the events in it or by this cause."""
        self.name(self._divided(cause))
        self.since.clear()
        self.in_loop = 0

    def _divided(self, cause: Cause) -> Counter[Cause]:
        left, found = self.open, Counter[Cause]()
        if left < 0:  # steps are longer by their own clock than between two events: never by more than its resolution
            found["goodput"] = left
            return found
        loop = min(max(0, self.in_loop), left) if self.stage == "training" else 0
        found["other"] = loop
        for between, us in self.since.items():
            found[between] += min(us, left - found.total())
        found[cause] += left - found.total()
        return found

    def result(self) -> dict[Cause, int]:
        """Microseconds by cause as far as they are known now."""
        found = Counter(self.named)
        found.update(self._divided(_unnamed(self)))
        if self.first is not None and (longer := self._compiling()):
            found[self.first.lost or "goodput"] -= longer
            found["compile"] += longer
        return _without_debts(found)

    def _compiling(self) -> int:
        """What the first step takes longer than the median of those that follow."""
        if self.first is None or not self.computing:
            return 0
        median = self.computing[(len(self.computing) - 1) // 2]  # the lower of two
        return max(0, self.first.by_cause["goodput"] - median)

    def add_turn(self, turn: _Turn) -> None:
        """Add a turn; what is known after it takes no longer for all that came before."""
        if self.first is None:
            self.first = turn
        else:
            insort(self.computing, turn.by_cause["goodput"])
        self.name(turn.by_cause, turn)

    def spans(self, number: int) -> Iterator[TimeSpan]:
        """Its time in order; of a step that was lost, all parts have the cause of that."""
        left, at = self._compiling(), self.begin
        rest = (_Named(cause, us, None) for cause, us in self._divided(_unnamed(self)).items())
        for cause, us, turn in (*self.order, *rest):
            step = turn.step if turn else None
            if left and cause == "goodput" and turn is self.first:
                yield TimeSpan(number, at, min(left, us), "compile", step)
                at, us, left = at + min(left, us), us - min(left, us), 0
            if us:
                yield TimeSpan(number, at, us, turn.lost or cause if turn else cause, step)
            at += us


def _unnamed(attempt: _Attempt) -> Cause:
    """The cause of time after which nothing has happened yet."""
    by_stage: dict[str, Cause] = {"queue": "queue", "restore": "restore", "training": "other"}
    return by_stage.get(attempt.stage, "start")


def _without_debts(found: Counter[Cause]) -> dict[Cause, int]:
    """The same total without a cause below 0: the largest pays what a microsecond of rounding took from another."""
    debt = sum(us for us in found.values() if us < 0)
    positive = {cause: found[cause] for cause in CAUSES if found[cause] > 0}
    while debt:
        largest = max(positive, key=lambda cause: positive[cause])
        paid = min(-debt, positive[largest])
        positive[largest] -= paid
        debt += paid
    return {cause: us for cause, us in positive.items() if us}


class GoodputAccount:
    """Takes the events of a run one after the other; `ledger` is the account after any of them.

    Args:
        ranks: of a job that waits in a queue and has not said how many it holds.
        bounded: keep no order of the time (`spans`), and no step that lies before all checkpoints that are kept here:
            for who follows a run for months. A resume from an earlier one, which only a bucket has, loses no more of
            them.
    """

    def __init__(self, ranks: int = 1, *, bounded: bool = False) -> None:
        self._ranks, self._jobs, self._bounded = ranks, 0, bounded
        self._checkpoints: set[int] = set()
        self._attempts: list[_Attempt] = []
        self._steps: dict[int, _Turn] = {}  # that count
        self._lost_steps = 0
        self._now = 0
        self._job: _Attempt | None = None  # the attempt under way

    def add(self, event: Event) -> None:
        """Take the next event of the timeline."""
        kind = str(event["event"])
        if kind == "devices":  # samples of a node, which a page shows among the events
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
        """The account as it stands.

        Args:
            until: Unix seconds, where a job still waits in its queue: it has done so until then.
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
        """The same time in order, each piece with its cause: their sums are the ledger's, but for roundings."""
        for number, one in enumerate(self._attempts):
            yield from one.spans(number)

    def _begin(self, kind: str) -> None:
        """A job begins with this event; without a submission it comes from its scheduler's queue, or is the first."""
        again = kind in ("vanished", "job_started") and bool(self._attempts)
        since = self._attempts[-1].now if again else self._now
        self._jobs += 1
        self._open(0, since, "queue" if again or kind == "submitted" else "start")

    def _open(self, number: int, begin: int, stage: Literal["queue", "start"]) -> _Attempt:
        phase = begin, 0
        self._job = _Attempt(
            self._jobs, number, self._ranks, begin, self._now, stage, phase=phase, ordered=not self._bounded
        )
        self._attempts.append(self._job)
        return self._job

    def _between_jobs(self, kind: str) -> None:
        """Whatever job there was has ended, with its last event if with none of its own."""
        if self._job is not None and (self._job.stage != "queue" or kind == "submitted"):
            self._job.settle("redone work" if self._job.stage == "training" else _unnamed(self._job))
            self._job = None

    def _take(self, job: _Attempt, kind: str, event: Event) -> None:
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

    def _run_started(self, job: _Attempt, event: Event) -> None:
        """The ranks are up; a checkpoint was verified before, where one was chosen, and is loaded from now on."""
        job.ranks = self._ranks = int(event["ranks"])
        verified = min(round(float(event.get("verified_s", 0.0)) * 1e6), max(0, job.open))
        job.name({"restore": verified})
        job.settle("start")
        job.stage = "start"

    def _step(self, job: _Attempt, event: Event) -> None:
        step = int(event["step"])
        parts, besides = _named_time(event, job.since)
        if job.stage != "training":  # the phase before has ended where the first step began
            first = parts.total()
            room = max(0, job.open)
            begun = max(0, room - first)
            job.name({"start": begun})
            job.stage, job.phase = "training", (job.now - room + begun, job.named.total())
        room = job.now - job.phase[0] - (job.named.total() - job.phase[1])
        _shorten(besides, max(0, room - parts.total()))  # of what the phase before has named already
        job.name(besides)
        if (earlier := self._steps.pop(step, None)) is not None:
            self._lose(earlier, "redone work")
        turn = _Turn(job, step, parts)
        job.add_turn(turn)
        if event.get("vetoed"):
            self._lose(turn, "guard", counted=False)
        else:
            self._steps[step] = turn
        job.since.clear()
        job.in_loop = job.open

    def _failed(self, job: _Attempt, kind: str, event: Event) -> None:
        """The ranks of an attempt have ended badly."""
        node, phase = NODE_SILENT in str(event.get("reason", "")), event.get("phase", "train")
        causes: list[tuple[bool, Cause]] = [
            (job.hung, "hang"),
            (node, "node loss"),
            (phase == "audit", "audit"),
            (job.stage == "training", "redone work"),
        ]
        job.settle(next((cause for applies, cause in causes if applies), _unnamed(job)))
        job.stage = "ending"
        if phase != "audit" and "from_step" in event:
            self._lose_after(int(event["from_step"]), "redone work")
        if kind == "restart":
            following = self._open(int(event["attempt"]), self._now, "start")
            following.ranks = job.ranks
            following.since["idle"] = round(float(event.get("backoff_s", 0.0)) * 1e6)

    def _forget(self, kind: str, event: Event) -> None:
        """Steps up to the earliest checkpoint that is kept are taken back by nothing."""
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

    def _lose(self, turn: _Turn, cause: Cause, *, counted: bool = True) -> None:
        """All time of a step's turn has another cause from now on."""
        for before, us in turn.by_cause.items():
            turn.attempt.named[before] -= us
        turn.attempt.named[cause] += turn.by_cause.total()
        turn.lost = cause
        self._lost_steps += counted


def _named_time(event: Event, since: Mapping[Cause, int]) -> tuple[Counter[Cause], Counter[Cause]]:
    """Microseconds of a step by cause, and of what lay before it, which an earlier version left to the events."""
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
    """Cut to the time that there is."""
    over = named.total() - room
    for cause in sorted(named, key=lambda one: -named[one]):
        cut = min(max(0, over), named[cause])
        named[cause] -= cut
        over -= cut


def account(events: Iterable[Event], ranks: int = 1, until: float | None = None) -> GoodputLedger:
    """The ledger of a timeline, or of the beginning of one.

    Args:
        events: in order.
        ranks: of a job that never started.
        until: Unix seconds, of a job that still waits in its queue.
    """
    taken = GoodputAccount(ranks)
    for event in events:
        taken.add(event)
    return taken.ledger(until)
