"""Time of a step by part, measured on a rank; and the mean step of a run, computed from the timeline."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args

from plinth.errors import MissingError
from plinth.records import Frozen

# Time of a step by part: parts add up to the step, and steps to the run.
#
#     ──▶ host ─▶ data ─▶ host ─▶ forward ─▶ backward ─▶ communication ─▶ backward ─▶ optimizer ─▶ host ──▶ next step
#        mark    mark    mark    …                                                                mark: end of the step
#
# Each change of activity sets a mark, and the time between two marks belongs to the activity that the first mark
# started: nothing is counted twice or omitted. On CPUs a mark is a reading of the host's clock. On GPUs it is an event
# on the compute stream, read with the step's numbers: setting it does not wait, and the parts are those of the device.
# There, forward is the time of its kernels, not of their launch, and host and data are the time that the device was
# idle while the host prepared the step or waited for its batch.
#
# Work between two steps (a save, held-out text, loading, a round of sites) is outside of the step: measured by the same
# marks, and not part of its seconds.
#
# Does not belong here: detection of communication (communication).

#: Parts of a step. `communication` is exposed communication only; `checkpoint` is the wait of an update for the copy
#: of the state.
PARTS = ("data", "host", "forward", "backward", "communication", "optimizer", "checkpoint")

#: Kinds of work between two steps.
BESIDES = ("save", "evaluation", "loading", "profile", "exchange", "replay")


class ClockMarks(Protocol):
    """Source of time marks. The time between two marks can be read later."""

    def now(self) -> Any: ...

    def seconds(self, first: Any, second: Any) -> float: ...

    def release(self, marks: Sequence[Any]) -> None: ...


class HostMarks:
    """Time marks from the host's clock."""

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, second: float) -> float:
        return second - first

    def release(self, marks: Sequence[float]) -> None: ...


class DeviceMarks:
    """CUDA events on the stream that was current when this object was created. Events are reused once they are read."""

    def __init__(self, device: Any) -> None:
        import torch

        self._make: Callable[..., Any] = torch.cuda.Event
        self._stream = torch.cuda.current_stream(device)
        self._free: list[Any] = []

    def now(self) -> Any:
        event = self._free.pop() if self._free else self._make(enable_timing=True)
        event.record(self._stream)
        return event

    def seconds(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) / 1000.0

    def release(self, marks: Sequence[Any]) -> None:
        self._free.extend(marks)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by part, and seconds of the work between the previous step and this step."""

    parts: dict[str, float] = field(default_factory=dict)
    besides: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return sum(self.parts.values())

    @property
    def own_s(self) -> float:
        """Seconds of the step without the parts in which the rank waits for other ranks or for its checkpoint."""
        return self.seconds - self.parts.get("communication", 0.0) - self.parts.get("checkpoint", 0.0)


class StepMarks:
    """Time marks of one step, which can be read once the device has passed the last mark."""

    def __init__(self, marks: ClockMarks, begun: list[tuple[str, Any]], end: Any) -> None:
        self._marks, self._begun, self._end = marks, begun, end

    def read(self) -> StepTime:
        """Return the step's time by part. Call this only once."""
        found: dict[str, float] = defaultdict(float)
        moments = [mark for _, mark in self._begun] + [self._end]
        for (part, first), second in zip(self._begun, moments[1:], strict=True):
            found[part] += self._marks.seconds(first, second)
        self._marks.release(moments[:-1])  # the last mark starts the next step
        return StepTime(
            {part: found[part] for part in PARTS if part in found},
            {part: found[part] for part in BESIDES if part in found},
        )


