"""Costs of failures: steps trained for nothing, seconds spent on them, seconds until training resumed.

Durations are read from the clock that only goes forward, when the supervisor sees an event; a wall clock that is
set back or forward changes none of them. For a job whose supervisor was killed there are no such
readings: the times of its events are used instead, and never count below zero.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from plinth.training.checkpoint import checkpoint
from plinth.training.directory import RunDirectory
from plinth.training.rank_failure import RankFailure
from plinth.training.telemetry.timeline import JOB_ENDS, Event, TimelineReader, timeline

#: Events before a job has a supervisor.
BEFORE_A_JOB = ("submitted",)


class Loss(NamedTuple):
    """Work after the last commit."""

    from_step: int
    steps: int
    seconds: float


class LostWork:
    """Follows a run's timeline and adds up lost steps and seconds."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.lost_steps, self.lost_s, self.restart_s = 0, 0.0, 0.0
        self._reader = TimelineReader(run.events)
        self._reader.poll()
        self._taken: dict[int, float] = {}  # step -> when the state was taken that was committed
        self._begun = self._failed = time.monotonic()
        self._failure: RankFailure | None = None
        self._restarting = False

    def begin(self) -> None:
        """A new attempt starts."""
        self.update()
        self._begun, self._failure = time.monotonic(), None

    def update(self) -> None:
        """Read new events of the timeline. Call often: an event counts as of the time it is read."""
        for event in self._reader.poll():
            self._record(event, time.monotonic())

    @property
    def failure(self) -> RankFailure | None:
        """The error that a rank of this attempt named, if it could still write it."""
        self.update()
        return self._failure

    def lose(self, *, audit: bool) -> Loss:
        """Add what this attempt has done since the last commit; an audit's work is only time."""
        self.update()
        now = time.monotonic()
        committed = max(checkpoint.committed(self.run), default=0)
        done = [] if audit else [step for step in timeline(self.run.events).steps if step > committed]
        seconds = round(now - max(self._begun, self._taken.get(committed, 0.0)), 3)
        self._failed, self._restarting = now, True
        return self._add(Loss(committed, len(done), seconds))

    def lose_vanished(self) -> Loss | None:
        """Add what a job lost whose supervisor was killed; nothing when the last one ended in order."""
        history = timeline(self.run.events)
        kinds = [event["event"] for event in history.events if event["event"] not in BEFORE_A_JOB]
        if not kinds or kinds[-1] in JOB_ENDS:
            return None
        committed = max(checkpoint.committed(self.run), default=0)
        done = [event for step, event in history.steps.items() if step > committed]
        if not done:
            return None
        earlier = [event for step, event in history.steps.items() if step <= committed]
        since = max([earlier[-1]["time"] if earlier else 0.0, *(e["time"] for e in history.of("run_started")[-1:])])
        return self._add(Loss(committed, len(done), round(max(0.0, done[-1]["time"] - since), 3)))

    def _add(self, loss: Loss) -> Loss:
        self.lost_steps += loss.steps
        self.lost_s = round(self.lost_s + loss.seconds, 3)
        return loss

    def _record(self, event: Event, now: float) -> None:
        kind = event["event"]
        if kind == "checkpoint":
            self._taken[int(event["step"])] = now - float(event["seconds"])
        elif kind == "rank_failed":
            self._failure = RankFailure.model_validate({name: event[name] for name in RankFailure.model_fields})
        elif kind == "step" and self._restarting:
            self.restart_s = round(self.restart_s + now - self._failed, 3)
            self._restarting = False
