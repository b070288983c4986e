"""The time of a step, divided into what the rank did: the parts of a step add up to it, and steps to the run.

    ──▶ host ─▶ data ─▶ host ─▶ forward ─▶ backward ─▶ communication ─▶ backward ─▶ optimizer ─▶ host ──▶ next step
       mark    mark    mark    …                                                                mark: end of the step

Whoever begins another part sets a mark, and the time between two marks is that of the part that the first one began:
so nothing is counted twice and nothing is left out. On CPUs a mark is a reading of the host's clock. On GPUs it is an
event on the stream that computes, read when the step's numbers are read: setting it waits for nothing, and the parts
are then those of the device. There, forward is the time of its kernels, not of their launch, and host and data are the
time that the device stood still while the host prepared the step or waited for its batch.

What happens between two steps and is none of them (a save, held-out text, loading, a round of sites) is besides the
step: measured by the same marks, and not part of its seconds.

Does not belong here: which functions communicate (communication).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

#: What a step consists of. `communication` is what computation waits for, not what runs beside it; `checkpoint` is an
#: update that waits for the copy of the state.
PARTS = ("data", "host", "forward", "backward", "communication", "optimizer", "checkpoint")

#: What lies between two steps.
BESIDES = ("save", "evaluation", "loading", "profile", "exchange")


class ClockMarks(Protocol):
    """A source of moments, of which the time between two can be read later."""

    def now(self) -> Any: ...

    def seconds(self, first: Any, second: Any) -> float: ...

    def release(self, marks: Sequence[Any]) -> None: ...


class HostMarks:
    """Moments of the host's clock."""

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, second: float) -> float:
        return second - first

    def release(self, marks: Sequence[float]) -> None: ...


class DeviceMarks:
    """CUDA events on the stream that was current when this object was made. They are used again once read."""

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
    """Seconds of one step by part, and of what lay between the step before and it."""

    parts: dict[str, float] = field(default_factory=dict)
    besides: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return sum(self.parts.values())

    @property
    def own_s(self) -> float:
        """Without the parts in which a rank waits for others, or for its checkpoint."""
        return self.seconds - self.parts.get("communication", 0.0) - self.parts.get("checkpoint", 0.0)


class StepMarks:
    """The marks of one step, which can be read once the device has passed the last of them."""

    def __init__(self, marks: ClockMarks, begun: list[tuple[str, Any]], end: Any) -> None:
        self._marks, self._begun, self._end = marks, begun, end

    def read(self) -> StepTime:
        """The step's time. To be called once."""
        found: dict[str, float] = defaultdict(float)
        moments = [mark for _, mark in self._begun] + [self._end]
        for (part, first), second in zip(self._begun, moments[1:], strict=True):
            found[part] += self._marks.seconds(first, second)
        self._marks.release(moments[:-1])  # the last one begins the next step
        return StepTime(
            {part: found[part] for part in PARTS if part in found},
            {part: found[part] for part in BESIDES if part in found},
        )


class StepClock:
    """What a rank is doing, from its first step on; before `begin` nothing is measured."""

    def __init__(self, marks: ClockMarks) -> None:
        self._marks = marks
        self._begun: list[tuple[str, Any]] = []

    @classmethod
    def of(cls, device: Any) -> StepClock:
        """The clock of a torch device."""
        return cls(DeviceMarks(device) if device.type == "cuda" else HostMarks())

    def begin(self) -> None:
        """The first step begins, unless the clock runs already."""
        if not self._begun:
            self._begun = [("host", self._marks.now())]

    def enter(self, part: str) -> None:
        """From here on it is this part."""
        if self._begun and self._begun[-1][0] != part:
            self._begun.append((part, self._marks.now()))

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Inside it is this part, afterwards again the one before; between two steps, no part of a step."""
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
        """The step ends, and the next begins with the host."""
        end = self._marks.now()
        done, self._begun = StepMarks(self._marks, self._begun, end), [("host", end)]
        return done
