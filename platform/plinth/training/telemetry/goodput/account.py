"""Gives every microsecond of a run its cause: takes its events one after the other.

Does not belong here: time by cause within one attempt (`attempt`), sums (`ledger`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from plinth.training.rank_failure import NODE_SILENT
from plinth.training.telemetry.goodput.attempt import StepTurn, TimedAttempt
from plinth.training.telemetry.goodput.ledger import AttemptTime, Cause, GoodputLedger, TimeSpan
from plinth.training.telemetry.timeline import JOB_ENDS, waited_s

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

#: Events before which the job before is over, however it ended.
_BETWEEN_JOBS = frozenset({"submitted", "vanished"})

Event = Mapping[str, Any]


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
        self._attempts: list[TimedAttempt] = []
        self._steps: dict[int, StepTurn] = {}  # that count
        self._lost_steps = 0
        self._now = 0
        self._job: TimedAttempt | None = None  # the attempt under way

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

    def _open(self, number: int, begin: int, stage: Literal["queue", "start"]) -> TimedAttempt:
        phase = begin, 0
        self._job = TimedAttempt(
            self._jobs, number, self._ranks, begin, self._now, stage, phase=phase, ordered=not self._bounded
        )
        self._attempts.append(self._job)
        return self._job

    def _between_jobs(self, kind: str) -> None:
        """Whatever job there was has ended, with its last event if with none of its own."""
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
        """The ranks are up; a checkpoint was verified before, where one was chosen, and is loaded from now on."""
        job.ranks = self._ranks = int(event["ranks"])
        verified = min(round(float(event.get("verified_s", 0.0)) * 1e6), max(0, job.open))
        job.name({"restore": verified})
        job.settle("start")
        job.stage = "start"

    def _step(self, job: TimedAttempt, event: Event) -> None:
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
        turn = StepTurn(job, step, parts)
        job.add_turn(turn)
        if event.get("vetoed"):
            self._lose(turn, "guard", counted=False)
        else:
            self._steps[step] = turn
        job.since.clear()
        job.in_loop = job.open

    def _failed(self, job: TimedAttempt, kind: str, event: Event) -> None:
        """The ranks of an attempt have ended badly."""
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

    def _lose(self, turn: StepTurn, cause: Cause, *, counted: bool = True) -> None:
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
