"""The time of a run's mean step by part, from its timeline, beside the clock on the wall.

A step states its parts, and what lay between the step before and it (telemetry.step_clock). A save is a checkpoint's;
evaluation, loading, traces and rounds of sites are not a step's, and neither is the first step of an attempt, which
compiles. Parts of steps that follow each other add up to the time between their events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from plinth.errors import MissingError
from plinth.records import Frozen

StepPart = Literal["compute", "communication", "input", "checkpoint", "host"]
STEP_PARTS: tuple[StepPart, ...] = get_args(StepPart)

_OF_PART: dict[str, StepPart] = {
    "forward": "compute",
    "backward": "compute",
    "optimizer": "compute",
    "communication": "communication",
    "data": "input",
    "checkpoint": "checkpoint",
    "save": "checkpoint",
    "host": "host",
}

#: Events after which the next step does not follow the one before.
_BREAKS = frozenset({"job_started", "run_started", "resumed", "rolled_back", "restart", "lost", "vanished"})


class MeanStep(Frozen):
    """The mean of a run's steps, of its leading rank.

    Attributes:
        steps: by number, each once for every time that it was taken and follows another.
        seconds: by part; they add up to `seconds_together`.
        wall_s: between the events of two steps, without what is no part of a step.
        device, precision: of the last attempt.
        slow_ranks: ranks that were last found slower than their like.
    """

    steps: tuple[int, ...]
    seconds: Mapping[StepPart, float]
    wall_s: float
    device: str
    precision: str
    slow_ranks: tuple[int, ...] = ()

    @property
    def seconds_together(self) -> float:
        return sum(self.seconds.values())

    @property
    def unaccounted(self) -> float:
        """Share of the wall clock that no part has; below 0 where parts exceed it."""
        return 1 - self.seconds_together / self.wall_s if self.wall_s > 0 else 0.0


class StepSeconds(NamedTuple):
    """One step by part, and the time between its event and that of the step before, without what is no part of it."""

    number: int
    seconds: Counter[StepPart]
    wall_s: float


def following_steps(events: Iterable[Mapping[str, Any]]) -> Iterator[StepSeconds]:
    """The steps that follow another and state their parts, each as often as it was taken."""
    before: float | None = None  # when the step before was written
    for event in events:
        if event["event"] in _BREAKS:
            before = None
        elif event["event"] == "step" and "parts" in event:
            if before is not None:
                besides, parts = event.get("besides", {}), Counter[StepPart]()
                for name, seconds in (*event["parts"].items(), *besides.items()):
                    if (part := _OF_PART.get(name)) is not None:
                        parts[part] += seconds
                wall = event["time"] - before - sum(s for name, s in besides.items() if name not in _OF_PART)
                yield StepSeconds(int(event["step"]), parts, wall)
            before = float(event["time"])


def mean_step(events: Iterable[Mapping[str, Any]]) -> MeanStep:
    """The mean step of a timeline, or of the beginning of one.

    Raises:
        MissingError: no two steps that state their parts follow each other.
    """
    device, precision, slow = "", "", tuple[int, ...]()

    def seen() -> Iterator[Mapping[str, Any]]:
        nonlocal device, precision, slow
        for event in events:
            if event["event"] == "run_started":
                device, precision = str(event.get("device", device)), str(event.get("precision", precision))
            elif event["event"] == "stragglers":
                slow = tuple(int(one["rank"]) for one in event["ranks"])
            yield event

    parts, wall, steps = Counter[StepPart](), 0.0, list[int]()
    for step in following_steps(seen()):
        parts.update(step.seconds)
        wall += step.wall_s
        steps.append(step.number)
    if not steps:
        raise MissingError(
            "the timeline has no two steps that follow each other and state their parts",
            expected="at least two steps of one attempt, trained by this version",
            remedy="wait for the run's next steps",
        )
    count = len(steps)
    return MeanStep(
        steps=tuple(steps),
        seconds={part: parts[part] / count for part in STEP_PARTS},
        wall_s=wall / count,
        device=device,
        precision=precision,
        slow_ranks=slow,
    )
