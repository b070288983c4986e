"""Skipping of bad updates: one sum over ranks on the device, before the optimizer's update.

    gradient complete ──► sum of loss, fingerprint, signals over ranks ──► global norm ──► ok? ──► optimizer
                                                                                           │
    host, at the end of the step or during the next step ◄── one copy of all numbers ◄─────┘

The update is skipped with `found_inf`, the loss scaling flag of PyTorch's fused AdamW and of Plinth's Muon. If the flag
is 1, the kernel leaves parameters, moments and step count unchanged, and the host does not wait
(`torch.optim.Optimizer`; OLMo-core's SkipStepOptimizer multiplies by a similar factor). DeepSpeed's ZeRO stages 0 to 3
call that optimizer last, after reduction, norm and clipping. Every rank has the same loss and norm, so either all ranks
skip the update or none does. An offloaded optimizer runs on the host, which waits for the verdict as it waits for the
gradient. PyTorch's own copy of the flag would be read too early. Steps that DeepSpeed itself skips (an overflow in
FP16) do not reach this code; they count as skipped.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from plinth.training.engine.device_measurements import HostCopy, keeps_back, state_device
from plinth.training.engine.engine import TrainingEngine
from plinth.training.guard.rules import NONE_BROKEN, TEXT_RULES, Limits
from plinth.training.telemetry.step_clock import StepMarks, StepTime

#: Request from a rank to save again after a failed save. Any other request has priority.
SAVE_AGAIN = -1

#: Request from the stopping rules to end the run. Every real signal has priority.
STOP_REQUESTED = 1

#: Requests that a rank can send to all ranks, the most urgent last. The vector counts the ranks that send each.
SIGNALS = (SAVE_AGAIN, STOP_REQUESTED, int(signal.SIGINT), int(signal.SIGTERM))

#: Positions in the shared vector. Sums of 32-bit words over a million ranks stay exact in FP64.
_LOSS, _FIRST, _SECOND, _SECONDS, _RANKS = range(5)
_ASKED = slice(5, 5 + len(SIGNALS))
_TRACE = _ASKED.stop
_BROKEN = slice(_TRACE + 1, _TRACE + 1 + len(TEXT_RULES))
_NORM, _SKIPPED = range(_BROKEN.stop, _BROKEN.stop + 2)


@dataclass(frozen=True)
class Shared:
    """Numbers of a step on the host that are the same on all ranks."""

    loss: float  # mean over ranks
    grad_norm: float
    vetoed: bool
    batch: str  # 64-bit fingerprint of the batch
    signal: int  # the most urgent signal that any rank received
    step_s: float  # mean over ranks, of the previous step
    trace: int = 0  # newest trace request known to the leading rank
    broken: tuple[int, ...] = NONE_BROKEN  # rows that violate the bound of each screening rule


class UpdateSkipper:
    """Exchange of a step's numbers among ranks. The update is skipped if the numbers exceed the guard's limits."""

    def __init__(self, engine: TrainingEngine) -> None:
        self.engine, self.device = engine, engine.rank.device
        self._limits, self._words = Limits(), torch.zeros(_NORM, dtype=torch.float64)
        self._summed: Tensor | None = None
        self._bad: Tensor | None = None
        self._flag: Tensor | None = None
        engine.on_gradient = self._share
        inner = engine.deepspeed.basic_optimizer
        #: False for optimizers that cannot skip an update; then only DeepSpeed's own skips apply.
        self.able = inner is not None and keeps_back(inner)
        if self.able:
            inner.register_step_pre_hook(self._judge)

    def arm(
        self,
        limits: Limits,
        words: tuple[int, int],
        pending: int,
        seconds: float,
        trace: int = 0,
        broken: Sequence[int] = NONE_BROKEN,
    ) -> None:
        """Set the inputs of the next step's exchange.

        The arguments are the limits of the step, this rank's fingerprint, its pending signal, its seconds of the last
        step, and the number of rows that violate each screening rule. On the leading rank, `trace` is the newest trace
        request.
        """
        self._limits, self._summed, self._bad, self._flag = limits, None, None, None
        asked = [float(pending == number) for number in SIGNALS]
        numbers = [0.0, *map(float, words), seconds, 1.0, *asked, trace, *broken]
        self._words = torch.tensor(numbers, dtype=torch.float64)

    def result(self, loss: Tensor, norm: Tensor) -> PendingNumbers:
        """Start the copy of all numbers of a step to the host, in one vector."""
        if self._summed is None:  # an engine with gradient and update in one call
            self._share(loss)
        assert self._summed is not None
        if self._bad is None:  # no optimizer step: an overflow in DeepSpeed, or nothing is judged
            self._bad = torch.ones_like(norm) if self.able else ~torch.isfinite(norm)
        vetoed = self._bad.double()
        return PendingNumbers(torch.cat([self._summed, norm.reshape(1), vetoed.reshape(1)]))

    def _share(self, loss: Tensor) -> None:
        summed = self._words.to(self.device, non_blocking=True)
        summed[_LOSS] = loss
        dist.all_reduce(summed)
        self._summed = summed

    def _judge(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """When the optimizer's step begins, decide on the device if the update is applied.

        ZeRO-3 calls the optimizer several times per step, and all calls use the same verdict.
        """
        if self._bad is None:
            norm, summed = self.engine.gradient_norm(), self._summed
            loss = norm if summed is None else summed[_LOSS] / summed[_RANKS]
            limit = math.inf if summed is None else self._limits.loss
            fine = torch.isfinite(loss) & torch.isfinite(norm) & (loss <= limit) & (norm <= self._limits.grad_norm)
            if summed is not None and math.isfinite(self._limits.rows):
                fine &= (summed[_BROKEN] <= self._limits.rows).all()
            self._bad = ~fine
        if self._flag is None:
            flag = self._bad.float()
            self._flag = flag if flag.device == state_device(optimizer) else HostCopy(flag).read()
        optimizer.found_inf = self._flag


class PendingNumbers:
    """Copy of a step's numbers to the host, still in progress. Reading the numbers waits for the copy."""

    def __init__(self, values: Tensor) -> None:
        self._copy = HostCopy(values)

    def read(self) -> Shared:
        """Wait for the numbers and return them. The host reads a step's numbers only here."""
        values = self._copy.read().tolist()
        ranks = values[_RANKS]
        return Shared(
            loss=values[_LOSS] / ranks,
            grad_norm=values[_NORM],
            vetoed=values[_SKIPPED] > 0,
            batch=f"{int(values[_FIRST]) % 2**32:08x}{int(values[_SECOND]) % 2**32:08x}",
            signal=max((number for number, count in zip(SIGNALS, values[_ASKED], strict=True) if count), default=0),
            step_s=values[_SECONDS] / ranks,
            trace=int(values[_TRACE]),
            broken=tuple(map(int, values[_BROKEN])),
        )


