"""The rule that names what a run's steps are bound by, and what a step without it would take.

The part with the most time comes first (ties: in the order of `STEP_PARTS`). Computation that comes first is bound by
one of two roofs (Williams, Waterman and Patterson 2009): with fewer FLOPs for a byte than the ridge point, at which the
device can just feed its arithmetic, by `memory`, otherwise by `compute`. What is counted as moved is a lower bound
(model.traffic), and starting a kernel takes time too: computation that reaches less than `LOW` of the measured FLOP/s
is not bound by arithmetic either, and counts as `memory`, whatever its counted intensity. Of communication, what is
waiting for a slower rank is a cause of its own, `slow rank`: faster links would not shorten it.

Amdahl's bound of a part: if it took no time, a step would take that of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from plinth.records import Frozen
from plinth.training.roofline.step_parts import STEP_PARTS, StepPart

Cause = Literal["compute", "memory", "communication", "slow rank", "input", "checkpoint", "host"]

#: Share of the FLOP/s of large products below which arithmetic binds nothing. Published runs reach 0.3 to 0.6.
LOW = 0.2
#: Speed-ups below this round to once.
NO_GAIN = 1.005

#: Changes that help against a cause.
HELP: dict[Cause, str] = {
    "compute": "more ranks, faster devices, a lower precision (training.precision, float8), less recomputation",
    "memory": "matrices too small or too few tokens at once: larger training.micro_batch_sequences, a wider model, "
    "training.parallel.compile",
    "communication": "a larger global batch, fewer ranks that divide the model, training.parallel.communication_dtype, "
    "a lower ZeRO stage, faster links",
    "slow rank": "what makes that rank slow: its disk, its processors, its device (`plinth run timeline`), or another "
    "node",
    "input": "shards on a faster disk or cached on the node (training.reading)",
    "checkpoint": "training.checkpoints: a larger every_steps, mode async, a faster disk",
    "host": "larger steps, fewer other processes on the node",
}


class Roof(Frozen):
    """The most that one rank's device can do, as measured."""

    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOPs for a byte above which arithmetic is the limit."""
        return self.flops_per_s / self.bytes_per_s

    def attainable(self, intensity: float) -> float:
        """FLOP/s at so many FLOPs for a byte."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)


class StepWork(Frozen):
    """Computation of one rank in one step: FLOPs, and bytes moved to and from the device's memory."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs for a byte."""
        return self.flops / self.bytes


class Bottleneck(Frozen):
    """One cause of a step's time.

    Attributes:
        seconds: of a step; share: of the step.
        without_s: a step if this took no time; speedup: how many times faster that is, infinite where nothing is left.
    """

    cause: Cause
    seconds: float
    share: float
    without_s: float
    help: str

    @property
    def speedup(self) -> float:
        return (self.without_s + self.seconds) / self.without_s if self.without_s > 0 else math.inf

    @property
    def bound(self) -> str:
        """The speed-up in words."""
        if not math.isfinite(self.speedup):
            return "nothing is left"
        return f"at most {self.speedup:.3g} times as fast" if self.speedup >= NO_GAIN else "no gain"


def bottlenecks(
    seconds: Mapping[StepPart, float],
    work: StepWork | None = None,
    roof: Roof | None = None,
    *,
    waited_s: float = 0.0,
) -> tuple[Bottleneck, ...]:
    """The causes of a step's time, the first first; those without any are left out.

    Args:
        waited_s: of the communication, for slower ranks.
        work, roof: None where the run's machine was never measured: computation is then `compute`.
    """
    total = sum(seconds.values())
    spent: dict[Cause, float] = {}
    for part in STEP_PARTS:
        own = seconds.get(part, 0.0)
        if part == "communication":
            spent |= {"communication": own - waited_s, "slow rank": waited_s}
        else:
            spent[_of_compute(own, work, roof) if part == "compute" and own > 0 else part] = own
    ordered = sorted((cause for cause in spent if spent[cause] > 0), key=lambda cause: -spent[cause])
    return tuple(
        Bottleneck(
            cause=cause, seconds=own, share=own / total, without_s=total - own, help=HELP[cause]
        )
        for cause, own in ((cause, spent[cause]) for cause in ordered)
    )


def _of_compute(seconds: float, work: StepWork | None, roof: Roof | None) -> Cause:
    if work is None or roof is None:
        return "compute"
    fed = work.intensity >= roof.ridge and work.flops / seconds >= LOW * roof.flops_per_s
    return "compute" if fed else "memory"
