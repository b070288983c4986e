"""The signals that the stopping rules judge, gathered from the timeline.

Everything comes from `events.jsonl`, so a resumed run is judged by what the whole run has seen; steps that a resume
repeated cost again but are fitted once. Seconds are those of steps, of looks at held-out text and of what the steps
waited for a save, over all attempts; start-up is not counted. Slices (bits per byte, from `validation`) and probes
come with `evaluated` events: `{"event": "evaluated", "tokens": 1000, "slices": {"web": 3.1}, "probes": {…}}`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

from plinth.training.telemetry.timeline import Event, saved_s
from plinth.training.validation.probe_curves import ProbeCurves, ProbeLook


class Point(NamedTuple):
    """A number at a place of the run."""

    tokens: int
    value: float


@dataclass
class Signals:
    """The numbers that the rules judge. `tokens` is the place in the run, `spent_tokens` counts repeated steps too;
    `epochs` are times that each bucket was read on the way there, of which the timeline says nothing."""

    tokens: int = 0
    spent_tokens: int = 0
    seconds: float = 0.0
    rank_seconds: float = 0.0
    losses: list[Point] = field(default_factory=list)
    slices: dict[str, list[Point]] = field(default_factory=dict)
    probes: dict[str, list[ProbeLook]] = field(default_factory=dict)
    epochs: dict[str, float] = field(default_factory=dict)


class Gatherer:
    """Signals from events, in the order they were written."""

    def __init__(self, window_tokens: int = 0) -> None:
        self.signals = Signals()
        self._window, self._ranks = window_tokens, 1
        self._ends: list[int] = []  # tokens through each step on the timeline
        self._probes = ProbeCurves()

    def add(self, event: Event) -> None:
        """Add one event; those without a signal are passed over."""
        kind = event["event"]
        if kind == "run_started":
            self._ranks = int(event["ranks"])
        elif kind == "checkpoint":
            waited = float(event["stall_s"]) + float(event["wait_s"]) if "stall_s" in event else float(event["seconds"])
            self._spend(waited)  # an asynchronous save costs no waiting
        elif kind == "step":
            self._step(event)
        elif kind == "evaluated":
            self._evaluated(event)

    def _step(self, event: Event) -> None:
        signals, tokens = self.signals, int(event["tokens"])
        self._spend(float(event["step_s"]) - saved_s(event))
        if self._ends and tokens <= self._ends[-1]:  # steps trained again: their earlier values do not count
            del self._ends[bisect_left(self._ends, tokens) :]
            for points in (signals.losses, *signals.slices.values()):
                points[:] = [point for point in points if point.tokens < tokens]
            for looks in signals.probes.values():
                looks[:] = [look for look in looks if look.tokens < tokens]
        signals.spent_tokens += tokens - (self._ends[-1] if self._ends else 0)
        signals.tokens = tokens
        self._ends.append(tokens)
        loss = event["loss"]
        if isinstance(loss, int | float):  # a string where it was not finite
            signals.losses.append(Point(tokens, float(loss)))
        if (
            signals.losses and tokens - signals.losses[0].tokens > 2 * self._window + 1
        ):  # drop all at once the values that no window reaches any more
            signals.losses = [point for point in signals.losses if point.tokens > tokens - self._window - 1]

    def _evaluated(self, event: Event) -> None:
        tokens = int(event["tokens"])
        self._spend(float(event.get("seconds", 0.0)))
        for name, value in event.get("slices", {}).items():
            self.signals.slices.setdefault(name, []).append(Point(tokens, float(value)))
        self._probes.add(event)
        self.signals.probes = self._probes.looks

    def _spend(self, seconds: float) -> None:
        self.signals.seconds += seconds
        self.signals.rank_seconds += seconds * self._ranks