@dataclass(frozen=True)
class Measured:
    """Numbers of one step, the same on all ranks except this rank's times."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    batch: str  # 64-bit fingerprint of the batch
    vetoed: bool = False  # the update was skipped
    signal: int = 0  # the most urgent signal any rank has received
    data_wait_s: float = 0.0
    time: StepTime = field(default_factory=StepTime)  # of this rank
    timed_step: int = 0  # last step whose time was known at the launch of this one; 0: none
    timed_step_s: float = 0.0  # its seconds, mean over ranks
    trace: int = 0  # the newest request for a trace of steps
    broken: tuple[int, ...] = NONE_BROKEN  # rows that violate the bound of each screening rule


@dataclass(frozen=True)
class Launched:
    """One step that is still running: the numbers that the host knows, and the numbers still on the device."""

    step: int
    lr: float
    result: PendingNumbers
    data_wait_s: float
    marks: StepMarks
    timed_step: int

    def read(self) -> Measured:
        """Wait for the device and return the step's numbers. The host waits nowhere else in a step."""
        shared = self.result.read()
        return Measured(
            self.step,
            shared.loss,
            shared.grad_norm,
            self.lr,
            shared.batch,
            shared.vetoed,
            shared.signal,
            self.data_wait_s,
            self.marks.read(),
            self.timed_step,
            shared.step_s,
            shared.trace,
            shared.broken,
        )
