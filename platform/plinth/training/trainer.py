"""The steps of one rank: the same for a run, an audit and a replay.

    launch   take the next batch, compute its gradient, update unless the guard's limits forbid it; without a wait
    read     read the numbers of the step on the host
    record   judge the step with the guard

Does not belong here: timeline, checkpoints and interventions (loop).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from plinth.training.checkpoint import kept_optimizer, snapshot
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch, batches_of, examined
from plinth.training.engine.engine import Rank, seed
from plinth.training.engine.parameter_groups import learning_rate
from plinth.training.engine.pipeline import open_engine
from plinth.training.engine.skipped_update import PendingNumbers, UpdateSkipper
from plinth.training.engine.weight_copies import step_weight
from plinth.training.guard.records import Intervention, TrainedStep
from plinth.training.guard.screening import NONE_BROKEN, findings
from plinth.training.guard.state_machine import Guard
from plinth.training.hooks import open_hooks
from plinth.training.replica_batches import replica_batches
from plinth.training.telemetry.step_clock import StepMarks, StepTime

#: The numbers of a step that the guard judges.
JUDGED = ("step", "loss", "grad_norm", "vetoed")


@dataclass
class Monitor:
    """Smoothed numbers; part of the checkpoint, so that a resumed curve continues where it was."""

    loss_ema: float | None = None

    def update(self, loss: float) -> None:
        """Exponential mean with a half-life of about 14 steps."""
        if math.isfinite(loss):
            self.loss_ema = loss if self.loss_ema is None else 0.95 * self.loss_ema + 0.05 * loss


@dataclass(frozen=True)
class Measured:
    """One step as all ranks saw it."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    batch: str  # fingerprint of the batch, in 64 bits
    vetoed: bool = False  # the update was not made
    signal: int = 0  # the most urgent signal any rank has received
    data_wait_s: float = 0.0
    time: StepTime = field(default_factory=StepTime)  # of this rank
    timed_step: int = 0  # an earlier step, the last one whose time was known when this one was launched; 0: none
    timed_step_s: float = 0.0  # its seconds, mean over ranks
    trace: int = 0  # the newest request for a trace of steps
    broken: tuple[int, ...] = NONE_BROKEN  # rows that break the bound of each rule of screening


@dataclass(frozen=True)
class Launched:
    """One step in flight: the numbers that the host has, and those still on the device."""

    step: int
    lr: float
    result: PendingNumbers
    data_wait_s: float
    marks: StepMarks
    timed_step: int

    def read(self) -> Measured:
        """Wait for the device; the only time the host does in a step."""
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


class Trainer:
    """Steps of one rank: the engine, and everything a checkpoint holds besides."""

    def __init__(self, config: RunConfig, rank: Rank) -> None:
        self.config, self.rank = config, rank
        self.monitor, self.guard = Monitor(), Guard(config.guard)
        self.batches = replica_batches(config, rank.index, partial(batches_of, config, rank.index))
        self.hooks = open_hooks(config, rank)
        self._open()

    def _open(self) -> None:
        self.engine = open_engine(self.config, self.rank, self.hooks)
        self.skipper = UpdateSkipper(self.engine)
        self._timed_step, self._timed_s = 0, 0.0

    def begin(self) -> None:
        """Set the state before the first step, also when other steps came before."""
        seed(self.config.seed + self.rank.index)
        self.monitor, self.guard = Monitor(), Guard(self.config.guard)
        self.hooks.reset()
        self._open()
        self.keep_optimizer()

    def keep_optimizer(self) -> None:
        """Before the first step: go on with the optimizer's state of the parent, where the run keeps it."""
        kept_optimizer.restore(self.engine)

    def load(self, step: int) -> None:
        """Load the state after `step`, whose checkpoint has been verified."""
        state = snapshot.load(self.engine, step)["monitor"]
        self.engine.rotate_at(step)
        self.monitor, self.guard = Monitor(state["loss_ema"]), Guard.restored(self.config.guard, state["guard"])
        self.hooks.restore(state)

    def state(self) -> dict[str, Any]:
        """The host's part of a checkpoint: monitor, guard and hooks."""
        return {"loss_ema": self.monitor.loss_ema, "guard": self.guard.state(), **self.hooks.state()}

    def launch(
        self, stream: Iterator[StepBatch], step: int, pending: int = 0, trace: int = 0, in_flight: int = 0
    ) -> Launched:
        """Take the next batch and train on it, unless the guard's limits forbid the update.

        Args:
            in_flight: steps that were launched before and are not recorded yet.
        """
        for hook in self.hooks.before_step:
            hook(step)
        clock = self.engine.clock
        clock.begin()
        started = time.perf_counter()
        with clock.within("data"):
            batch = next(stream)
        waited = time.perf_counter() - started
        rate = learning_rate(self.config.optimizer, *self.config.progress(step)) * self.guard.factor(step)
        limits = self.guard.update_limits(step, in_flight, self.config.steps.batch(step - 1))
        words, broken = examined(batch, self.config, self.engine.topology.place)
        self.skipper.arm(limits, words, pending, self._timed_s, trace, broken)
        if self.engine.average is not None:
            self.engine.average.weight = step_weight(self.config.optimizer, self.config.step_tokens(step))
        self.engine.stats.begin(step)
        self.engine.rotate_at(step)
        numbers = self.engine.train_step(batch, rate)
        marks = clock.end()  # before the copy whose end the host waits for: with it they have passed
        return Launched(step, rate, self.skipper.result(*numbers), waited, marks, self._timed_step)

    def record(self, measured: Measured) -> list[Intervention]:
        """Judge a step that was read; the interventions it leads to, the hardest last."""
        self._timed_step, self._timed_s = measured.step, measured.time.seconds
        layers = self.engine.stats.at(measured.step)
        fields = {name: getattr(measured, name) for name in JUDGED}
        if layers is not None:
            fields |= {"gradients": layers.named("grad_norm"), "activations": layers.named("rms")}
        policy = self.config.guard.screening
        if policy is not None:
            fields["screened"] = findings(policy, measured.broken, self.config.steps.batch(measured.step - 1))
        seen = TrainedStep(**fields)
        if not self.guard.kept_back(seen):
            self.monitor.update(measured.loss)
        return self.guard.record(seen)
