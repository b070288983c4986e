"""Log of a job: its timeline as the supervisor writes it, the costs of its failures, and its result.

The costs are repeated steps, their seconds, and seconds until training resumed. Durations are read from the monotonic
clock when the supervisor sees an event, so changes of the wall clock do not matter. A job with a killed supervisor has
no such readings: the times of its events are used, and never count below zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from plinth.training.checkpoint import checkpoint
from plinth.training.directory import RunDirectory
from plinth.training.supervise.result import Ending, JobResult
from plinth.training.telemetry.timeline import JOB_ENDS, Event, RankFailure, Timeline, TimelineReader, timeline

#: Events before a job has a supervisor.
BEFORE_A_JOB = ("submitted",)


class Loss(NamedTuple):
    """Work since the last commit, which a failure loses."""

    from_step: int
    steps: int
    seconds: float


class JobLog:
    """Writer and reader of a run's timeline, which adds up lost steps and seconds."""

    def __init__(self, run: RunDirectory) -> None:
        self._run, self.events = run, Timeline(run.events)
        self.restarts = 0  # times that all ranks were started again
        self.attempt = 0  # number of the last attestation of this job
        self._continued = 0  # recoveries that are on the timeline: one may replace ranks several times
        self.loss = ""  # the last loss, in words
        self.failure: RankFailure | None = None  # that ends the job
        self.lost_steps, self.lost_s, self.restart_s = 0, 0.0, 0.0
        self._reader = TimelineReader(run.events)
        self._taken: dict[int, float] = {}  # step -> time of its committed state
        self._done: dict[int, float] = {}  # step since the last commit that is not lost -> time of its event
        self._begun = self._failed = time.monotonic()
        self._rank_failure: RankFailure | None = None
        self._restarting = False
        for event in self._reader.poll():  # of earlier jobs
            self._record(event, 0.0)
        self._rank_failure = None

    def begin(self) -> None:
        """Start to count for a new attempt."""
        self.update()
        self._begun, self._rank_failure = time.monotonic(), None

    def update(self) -> None:
        """Read new events of the timeline. Call this often, because an event's time is the moment at which it is read
        here."""
        for event in self._reader.poll():
            self._record(event, time.monotonic())

    @property
    def rank_failure(self) -> RankFailure | None:
        """Error that a rank of this attempt reported, or None if no rank could report one."""
        self.update()
        return self._rank_failure

    def highest(self) -> int:
        """Return the highest step on the timeline."""
        return max(timeline(self._run.events).steps, default=0)

    def lose(self, *, audit: bool, step: int | None = None) -> Loss:
        """Count this attempt's work since the last commit as lost, or since a later `step` whose state is in memory,
        and return it. An audit loses only time."""
        self.update()
        now = time.monotonic()
        committed = self._committed() if step is None else step
        done = [] if audit else [step for step in self._done if step > committed]
        since = self._taken.get(committed, self._done.get(committed, 0.0))
        seconds = round(now - max(self._begun, since), 3)
        self._keep(lambda step: audit or step <= committed)
        self._failed, self._restarting = now, True
        return self._add(Loss(committed, len(done), seconds))

    def lose_vanished(self, step: int | None = None) -> Loss | None:
        """Count the lost work of a job whose supervisor was killed, since the last commit or since a later `step` whose
        state is in memory. Return None if the last job ended normally, or if its work was lost before."""
        history = timeline(self._run.events)
        kinds = [event["event"] for event in history.events if event["event"] not in BEFORE_A_JOB]
        if not kinds or kinds[-1] in JOB_ENDS:
            return None
        committed = self._committed() if step is None else step
        done = [event for step, event in history.steps.items() if step > committed and step in self._done]
        if not done:
            return None
        earlier = [event for step, event in history.steps.items() if step <= committed]
        since = max([earlier[-1]["time"] if earlier else 0.0, *(e["time"] for e in history.of("run_started")[-1:])])
        return self._add(Loss(committed, len(done), round(max(0.0, done[-1]["time"] - since), 3)))

    def record_loss(self, event: str, reason: str, audit: bool, step: int | None = None, **more: float) -> None:
        """Log the cost of a failure on the timeline, as `lose` counts it."""
        lost = self.lose(audit=audit, step=step)
        self.events.append(
            event,
            reason=reason,
            phase="audit" if audit else "train",
            from_step=lost.from_step,
            lost_steps=lost.steps,
            lost_s=lost.seconds,
            **more,
            durable=True,
        )

    def restarted(self, reason: str, audit: bool, step: int | None, backoff_s: float) -> None:
        """Log that all ranks restart after `backoff_s`, from a `step` whose state is in memory or from the last
        commit."""
        self.loss = reason
        self.record_loss("restart", reason, audit, step, attempt=self.attempt + 1, backoff_s=backoff_s)

    def recovered(self, reason: str, step: int) -> None:
        """Log a recovery. The attempt goes on after `step`."""
        self._continued += 1
        self.restarted(reason, False, step, 0.0)
        self.begin()

    def result(self, status: Ending, reason: str) -> JobResult:
        """Return the result of the job."""
        return JobResult(
            status=status,
            step=self._committed(),
            restarts=self.restarts + self._continued,
            lost_steps=self.lost_steps,
            lost_s=self.lost_s,
            restart_s=self.restart_s,
            reason=reason,
            failure=self.failure if status == "failed" else None,
        )

    def _committed(self) -> int:
        return max(checkpoint.committed(self._run), default=0)

    def _add(self, loss: Loss) -> Loss:
        self.lost_steps += loss.steps
        self.lost_s = round(self.lost_s + loss.seconds, 3)
        return loss

    def _keep(self, wanted: Callable[[int], bool]) -> None:
        self._done = {step: at for step, at in self._done.items() if wanted(step)}

    def _record(self, event: Event, now: float) -> None:
        kind = event["event"]
        if kind == "step":
            self._done[int(event["step"])] = now
        elif kind == "checkpoint":
            self._taken[int(event["step"])] = now - float(event["seconds"])
            self._keep(lambda step: step >= int(event["step"]))
        elif kind == "rolled_back":
            self._keep(lambda step: step <= int(event["step"]))
        elif kind in ("restart", "lost", "vanished") and event.get("phase") != "audit":
            self._keep(lambda step: step <= int(event.get("from_step", step)))
        elif kind == "rank_failed":
            self._rank_failure = RankFailure.model_validate({name: event[name] for name in RankFailure.model_fields})
        if kind == "step" and self._restarting:
            self.restart_s = round(self.restart_s + now - self._failed, 3)
            self._restarting = False
