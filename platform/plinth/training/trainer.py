"""Training steps of one rank, shared by runs, audits and replays.

    launch   take the next batch, compute its gradient, update unless the guard's limits forbid it; does not wait
    read     read the numbers of the step on the host
    record   judge the step with the guard

`RankHooks` calls the training hooks.

Does not belong here: timeline, checkpoints and interventions (loop).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from plinth.errors import TrainingError
from plinth.training import hooks
from plinth.training.checkpoint import resume, snapshot
from plinth.training.config import RunConfig
from plinth.training.corruption.sampling import RECORD, ReplayRecord
from plinth.training.data import Batches, Examination, StepBatch, batches_of, examined
from plinth.training.engine.batches import replica_batches
from plinth.training.engine.engine import PassHooks, Rank, TrainingEngine, seed
from plinth.training.engine.optimization import learning_rate
from plinth.training.engine.pipeline import open_engine
from plinth.training.engine.skipped_update import Launched, Measured, UpdateSkipper
from plinth.training.engine.weights import step_weight
from plinth.training.guard.rules import Intervention, Limits, TrainedStep, findings
from plinth.training.guard.state_machine import Guard
from plinth.training.rank_hook import RankHook
from plinth.training.telemetry.step_clock import StepClock
from plinth.training.telemetry.timeline import smoothed

#: The numbers of a step that the guard judges.
JUDGED = ("step", "loss", "grad_norm", "vetoed")


@dataclass
class Monitor:
    """Smoothed numbers of a run. They are saved in checkpoints, so that a curve continues after a resume without a
    jump."""

    loss_ema: float | None = None

    def update(self, loss: float) -> None:
        """Update the exponential mean of the loss."""
        self.loss_ema = smoothed(self.loss_ema, loss)


class TakenStep(NamedTuple):
    """Inputs of a step that are needed to take it again, except its batch."""

    rate: float
    limits: Limits
    examination: Examination


class Trainer:
    """Training steps of one rank, with the engine and all other state that a checkpoint contains.

    Args:
        opened: returns the batches of this rank's replica; by default, it opens them.
    """

    def __init__(self, config: RunConfig, rank: Rank, opened: Callable[[], Batches] | None = None) -> None:
        self.config, self.rank = config, rank
        self.monitor, self.guard = Monitor(), Guard(config.guard)
        self.replayed = ReplayRecord()
        self._taken: TakenStep | None = None
        self.batches = replica_batches(config, rank.index, opened or partial(batches_of, config, rank.index))
        self.hooks = open_hooks(config, rank)
        self._open()

    def _open(self) -> None:
        self.engine = open_engine(self.config, self.rank, self.hooks.of_passes)
        self.hooks.attach(self.engine)
        self.skipper = UpdateSkipper(self.engine)
        self._timed_step, self._timed_s = 0, 0.0

    def begin(self) -> None:
        """Reset to the state before the first step, even if steps were already taken."""
        seed(self.config.seed + self.rank.index)
        self.monitor, self.guard, self.replayed = Monitor(), Guard(self.config.guard), ReplayRecord()
        self.hooks.reset()
        self._open()
        self.keep_optimizer()

    def keep_optimizer(self) -> None:
        """Restore the parent's optimizer state before the first step, if the recipe asks for it."""
        resume.restore(self.engine)

    def load(self, step: int) -> None:
        """Load the state after `step`, whose checkpoint has been verified."""
        self.follow(step, snapshot.load(self.engine, step)["monitor"])

    def follow(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue after `step` from the host's part of a checkpoint, once the engine has the rest of the state."""
        self.engine.rotate_at(step)
        self.monitor, self.guard = Monitor(state["loss_ema"]), Guard.restored(self.config.guard, state["guard"])
        self.replayed = ReplayRecord.of(state)
        self.hooks.restore(state)

    def state(self) -> dict[str, Any]:
        """Return the host's part of a checkpoint: the state of monitor, guard and hooks."""
        record = {RECORD: self.replayed.model_dump(mode="json", exclude={"mismatches"})} if self.replayed.steps else {}
        return {"loss_ema": self.monitor.loss_ema, "guard": self.guard.state(), **record, **self.hooks.state()}

    def launch(
        self, stream: Iterator[StepBatch], step: int, pending: int = 0, trace: int = 0, in_flight: int = 0
    ) -> Launched:
        """Take the next batch and train on it, unless the guard's limits forbid the update.

        Args:
            in_flight: number of earlier steps that are launched but not recorded yet.
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
        examination = examined(batch, self.config, self.engine.topology.place)
        self._taken = TakenStep(rate, limits, examination)
        self.skipper.arm(limits, examination.words, pending, self._timed_s, trace, examination.broken)
        if self.engine.average is not None:
            self.engine.average.weight = step_weight(self.config.optimizer, self.config.step_tokens(step))
        self.engine.stats.begin(step)
        if self.engine.balance is not None:
            self.engine.balance.begin(step, batch.streams)
        self.engine.rotate_at(step)
        numbers = self.engine.train_step(batch, rate)
        marks = clock.end()  # before the copy whose end the host waits for: with it they have passed
        return Launched(step, rate, self.skipper.result(*numbers), waited, marks, self._timed_step)

    def repeat(self, batch: StepBatch) -> None:
        """Take the last step again, with a given batch, and wait for its end. The engine must have the state before
        that step. Nothing is measured or judged."""
        assert self._taken is not None
        rate, limits, (words, broken) = self._taken
        clock, self.engine.clock = self.engine.clock, StepClock.of(self.rank.device)  # does not run
        try:
            self.skipper.arm(limits, words, 0, 0.0, 0, broken)
            self.skipper.result(*self.engine.train_step(batch, rate)).read()
        finally:
            self.engine.clock = clock

    def record(self, measured: Measured) -> list[Intervention]:
        """Judge a finished step, and return the interventions, the most severe last."""
        self._timed_step, self._timed_s = measured.step, measured.time.seconds
        layers = self.engine.stats.at(measured.step)
        fields = {name: getattr(measured, name) for name in JUDGED}
        if layers is not None:
            fields |= {"gradients": layers.named("grad_norm"), "activations": layers.named("rms")}
        if self.engine.balance is not None and (experts := self.engine.balance.at(measured.step)) is not None:
            fields["idle_experts"] = experts.idle()
        policy = self.config.guard.screening
        if policy is not None:
            fields["screened"] = findings(policy, measured.broken, self.config.steps.batch(measured.step - 1))
        seen = TrainedStep(**fields)
        if not self.guard.kept_back(seen):
            self.monitor.update(measured.loss)
        return self.guard.record(seen)


class RankHooks:
    """Training hooks of a run on one rank, in order. A step calls only the methods that a hook overrides."""

    def __init__(self, by_name: Mapping[str, RankHook]) -> None:
        self._hooks = dict(by_name)
        self.before_step = tuple(self._having("before_step").values())
        self._after_step, self._state = self._having("after_step"), self._having("state")
        self._due = [self._hooks[name] for name in self._having("due")]
        gradients = self._having("gradient")
        if len(gradients) > 1:
            raise TrainingError(
                "two hooks compute the gradient of a step", found=", ".join(gradients), expected="one of them"
            )
        self.of_passes = PassHooks(
            inputs=tuple(self._having("inputs").values()),
            loss=tuple(self._having("loss").values()),
            after_backward=tuple(self._having("after_backward").values()),
            gradient=next(iter(gradients.values()), None),
        )

    def __getitem__(self, name: str) -> RankHook:
        return self._hooks[name]

    def attach(self, engine: TrainingEngine) -> None:
        """Attach all hooks to a new engine."""
        for hook in self._hooks.values():
            hook.attach(engine)

    def reset(self) -> None:
        """Reset all hooks to the state before the first step."""
        for hook in self._hooks.values():
            hook.reset()

    def state(self) -> dict[str, Any]:
        """Return the state of all hooks for a checkpoint, by hook name."""
        return {name: state() for name, state in self._state.items()}

    def restore(self, monitor: Mapping[str, Any]) -> None:
        """Restore the state of all hooks from a checkpoint."""
        for name in self._state:
            self._hooks[name].restore(monitor[name])

    def saved(self, monitor: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the events to log after a checkpoint with the state `monitor`."""
        return [event for name in self._state if (event := self._hooks[name].saved(monitor[name])) is not None]

    def after_step(self, measured: Measured) -> dict[str, Any]:
        """Return the hooks' metrics of a finished step, by hook name."""
        return {name: numbers(measured) for name, numbers in self._after_step.items()}

    def due(self, step: int) -> RankHook | None:
        """Return the first hook with pending work after a step."""
        return next((hook for hook in self._due if hook.due(step)), None)

    def _having(self, method: str) -> dict[str, Callable[..., Any]]:
        return {
            name: getattr(hook, method)
            for name, hook in self._hooks.items()
            if getattr(type(hook), method) is not getattr(RankHook, method)
        }


def open_hooks(config: RunConfig, rank: Rank) -> RankHooks:
    """Create the training hooks of a run on this rank.

    Raises:
        TrainingError: the run was prepared with another version of a package than this machine has.
        ExtensionError, RecipeError: a hook cannot be used.
    """
    ours, prepared = hooks.origins(config), config.provenance.get("extensions", {})
    if ours != prepared:
        raise TrainingError(
            "the training hooks of this machine differ from the hooks of the run",
            found=", ".join(ours.values()) or "none",
            expected=", ".join(prepared.values()) or "none",
            remedy="install the same versions on the machines of the ranks, or start another run",
        )
    return RankHooks({hook.name: hook.rank(config, rank, state) for hook, state in hooks.asked(config)})