class StepClock:
    """Clock of a rank that adds up the time of each activity. It measures nothing before `begin`."""

    def __init__(self, marks: ClockMarks) -> None:
        self._marks = marks
        self._begun: list[tuple[str, Any]] = []

    @classmethod
    def of(cls, device: Any) -> StepClock:
        """Return the clock of a torch device."""
        return cls(DeviceMarks(device) if device.type == "cuda" else HostMarks())

    def begin(self) -> None:
        """Start the first step, unless the clock is already running."""
        if not self._begun:
            self._begun = [("host", self._marks.now())]

    def enter(self, part: str) -> None:
        """Switch to another part of the step."""
        if self._begun and self._begun[-1][0] != part:
            self._begun.append((part, self._marks.now()))

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Switch to this part inside the context, and back to the previous part afterward.

        During work between two steps the clock does not switch, so that the time is not assigned to a step.
        """
        before = self._begun[-1][0] if self._begun else part
        if before == part or before in BESIDES:
            yield
            return
        self.enter(part)
        try:
            yield
        finally:
            self.enter(before)

    def end(self) -> StepMarks:
        """End the step. The next step starts with the host part."""
        end = self._marks.now()
        done, self._begun = StepMarks(self._marks, self._begun, end), [("host", end)]
        return done


# Time of a run's mean step by part, from its timeline, compared with wall-clock time.
#
# A step event has its parts, and the work between the previous step and it (telemetry.step_clock). A save belongs to
# the checkpoint; evaluation, loading, traces and rounds of sites are excluded, and so is the first step of an attempt,
# which compiles. Parts of consecutive steps add up to the time between their events.
#
# A rank that waits for a slower one communicates, according to its clock. The events `stragglers` have the slow ranks
# and the excess of each over the steps before: that much of their communication is waiting.

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

#: Events after which the next step does not follow the previous one directly.
_BREAKS = frozenset({"job_started", "run_started", "resumed", "rolled_back", "restart", "lost", "vanished"})


class SlowRank(Frozen):
    """A rank that was slower than comparable ranks in the last comparison.

    Attributes:
        part: part of the rank's own time with the largest excess over the leading rank; for the leading rank itself,
            its largest part.
        own_s: the rank's own seconds per step; part_s: its seconds in that part; leading_s: the leading rank's seconds.
    """

    rank: int
    host: str
    own_s: float
    part: StepPart | None
    part_s: float
    leading_s: float

    def words(self) -> str:
        """Return a one-line description for display."""
        where, why = f" on {self.host}" if self.host else "", ""
        if self.part is not None:
            beside = "" if self.rank == 0 else f", rank 0 {self.leading_s:.4g} s"
            why = f": {self.part} {self.part_s:.4g} s{beside}"
        return f"rank {self.rank}{where} is slow (own time {self.own_s:.4g} s per step){why}"


class MeanStep(Frozen):
    """Mean of a run's steps on its leading rank.

    Attributes:
        steps: step numbers, once for every time that a step was taken directly after another step.
        seconds: seconds by part; they add up to `seconds_together`.
        wall_s: seconds between the events of two steps, without work outside of steps.
        device, precision: values of the last attempt.
        slow_ranks: slow ranks, the slowest first.
        waited_s: communication time in which the leading rank waited for slow ranks.
    """

    steps: tuple[int, ...]
    seconds: Mapping[StepPart, float]
    wall_s: float
    device: str
    precision: str
    slow_ranks: tuple[SlowRank, ...] = ()
    waited_s: float = 0.0

    @property
    def seconds_together(self) -> float:
        return sum(self.seconds.values())

    @property
    def unaccounted(self) -> float:
        """Fraction of wall-clock time that belongs to no part; below 0 if the parts exceed the wall-clock time."""
        return 1 - self.seconds_together / self.wall_s if self.wall_s > 0 else 0.0


class StepSeconds(NamedTuple):
    """Seconds of one step by part, and the seconds between its event and the previous step's event, without work
    outside of steps."""

    number: int
    seconds: Counter[StepPart]
    wall_s: float


def following_steps(events: Iterable[Mapping[str, Any]]) -> Iterator[StepSeconds]:
    """Yield the steps that directly follow another step and report their parts. A step that was taken several times is
    yielded each time."""
    before: float | None = None  # time of the previous step's event
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
    """Return the mean step of a timeline, or of its first events.

    Raises:
        MissingError: there are no two consecutive steps that report their parts.
    """
    device, precision, compared = "", "", list[Mapping[str, Any]]()

    def seen() -> Iterator[Mapping[str, Any]]:
        nonlocal device, precision
        for event in events:
            if event["event"] == "run_started":
                device, precision = str(event.get("device", device)), str(event.get("precision", precision))
            elif event["event"] == "stragglers":
                compared.append(event)
            yield event

    taken = list(following_steps(seen()))
    parts, wall = Counter[StepPart](), 0.0
    for step in taken:
        parts.update(step.seconds)
        wall += step.wall_s
    steps = [step.number for step in taken]
    if not steps:
        raise MissingError(
            "the timeline has no two consecutive steps with parts",
            expected="at least two steps of one attempt, trained by this version",
            remedy="wait for the run's next steps",
        )
    count = len(steps)
    means: dict[StepPart, float] = {part: parts[part] / count for part in STEP_PARTS}
    return MeanStep(
        steps=tuple(steps),
        seconds=means,
        wall_s=wall / count,
        device=device,
        precision=precision,
        slow_ranks=tuple(_slow(one, means) for one in compared[-1]["ranks"]) if compared else (),
        waited_s=sum(_waited(taken, compared)) / count,
    )


def _waited(steps: Iterable[StepSeconds], compared: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Yield the seconds of each step that the leading rank waited for a slower rank.

    An event covers the steps before it, starting at its first compared step, until the first step of the next event.
    """
    since = [(int(event.get("step", 0)) - int(event.get("over_steps", 0)) - 1, event["ranks"]) for event in compared]
    for step in steps:
        ranks = next((ranks for begin, ranks in reversed(since) if begin < step.number), ())
        own = step.seconds.total() - step.seconds["communication"] - step.seconds["checkpoint"]
        slowest = max((float(one.get("own_s", 0.0)) for one in ranks), default=0.0)
        yield min(step.seconds["communication"], max(0.0, slowest - own))


def _slow(one: Mapping[str, Any], leading: Mapping[StepPart, float]) -> SlowRank:
    own: dict[StepPart, float] = {part: one["parts"][part] for part in STEP_PARTS if part in one.get("parts", {})}
    base = dict.fromkeys(own, 0.0) if int(one["rank"]) == 0 else {part: leading[part] for part in own}
    part = max(own, key=lambda name: own[name] - base[name], default=None)
    return SlowRank(
        rank=int(one["rank"]),
        host=str(one.get("host", "")),
        own_s=float(one.get("own_s", 0.0)),
        part=part,
        part_s=0.0 if part is None else own[part],
        leading_s=0.0 if part is None else leading[part],
    )
